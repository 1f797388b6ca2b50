//! The cluster's own certificates: a CA, the server's certificate, the administrator's; a front proxy's CA and certificate, for
//! extension API servers; made here, kept in a folder.
//!
//! A certificate that ends within a month, has not begun (the clock was wrong when it was made), or no longer names all that the
//! server is called, is made anew: at the start, and while the server runs ([`Pki::renew`]), which goes on answering with whatever
//! is the newest. A CA is not: every node and administrator trusts it, so one that is damaged, or has ended by a clock that may
//! be wrong, is refused.

use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use rcgen::{ExtendedKeyUsagePurpose, KeyPair};
use rustls::RootCertStore;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::api::User;

mod front_proxy;
mod sign;

pub use front_proxy::{FrontProxy, NAME as FRONT_PROXY_NAME};
pub use sign::Authority;
use sign::{authority, signed, subject};

const RENEW_WITHIN: SignedDuration = SignedDuration::from_hours(30 * 24);

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

impl Pair {
    /// As rustls wants it.
    pub fn certified(&self) -> anyhow::Result<Arc<CertifiedKey>> {
        let chain = vec![CertificateDer::from_pem_slice(self.certificate.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        let key = rustls::crypto::ring::sign::any_supported_type(&key)?;
        Ok(Arc::new(CertifiedKey::new(chain, key)))
    }

    /// When the certificate begins and ends.
    pub fn validity(&self) -> anyhow::Result<(Timestamp, Timestamp)> {
        let der = CertificateDer::from_pem_slice(self.certificate.as_bytes())?;
        let (_, certificate) = X509Certificate::from_der(&der)?;
        let at = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp());
        Ok((at(certificate.validity().not_before)?, at(certificate.validity().not_after)?))
    }
}

/// The certificates of one cluster.
pub struct Pki {
    folder: PathBuf,
    names: Names,
    ca: Pair,
    front_proxy_ca: Pair,
    front_proxy: FrontProxy,
    issued: Mutex<Issued>,
    serving: Arc<Serving>,
}

/// What the CAs have signed, as it is now.
struct Issued {
    serving: Pair,
    admin: Pair,
    front_proxy: Pair,
}

/// The certificate that handshakes are answered with.
#[derive(Debug)]
struct Serving(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone())
    }
}

/// What a look at the certificates has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    pub serving: bool,
    /// Then the kubeconfig is another.
    pub admin: bool,
    pub front_proxy: bool,
}

impl Pki {
    /// Reads the certificates from a folder, and makes what is missing, or due.
    pub fn open(folder: &Path, names: &Names, now: Timestamp) -> anyhow::Result<Pki> {
        use std::os::unix::fs::DirBuilderExt;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.with_context(|| format!("making {}", folder.display()))?;
        let front_proxy_ca = ca(folder, &FRONT_PROXY, now)?;
        let ca = ca(folder, &CLUSTER, now)?;
        let issued = issued(folder, names, (&ca, &front_proxy_ca), now)?;
        let serving = Arc::new(Serving(RwLock::new(issued.serving.certified()?)));
        let front_proxy = FrontProxy::new(&front_proxy_ca, &issued.front_proxy)?;
        let (folder, names, issued) = (folder.to_owned(), names.clone(), Mutex::new(issued));
        Ok(Pki { folder, names, ca, front_proxy_ca, front_proxy, issued, serving })
    }

    /// Makes anew what is due. Connections that begin from now on see it; those that are open go on.
    pub fn renew(&self, now: Timestamp) -> anyhow::Result<Renewed> {
        let mut held = self.issued();
        let new = issued(&self.folder, &self.names, (&self.ca, &self.front_proxy_ca), now)?;
        let other = |old: &Pair, new: &Pair| old.certificate != new.certificate;
        let renewed = Renewed {
            serving: other(&held.serving, &new.serving),
            admin: other(&held.admin, &new.admin),
            front_proxy: other(&held.front_proxy, &new.front_proxy),
        };
        if renewed.front_proxy {
            self.front_proxy.replace(&new.front_proxy)?;
        }
        if renewed.serving {
            let certified = new.serving.certified()?;
            *self.serving.0.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = certified;
        }
        *held = new;
        Ok(renewed)
    }

    fn issued(&self) -> MutexGuard<'_, Issued> {
        // It is replaced as a whole.
        self.issued.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The CA's certificate, in PEM.
    pub fn authority(&self) -> &str {
        &self.ca.certificate
    }

    /// What the server shows to extension API servers.
    pub fn front_proxy(&self) -> FrontProxy {
        self.front_proxy.clone()
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
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(self.serving.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// A kubeconfig for the administrator.
    pub fn kubeconfig(&self, url: &str) -> String {
        let encode = |pem: &str| STANDARD.encode(pem);
        let admin = self.issued().admin.clone();
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: podwright\n  cluster:\n    server: {url}\n    \
             certificate-authority-data: {}\nusers:\n- name: podwright-admin\n  user:\n    client-certificate-data: {}\n    \
             client-key-data: {}\ncontexts:\n- name: podwright\n  context:\n    cluster: podwright\n    \
             user: podwright-admin\ncurrent-context: podwright\npreferences: {{}}\n",
            encode(&self.ca.certificate),
            encode(&admin.certificate),
            encode(&admin.key),
        )
    }
}

/// The user of a client certificate: the subject's common name, and its organizations as groups.
pub fn user_of(certificate: &CertificateDer<'_>) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    (!name.is_empty()).then(|| User::new(name, groups))
}

/// When a certificate ends.
pub fn end_of(certificate: &CertificateDer<'_>) -> Option<Timestamp> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

/// Writes a file that its owner alone may read, all or nothing; it is on the disk when this returns.
pub fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let write = || {
        // One that an interrupted writer has left may be of any mode.
        match std::fs::remove_file(&temporary) {
            Err(why) if why.kind() != std::io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        path.parent().map_or(Ok(()), |folder| std::fs::File::open(folder)?.sync_all())
    };
    write().with_context(|| format!("writing {}", path.display()))
}

/// Gives a file that [`write_private`] has written its name, in place of whatever has it; it is on the disk when this returns.
pub fn put_in_place(from: &Path, to: &Path) -> anyhow::Result<()> {
    let put = || {
        std::fs::rename(from, to)?;
        to.parent().map_or(Ok(()), |folder| std::fs::File::open(folder)?.sync_all())
    };
    put().with_context(|| format!("renaming {} to {}", from.display(), to.display()))
}

/// A CA: the name of its files, its own name, the names of what it signs here, and what whoever has lost it is told.
struct Root {
    file: &'static str,
    subject: &'static str,
    called: &'static str,
    signs: &'static [&'static str],
    advice: fn(&std::path::Display<'_>) -> String,
}

const CLUSTER: Root = Root {
    file: "ca",
    subject: "podwright-ca",
    called: "the cluster's CA",
    signs: &["server.crt", "server.key"],
    advice: |folder| {
        format!(
            "All certificates of nodes and administrators rest on it: put ca.crt and ca.key back from a backup. To begin with \
             another CA instead, remove the folder {folder}: all nodes have to join again then"
        )
    },
};

const FRONT_PROXY: Root = Root {
    file: "front-proxy-ca",
    subject: "podwright-front-proxy-ca",
    called: "the front proxy's CA",
    signs: &["front-proxy-client.crt", "front-proxy-client.key"],
    advice: |folder| {
        format!(
            "Extension API servers know this server by it: put front-proxy-ca.crt and front-proxy-ca.key back from a backup. To \
             begin with another one instead, remove all files front-proxy-* in {folder}: those servers are told of it"
        )
    },
};

/// The CA that lies in the folder; a new one where there has never been any.
fn ca(folder: &Path, root: &Root, now: Timestamp) -> anyhow::Result<Pair> {
    let Root { file, called, .. } = root;
    let (crt, key) = (format!("{file}.crt"), format!("{file}.key"));
    let read = |name: &str| match std::fs::read_to_string(folder.join(name)) {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some).with_context(|| format!("reading {}", folder.join(name).display())),
    };
    let unusable = |why: String| {
        let shown = folder.display();
        anyhow::anyhow!("{called} in {shown} cannot be used: {why}. {}", (root.advice)(&shown))
    };
    let pair = match (read(&crt)?, read(&key)?) {
        (Some(certificate), Some(key)) => Pair { certificate, key },
        // The key is written first: a first start may have been interrupted in between.
        (None, _) if !root.signs.iter().any(|name| folder.join(name).exists()) => {
            let pair = authority(root.subject, now).with_context(|| format!("making {called}"))?;
            write_private(&folder.join(&key), &pair.key)?;
            write_private(&folder.join(&crt), &pair.certificate)?;
            return Ok(pair);
        }
        (None, _) => return Err(unusable(format!("{crt} is missing"))),
        (_, None) => return Err(unusable(format!("{key} is missing"))),
    };
    if !belongs(&pair) {
        return Err(unusable(format!("{crt} or {key} is damaged, or they do not belong together")));
    }
    let (begins, ends) = pair.validity()?;
    if ends <= now {
        return Err(unusable(format!(
            "it has ended on {ends}, if the clock is right, which says {now}. If not, set the clock"
        )));
    }
    if now < begins {
        tracing::warn!(%begins, %now, "{called} has not begun: the clock is wrong, or was when it was made");
    }
    if ends.duration_since(now) < RENEW_WITHIN {
        tracing::warn!(%ends, "{called} ends soon");
    }
    Ok(pair)
}

/// The certificates that lie in the folder as far as they are good, or new ones.
fn issued(folder: &Path, names: &Names, (ca, front): (&Pair, &Pair), now: Timestamp) -> anyhow::Result<Issued> {
    for (root, pair) in [(&CLUSTER, ca), (&FRONT_PROXY, front)] {
        let (called, ends) = (root.called, pair.validity()?.1);
        anyhow::ensure!(now < ends, "{called} has ended on {ends}, if the clock is right, which says {now}");
    }
    let none = Names::default();
    let server = subject("kube-apiserver", &[]);
    let serving = kept(
        folder,
        "server",
        |pair| is_good(pair, now, names) && is_signed_by(pair, ca),
        || signed(ca, server.clone(), names, ExtendedKeyUsagePurpose::ServerAuth, now),
    )?;
    let administrator = subject("kubernetes-admin", &["system:masters"]);
    let admin = kept(
        folder,
        "admin",
        |pair| is_good(pair, now, &none) && is_signed_by(pair, ca),
        || signed(ca, administrator.clone(), &none, ExtendedKeyUsagePurpose::ClientAuth, now),
    )?;
    let front_proxy = kept(
        folder,
        front_proxy::NAME,
        |pair| is_good(pair, now, &none) && is_signed_by(pair, front),
        || front_proxy::client(front, now),
    )?;
    Ok(Issued { serving, admin, front_proxy })
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

/// Whether the key is the certificate's, it has begun and does not end soon, and has all these names.
fn is_good(pair: &Pair, now: Timestamp, names: &Names) -> bool {
    let check = || {
        let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let (begins, ends) = pair.validity().ok()?;
        Some(begins <= now && ends.duration_since(now) > RENEW_WITHIN && has_names(&certificate, names))
    };
    belongs(pair) && check().unwrap_or(false)
}

/// Whether both can be read, and the key is the certificate's.
pub fn belongs(pair: &Pair) -> bool {
    let check = || {
        let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let key = KeyPair::from_pem(&pair.key).ok()?;
        Some(certificate.public_key().raw == rcgen::PublicKeyData::subject_public_key_info(&key).as_slice())
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
