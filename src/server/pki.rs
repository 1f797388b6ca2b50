//! The cluster's own certificates: a CA, the server's certificate, the administrator's; made here, kept in a folder.
//!
//! A certificate that ends within a month, or no longer names all that the server is called, is made anew at the start.

use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::api::User;

const CA_LIFE: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);
const LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);
const RENEW_WITHIN: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Clocks of other machines may be behind.
const BACKDATED: SignedDuration = SignedDuration::from_mins(5);

/// What the server is called: in its certificate, and by its clients.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub hosts: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

impl Names {
    /// What every server is called, with its own addresses and the `kubernetes` Service's.
    pub fn new(domain: &str, service: Option<IpAddr>, own: impl IntoIterator<Item = IpAddr>) -> Names {
        let service_names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(str::to_owned);
        let mut hosts = vec!["localhost".to_owned()];
        hosts.extend(service_names);
        hosts.push(format!("kubernetes.default.svc.{domain}"));
        let loopback: [IpAddr; 2] = [[127, 0, 0, 1].into(), IpAddr::from([0u16, 0, 0, 0, 0, 0, 0, 1])];
        let mut addresses: Vec<IpAddr> = loopback.into_iter().chain(service).chain(own).collect();
        addresses.sort();
        addresses.dedup();
        Names { hosts, addresses }
    }
}

/// A certificate with its key, in PEM.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// The certificates of one cluster.
pub struct Pki {
    ca: Pair,
    serving: Pair,
    admin: Pair,
}

impl Pki {
    /// Reads the certificates from a folder, and makes what is missing, or due.
    pub fn open(folder: &Path, names: &Names, now: Timestamp) -> anyhow::Result<Pki> {
        use std::os::unix::fs::DirBuilderExt;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.with_context(|| format!("making {}", folder.display()))?;
        let ca = kept(folder, "ca", |pair| is_good(pair, now, &Names::default()), || authority(now))?;
        let signed_by = |pair: &Pair| is_signed_by(pair, &ca);
        let serving = kept(
            folder,
            "server",
            |pair| is_good(pair, now, names) && signed_by(pair),
            || {
                let purpose = ExtendedKeyUsagePurpose::ServerAuth;
                signed(&ca, subject("kube-apiserver", &[]), names, purpose, now)
            },
        )?;
        let admin = kept(
            folder,
            "admin",
            |pair| is_good(pair, now, &Names::default()) && signed_by(pair),
            || {
                let purpose = ExtendedKeyUsagePurpose::ClientAuth;
                signed(&ca, subject("kubernetes-admin", &["system:masters"]), &Names::default(), purpose, now)
            },
        )?;
        Ok(Pki { ca, serving, admin })
    }

    /// The CA's certificate, in PEM.
    pub fn authority(&self) -> &str {
        &self.ca.certificate
    }

    /// What signs certificates that others ask for.
    pub fn signer(&self) -> Authority {
        Authority(self.ca.clone())
    }

    /// How the server speaks TLS: its certificate, and client certificates of the same CA, which nobody has to show.
    pub fn server_config(&self) -> anyhow::Result<Arc<rustls::ServerConfig>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca.certificate.as_bytes())?)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .context("the verifier of client certificates")?;
        let chain = vec![CertificateDer::from_pem_slice(self.serving.certificate.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(self.serving.key.as_bytes())?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// A kubeconfig for the administrator.
    pub fn kubeconfig(&self, url: &str) -> String {
        let encode = |pem: &str| STANDARD.encode(pem);
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: podwright\n  cluster:\n    server: {url}\n    \
             certificate-authority-data: {}\nusers:\n- name: podwright-admin\n  user:\n    client-certificate-data: {}\n    \
             client-key-data: {}\ncontexts:\n- name: podwright\n  context:\n    cluster: podwright\n    \
             user: podwright-admin\ncurrent-context: podwright\npreferences: {{}}\n",
            encode(&self.ca.certificate),
            encode(&self.admin.certificate),
            encode(&self.admin.key),
        )
    }
}

/// The cluster's CA, for the requests that it signs.
#[derive(Clone)]
pub struct Authority(Pair);

impl Authority {
    /// A CA of its own, kept nowhere.
    pub fn generate(now: Timestamp) -> anyhow::Result<Authority> {
        authority(now).map(Authority)
    }

    /// Its certificate, in PEM.
    pub fn certificate(&self) -> &str {
        &self.0.certificate
    }

    /// The certificate for a request, both in PEM: with its subject and alternative names, for these usages, for so many
    /// seconds, but not longer than the CA itself lasts.
    pub fn sign(&self, request: &str, usages: &[String], seconds: i64, now: Timestamp) -> anyhow::Result<String> {
        let ca = CertificateDer::from_pem_slice(self.0.certificate.as_bytes())?;
        let (_, ca) = X509Certificate::from_der(&ca).context("the CA")?;
        let left = ca.validity().not_after.timestamp() - now.as_second();
        let mut csr = CertificateSigningRequestParams::from_pem(request).context("the request")?;
        let der = CertificateSigningRequestDer::from_pem_slice(request.as_bytes())?;
        let (_, parsed) = X509CertificationRequest::from_der(&der).context("the request")?;
        let subject = &parsed.certification_request_info.subject;
        if subject.iter_organization().count() > 1 || subject.iter_common_name().count() > 1 {
            return Err(anyhow!("one common name and one organization are all that can be signed"));
        }
        let params = &mut csr.params;
        params.is_ca = IsCa::ExplicitNoCa;
        (params.key_usages, params.extended_key_usages) = purposes(usages)?;
        params.use_authority_key_identifier_extension = true;
        validity(params, now, SignedDuration::from_secs(seconds.min(left)))?;
        let issuer =
            Issuer::from_ca_cert_pem(&self.0.certificate, KeyPair::from_pem(&self.0.key)?).context("the CA")?;
        Ok(csr.signed_by(&issuer)?.pem())
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a certificate authority")
    }
}

/// The usages of a CertificateSigningRequest as X.509 has them.
fn purposes(usages: &[String]) -> anyhow::Result<(Vec<KeyUsagePurpose>, Vec<ExtendedKeyUsagePurpose>)> {
    let (mut key, mut extended) = (Vec::new(), Vec::new());
    for usage in usages {
        match usage.as_str() {
            "digital signature" | "signing" => key.push(KeyUsagePurpose::DigitalSignature),
            "content commitment" => key.push(KeyUsagePurpose::ContentCommitment),
            "key encipherment" => key.push(KeyUsagePurpose::KeyEncipherment),
            "data encipherment" => key.push(KeyUsagePurpose::DataEncipherment),
            "key agreement" => key.push(KeyUsagePurpose::KeyAgreement),
            "client auth" => extended.push(ExtendedKeyUsagePurpose::ClientAuth),
            "server auth" => extended.push(ExtendedKeyUsagePurpose::ServerAuth),
            other => return Err(anyhow!("the usage {other:?} is not signed")),
        }
    }
    Ok((key, extended))
}

/// The user of a client certificate: the subject's common name, and its organizations as groups.
pub fn user_of(certificate: &CertificateDer<'_>) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    (!name.is_empty()).then(|| User::new(name, groups))
}

/// Writes a file that its owner alone may read, all or nothing.
pub fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let write = || {
        let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().with_context(|| format!("writing {}", path.display()))
}

/// The pair that lies in the folder if it is good, or a new one.
fn kept(
    folder: &Path,
    name: &str,
    is_good: impl Fn(&Pair) -> bool,
    make: impl Fn() -> anyhow::Result<Pair>,
) -> anyhow::Result<Pair> {
    let (certificate, key) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
    let read = std::fs::read_to_string(&certificate).and_then(|c| Ok((c, std::fs::read_to_string(&key)?)));
    if let Ok((certificate, key)) = read {
        let pair = Pair { certificate, key };
        if is_good(&pair) {
            return Ok(pair);
        }
        tracing::info!("making the certificate {name} anew");
    }
    let pair = make().with_context(|| format!("making the certificate {name}"))?;
    write_private(&key, &pair.key)?;
    write_private(&certificate, &pair.certificate)?;
    Ok(pair)
}

/// Whether the key is the certificate's, it does not end soon, and has all these names.
fn is_good(pair: &Pair, now: Timestamp, names: &Names) -> bool {
    let check = || {
        let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let key = KeyPair::from_pem(&pair.key).ok()?;
        let ends = Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?;
        let lasts = ends.duration_since(now) > RENEW_WITHIN;
        let fits = certificate.public_key().raw == rcgen::PublicKeyData::subject_public_key_info(&key).as_slice();
        Some(lasts && fits && has_names(&certificate, names))
    };
    check().unwrap_or(false)
}

fn has_names(certificate: &X509Certificate<'_>, names: &Names) -> bool {
    let Ok(extension) = certificate.subject_alternative_name() else { return false };
    let have = extension.map(|e| e.value.general_names.as_slice()).unwrap_or_default();
    let octets = |address: &IpAddr| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let has_host = |host: &String| have.iter().any(|n| matches!(n, GeneralName::DNSName(name) if name == host));
    let has_address =
        |address: &IpAddr| have.iter().any(|n| matches!(n, GeneralName::IPAddress(ip) if *ip == octets(address)));
    names.hosts.iter().all(has_host) && names.addresses.iter().all(has_address)
}

/// Each CA has a name of its own, so the issuer's name tells.
fn is_signed_by(pair: &Pair, ca: &Pair) -> bool {
    let check = || {
        let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).ok()?;
        let ca = CertificateDer::from_pem_slice(ca.certificate.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let (_, ca) = X509Certificate::from_der(&ca).ok()?;
        Some(certificate.issuer() == ca.subject())
    };
    check().unwrap_or(false)
}

fn subject(name: &str, groups: &[&str]) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    // One organization is all that it takes in; more would replace each other.
    if let Some(group) = groups.first() {
        subject.push(DnType::OrganizationName, *group);
    }
    subject.push(DnType::CommonName, name);
    subject
}

fn validity(params: &mut CertificateParams, now: Timestamp, life: SignedDuration) -> anyhow::Result<()> {
    let at = |time: Timestamp| {
        let since_1970 = Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0));
        rcgen::date_time_ymd(1970, 1, 1) + since_1970
    };
    params.not_before = at(now.checked_sub(BACKDATED)?);
    params.not_after = at(now.checked_add(life)?);
    Ok(())
}

fn authority(now: Timestamp) -> anyhow::Result<Pair> {
    let mut params = CertificateParams::default();
    // The name tells one cluster's CA from another's in a client's error.
    params.distinguished_name = subject(&format!("podwright-ca@{}", now.as_second()), &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    validity(&mut params, now, CA_LIFE)?;
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn signed(
    ca: &Pair,
    subject: DistinguishedName,
    names: &Names,
    purpose: ExtendedKeyUsagePurpose,
    now: Timestamp,
) -> anyhow::Result<Pair> {
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, KeyPair::from_pem(&ca.key)?).context("the CA")?;
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    for host in &names.hosts {
        let host = host.as_str().try_into().map_err(|e| anyhow!("{host}: {e}"))?;
        params.subject_alt_names.push(SanType::DnsName(host));
    }
    params.subject_alt_names.extend(names.addresses.iter().copied().map(SanType::IpAddress));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![purpose];
    params.use_authority_key_identifier_extension = true;
    validity(&mut params, now, LIFE)?;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}
