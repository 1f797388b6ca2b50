//! The cluster's own certificates: a CA, the server's certificate, the administrator's; made here, kept in a folder.
//!
//! A certificate that ends within a month, has not begun (the clock was wrong when it was made), or no longer names all that the
//! server is called, is made anew: at the start, and while the server runs ([`Pki::renew`]), which goes on answering with whatever
//! is the newest, and writes its files again where somebody else has changed them ([`Pki::mend`]). The CA is not made anew: every
//! node and administrator trusts it, so one that is damaged or missing, or that has ended or not begun by a clock that may be wrong,
//! is refused.

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

mod sign;

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
    issued: Mutex<Issued>,
    serving: Arc<Serving>,
}

/// What the CA has signed, as it is now.
struct Issued {
    serving: Pair,
    admin: Pair,
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
}

impl Pki {
    /// Reads the certificates from a folder, and makes what is missing, or due: for a cluster that may be new.
    pub fn open(folder: &Path, names: &Names, now: Timestamp) -> anyhow::Result<Pki> {
        Pki::open_of(folder, names, now, false)
    }

    /// The same. `in_use`: there is a cluster already, so there has been a CA.
    pub fn open_of(folder: &Path, names: &Names, now: Timestamp, in_use: bool) -> anyhow::Result<Pki> {
        make(folder)?;
        let ca = ca(folder, now, in_use)?;
        let [serving, admin] = ISSUED.each_ref().map(|issue| issue.kept(folder, names, &ca, now));
        let issued = Issued { serving: serving?, admin: admin? };
        let serving = Arc::new(Serving(RwLock::new(issued.serving.certified()?)));
        Ok(Pki { folder: folder.to_owned(), names: names.clone(), ca, issued: Mutex::new(issued), serving })
    }

    /// Makes anew what is due. Connections that begin from now on see it; those that are open go on.
    pub fn renew(&self, now: Timestamp) -> anyhow::Result<Renewed> {
        let mut held = self.issued();
        let mut renewed = Renewed::default();
        check_life(&self.ca, now)?;
        if !ISSUED[0].is_good(&held.serving, &self.names, &self.ca, now) {
            let new = ISSUED[0].make(&self.folder, &self.names, &self.ca, now)?;
            let certified = new.certified()?;
            *self.serving.0.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = certified;
            (held.serving, renewed.serving) = (new, true);
        }
        if !ISSUED[1].is_good(&held.admin, &self.names, &self.ca, now) {
            (held.admin, renewed.admin) = (ISSUED[1].make(&self.folder, &self.names, &self.ca, now)?, true);
        }
        Ok(renewed)
    }

    /// Writes those files again that somebody else has damaged or removed: which. With them goes what every node trusts.
    pub fn mend(&self) -> anyhow::Result<Vec<String>> {
        let held = self.issued();
        let mut mended = Vec::new();
        for (name, pair) in [("ca", &self.ca), ("server", &held.serving), ("admin", &held.admin)] {
            for (end, text) in [("key", &pair.key), ("crt", &pair.certificate)] {
                let path = self.folder.join(format!("{name}.{end}"));
                if std::fs::read(&path).is_ok_and(|found| found == text.as_bytes()) {
                    continue;
                }
                make(&self.folder)?;
                write_private(&path, text)?;
                mended.push(path.display().to_string());
            }
        }
        Ok(mended)
    }

    fn issued(&self) -> MutexGuard<'_, Issued> {
        // It is replaced as a whole.
        self.issued.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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

fn make(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("making {}", folder.display()))
}

/// Lies in the folder while a CA is being made: so a first start that was interrupted is told from a CA that is lost. Whoever wants
/// another CA puts it there.
const MAKING: &str = "ca.new";

/// The CA that lies in the folder; a new one where there has never been any.
fn ca(folder: &Path, now: Timestamp, in_use: bool) -> anyhow::Result<Pair> {
    let read = |name: &str| match std::fs::read_to_string(folder.join(name)) {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some).with_context(|| format!("reading {}", folder.join(name).display())),
    };
    let shown = folder.display();
    let making = folder.join(MAKING);
    let (certificate, key) = (read("ca.crt")?, read("ca.key")?);
    let is_new = || !in_use && ISSUED.iter().flat_map(Issue::files).all(|file| !folder.join(file).exists());
    let pair = match (certificate, key) {
        (Some(certificate), Some(key)) => Pair { certificate, key },
        (certificate, key) if making.exists() || certificate.is_none() && key.is_none() && is_new() => {
            let pair = authority(now).context("making the CA")?;
            write_private(&making, "")?;
            write_private(&folder.join("ca.key"), &pair.key)?;
            write_private(&folder.join("ca.crt"), &pair.certificate)?;
            pair
        }
        (certificate, key) => {
            let missing = [(certificate, "ca.crt"), (key, "ca.key")].into_iter().filter(|(text, _)| text.is_none());
            let missing: Vec<&str> = missing.map(|(_, name)| name).collect();
            return Err(unusable(&format!("{} missing, and it has been in use", missing.join(" and ")), folder));
        }
    };
    if !belongs(&pair) {
        return Err(unusable("ca.crt or ca.key is damaged, or they do not belong together", folder));
    }
    check_life(&pair, now).map_err(|why| unusable(&why.to_string(), folder))?;
    match std::fs::remove_file(&making) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
            return Err(why).with_context(|| format!("removing {MAKING} from {shown}"));
        }
        _ => {}
    }
    let ends = pair.validity()?.1;
    if ends.duration_since(now) < RENEW_WITHIN {
        tracing::warn!(%ends, "the cluster's CA ends soon");
    }
    Ok(pair)
}

fn unusable(why: &str, folder: &Path) -> anyhow::Error {
    let shown = folder.display();
    anyhow::anyhow!(
        "the cluster's CA in {shown} cannot be used: {why}. All certificates of nodes and administrators rest on it: put ca.crt and \
         ca.key back from a backup. To begin with another CA instead, empty the folder {shown} and put an empty file {MAKING} \
         into it: all nodes have to join again then"
    )
}

/// Errors: by this clock the CA has ended, or has not begun.
fn check_life(ca: &Pair, now: Timestamp) -> anyhow::Result<()> {
    let (begins, ends) = ca.validity()?;
    let clock = format!("if the clock is right, which says {now}. If not, set the clock");
    anyhow::ensure!(now < ends, "it has ended on {ends}, {clock}");
    anyhow::ensure!(begins <= now, "it begins on {begins}, {clock}");
    Ok(())
}

/// What the CA signs for the cluster itself.
struct Issue {
    file: &'static str,
    user: &'static str,
    groups: &'static [&'static str],
    /// Whether the certificate has the server's names.
    named: bool,
    purpose: ExtendedKeyUsagePurpose,
}

const ISSUED: [Issue; 2] = [
    Issue {
        file: "server",
        user: "kube-apiserver",
        groups: &[],
        named: true,
        purpose: ExtendedKeyUsagePurpose::ServerAuth,
    },
    Issue {
        file: "admin",
        user: "kubernetes-admin",
        groups: &["system:masters"],
        named: false,
        purpose: ExtendedKeyUsagePurpose::ClientAuth,
    },
];

impl Issue {
    fn files(&self) -> [String; 2] {
        ["crt", "key"].map(|end| format!("{}.{end}", self.file))
    }

    fn names<'a>(&self, names: &'a Names, none: &'a Names) -> &'a Names {
        if self.named { names } else { none }
    }

    fn is_good(&self, pair: &Pair, names: &Names, ca: &Pair, now: Timestamp) -> bool {
        is_good(pair, now, self.names(names, &Names::default())) && is_signed_by(pair, ca)
    }

    /// The pair that lies in the folder if it is good, or a new one.
    fn kept(&self, folder: &Path, names: &Names, ca: &Pair, now: Timestamp) -> anyhow::Result<Pair> {
        let [certificate, key] = self.files().map(|file| std::fs::read_to_string(folder.join(file)));
        if let (Ok(certificate), Ok(key)) = (certificate, key) {
            let pair = Pair { certificate, key };
            if self.is_good(&pair, names, ca, now) {
                return Ok(pair);
            }
        }
        self.make(folder, names, ca, now)
    }

    fn make(&self, folder: &Path, names: &Names, ca: &Pair, now: Timestamp) -> anyhow::Result<Pair> {
        tracing::info!("making the certificate {}", self.file);
        let none = Names::default();
        let subject = subject(self.user, self.groups);
        let pair = signed(ca, subject, self.names(names, &none), self.purpose.clone(), now)
            .with_context(|| format!("making the certificate {}", self.file))?;
        let [certificate, key] = self.files();
        make(folder)?;
        write_private(&folder.join(key), &pair.key)?;
        write_private(&folder.join(certificate), &pair.certificate)?;
        Ok(pair)
    }
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
