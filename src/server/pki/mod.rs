//! The cluster's own certificates: a CA, with the server's and the administrator's certificates; and a front proxy's CA and
//! certificate, for extension API servers; created here and stored in a directory.
//!
//! A certificate is renewed when it expires within a month, is not valid yet (the clock was wrong when it was created), or lacks
//! one of the server's names: at start-up, and while the server runs ([`Pki::renew`]), which always serves the newest, and restores
//! its files if somebody else has changed them ([`Pki::mend`]). A CA is never renewed, as every node and administrator trusts it:
//! one that is damaged, missing, expired or not valid yet, perhaps by a wrong clock, is refused.

use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use rustls::RootCertStore;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

use podwright_api::User;

mod front_proxy;
mod issue;
mod roots;
mod sign;

pub use front_proxy::{FrontProxy, NAME as FRONT_PROXY_NAME};
use issue::{ADMIN, ISSUED, Issue, PROXY_CLIENT, SERVER, files_of};
use roots::{CLUSTER, FRONT_PROXY};
pub use sign::{Authority, belongs};

const RENEW_WITHIN: SignedDuration = SignedDuration::from_hours(30 * 24);

/// The server's names: in its certificate, and for its clients.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub hosts: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

impl Names {
    /// The standard names, its own addresses, and the `kubernetes` Service's.
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
    /// In rustls' form.
    pub fn certified(&self) -> anyhow::Result<Arc<CertifiedKey>> {
        let chain = vec![CertificateDer::from_pem_slice(self.certificate.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        let key = rustls::crypto::ring::sign::any_supported_type(&key)?;
        Ok(Arc::new(CertifiedKey::new(chain, key)))
    }

    /// The certificate's validity period.
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
    roots: Roots,
    issued: Mutex<[Pair; ISSUED.len()]>,
    serving: Arc<Serving>,
    front_proxy: FrontProxy,
}

/// The CAs.
struct Roots {
    cluster: Pair,
    front_proxy: Pair,
}

impl Roots {
    /// The issuer of a row of the table.
    fn of(&self, issue: &Issue) -> &Pair {
        if issue.root.file == FRONT_PROXY.file { &self.front_proxy } else { &self.cluster }
    }

    fn check_life(&self, now: Timestamp) -> anyhow::Result<()> {
        CLUSTER.check_life(&self.cluster, now)?;
        FRONT_PROXY.check_life(&self.front_proxy, now)
    }
}

/// The certificate for TLS handshakes.
#[derive(Debug)]
struct Serving(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone())
    }
}

/// What a renewal has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    pub serving: bool,
    /// Then the kubeconfig changes, too.
    pub admin: bool,
    pub front_proxy: bool,
}

impl Pki {
    /// Reads the certificates from a directory, and creates what is missing or due: for a cluster that may be new.
    pub fn open(folder: &Path, names: &Names, now: Timestamp) -> anyhow::Result<Pki> {
        Pki::open_of(folder, names, now, false)
    }

    /// The same. `in_use`: the cluster exists already, so its CA must exist.
    pub fn open_of(folder: &Path, names: &Names, now: Timestamp, in_use: bool) -> anyhow::Result<Pki> {
        make(folder)?;
        let cluster = CLUSTER.open(folder, &files_of(&CLUSTER), now, in_use)?;
        // Clusters of earlier releases have none.
        let front_proxy = FRONT_PROXY.open(folder, &files_of(&FRONT_PROXY), now, false)?;
        let roots = Roots { cluster, front_proxy };
        let [serving, admin, proxy] = ISSUED.each_ref().map(|issue| issue.kept(folder, names, roots.of(issue), now));
        let issued = [serving?, admin?, proxy?];
        let serving = Arc::new(Serving(RwLock::new(issued[SERVER].certified()?)));
        let front_proxy = FrontProxy::new(&roots.front_proxy, &issued[PROXY_CLIENT])?;
        let (folder, names, issued) = (folder.to_owned(), names.clone(), Mutex::new(issued));
        Ok(Pki { folder, names, roots, issued, serving, front_proxy })
    }

    /// Renews what is due. New connections use it; open ones continue.
    pub fn renew(&self, now: Timestamp) -> anyhow::Result<Renewed> {
        let mut held = self.issued();
        self.roots.check_life(now)?;
        let mut renewed = [false; ISSUED.len()];
        for (row, issue) in ISSUED.iter().enumerate() {
            let ca = self.roots.of(issue);
            if issue.is_good(&held[row], &self.names, ca, now) {
                continue;
            }
            let new = issue.make(&self.folder, &self.names, ca, now)?;
            match row {
                SERVER => {
                    let certified = new.certified()?;
                    *self.serving.0.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = certified;
                }
                PROXY_CLIENT => self.front_proxy.replace(&new)?,
                _ => {}
            }
            (held[row], renewed[row]) = (new, true);
        }
        let [serving, admin, front_proxy] = renewed;
        Ok(Renewed { serving, admin, front_proxy })
    }

    /// Restores files that somebody else has damaged or removed, and returns their names. Losing them would lose what every node
    /// trusts.
    pub fn mend(&self) -> anyhow::Result<Vec<String>> {
        let held = self.issued();
        let mut mended = Vec::new();
        let roots = [(CLUSTER.file, &self.roots.cluster), (FRONT_PROXY.file, &self.roots.front_proxy)];
        let issued = ISSUED.iter().zip(held.iter()).map(|(issue, pair)| (issue.file, pair));
        for (name, pair) in roots.into_iter().chain(issued) {
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

    fn issued(&self) -> MutexGuard<'_, [Pair; ISSUED.len()]> {
        // Each is replaced as a whole.
        self.issued.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The CA's certificate, in PEM.
    pub fn authority(&self) -> &str {
        &self.roots.cluster.certificate
    }

    /// The client certificate for extension API servers.
    pub fn front_proxy(&self) -> FrontProxy {
        self.front_proxy.clone()
    }

    /// Signs the certificates that others request.
    pub fn signer(&self) -> Authority {
        Authority(self.roots.cluster.clone())
    }

    /// The server's TLS configuration: its certificate, and optional client certificates of the same CA.
    pub fn server_config(&self) -> anyhow::Result<Arc<rustls::ServerConfig>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.roots.cluster.certificate.as_bytes())?)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .context("the verifier of client certificates")?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(podwright_tls::of_clients(verifier))
            .with_cert_resolver(self.serving.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// A kubeconfig for the administrator.
    pub fn kubeconfig(&self, url: &str) -> String {
        let encode = |pem: &str| STANDARD.encode(pem);
        let admin = self.issued()[ADMIN].clone();
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: podwright\n  cluster:\n    server: {url}\n    \
             certificate-authority-data: {}\nusers:\n- name: podwright-admin\n  user:\n    client-certificate-data: {}\n    \
             client-key-data: {}\ncontexts:\n- name: podwright\n  context:\n    cluster: podwright\n    \
             user: podwright-admin\ncurrent-context: podwright\npreferences: {{}}\n",
            encode(&self.roots.cluster.certificate),
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

/// When a certificate expires.
pub fn end_of(certificate: &CertificateDer<'_>) -> Option<Timestamp> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

/// Writes a file that only its owner may read, atomically and durably.
pub fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let write = || {
        // One left by an interrupted writer may have any mode.
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

/// Renames a file written by [`write_private`], replacing the target; durable when this returns.
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
