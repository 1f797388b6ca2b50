//! Joining a cluster and staying in it: requests a client certificate with the bootstrap token, and later ones with the current
//! certificate, before it expires.
//!
//! The request is a CertificateSigningRequest for the signer `kubernetes.io/kube-apiserver-client-kubelet`; key and certificate are
//! stored in a directory, readable by root only.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::tls::{Identity, ServerEndpoint};
use super::{Client, rpc};
use podwright_api::{Env, Object, Request, Verb, request::Body};
use podwright_server::certificates::WAITS;
use podwright_server::pki::{Pair, belongs, put_in_place, user_of, write_private};

const RESOURCE: &str = "certificatesigningrequests.certificates.k8s.io";
/// The files in a member's directory.
const CERTIFICATE: &str = "client.crt";
const KEY: &str = "client.key";
/// The key of the next certificate, until that is issued.
const NEXT_KEY: &str = "client.key.next";
const CA: &str = "ca.crt";
/// How long a request may wait for its certificate, and the interval of checks.
const TIMEOUT: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(200);
/// The interval of renewal checks; and after a failure.
const EVERY: Duration = Duration::from_secs(600);
const AGAIN: Duration = Duration::from_secs(60);
/// How often to check for changes to the files or the clock by others.
const GLANCE: Duration = Duration::from_secs(2);
/// Slewing of the clock is ignored; in seconds.
const TOLERANCE: u64 = 2;

/// What a node needs to join.
#[derive(Clone, Debug)]
pub struct Joining {
    /// The directory of its certificate: `client.crt`, `client.key`, `ca.crt`.
    pub folder: PathBuf,
    pub node: String,
    /// `https://HOST:PORT`
    pub url: String,
    /// The cluster's CA; a rejoining node has it.
    pub ca: Option<String>,
    /// A bootstrap token; needed while there is no certificate.
    pub token: Option<String>,
}

/// The authority of the cluster that the machine of this folder has joined, in PEM; `None`: it has joined none. Who has joined has a
/// certificate, also an old one: an authority alone is what a join that failed has left, and is not trusted.
///
/// # Errors
/// It is there, and cannot be read.
pub fn kept_authority(folder: &Path) -> anyhow::Result<Option<String>> {
    if !folder.join(CERTIFICATE).exists() {
        return Ok(None);
    }
    let file = folder.join(CA);
    match fs::read_to_string(&file) {
        Ok(text) => Ok(Some(text)),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why).with_context(|| file.display().to_string()),
    }
}

/// The name of the node that the certificate in this folder is of, whether or not it has ended.
pub fn kept_name(folder: &Path) -> Option<String> {
    let text = fs::read(folder.join(CERTIFICATE)).ok()?;
    let certificate = CertificateDer::from_pem_slice(&text).ok()?;
    user_of(&certificate)?.name.strip_prefix("system:node:").map(str::to_owned)
}

/// A node's place in a cluster.
pub struct Membership {
    folder: PathBuf,
    node: String,
    /// The cluster's CA, in PEM.
    ca: String,
    /// The current certificate with its key, equal to the files.
    pair: Mutex<Option<Pair>>,
    identity: Arc<Identity>,
    server: ServerEndpoint,
    /// The server with the token, for use without an accepted certificate.
    by_token: Option<ServerEndpoint>,
    env: Env,
}

impl Membership {
    /// Uses the certificate in the directory if it has not expired, or requests one with the token. One that is not valid yet is
    /// renewed by [`Membership::keep`] once the clock is right.
    pub async fn open(joining: Joining, env: Env) -> anyhow::Result<Membership> {
        let Joining { folder, node, url, ca, token } = joining;
        make(&folder)?;
        let ca = match ca {
            Some(ca) => ca,
            None => {
                kept_authority(&folder)?.context("--ca-hash or --ca-file is needed: this node has not joined yet")?
            }
        };
        let identity = Arc::new(Identity::default());
        let server = ServerEndpoint::new(&url, &ca, identity.clone(), None).map_err(anyhow::Error::msg)?;
        let by_token =
            token.map(|token| ServerEndpoint::new(&url, &ca, Arc::default(), Some(token)).map_err(anyhow::Error::msg));
        let by_token = by_token.transpose()?;
        let member = Membership { folder, node, ca, pair: Mutex::default(), identity, server, by_token, env };
        match member.kept() {
            Some(pair) => {
                member.show(pair)?;
                member.mend()?;
            }
            None => member.ask_by_token().await?,
        }
        Ok(member)
    }

    /// The node's client for the server.
    pub fn client(&self) -> Client {
        rpc::over_tls(self.server.clone(), "kubelet")
    }

    /// The server's `HOST:PORT`.
    pub fn server(&self) -> &str {
        &self.server.authority
    }

    /// Renews the certificate in time, and maintains the files, for as long as it runs.
    pub async fn keep(self) {
        tokio::join!(self.keep_certificate(), self.keep_files());
    }

    async fn keep_certificate(&self) {
        // Spreads the renewals of nodes that joined together.
        let spread = self.env.below(1000);
        // The start time according to the current clock: it differs if the clock was set.
        let start = tokio::time::Instant::now();
        let begin = || self.env.now().as_second().saturating_sub_unsigned(start.elapsed().as_secs());
        loop {
            let (known, pause) = match self.renew(self.env.now(), spread).await {
                Ok(_) => (begin(), EVERY),
                Err(why) => {
                    tracing::warn!("failed to renew the node's certificate: {why:#}");
                    (begin(), AGAIN)
                }
            };
            let looked = tokio::time::Instant::now();
            while looked.elapsed() < pause && begin().abs_diff(known) <= TOLERANCE {
                tokio::time::sleep(GLANCE).await;
            }
        }
    }

    async fn keep_files(&self) {
        loop {
            tokio::time::sleep(GLANCE).await;
            match self.mend() {
                Ok(files) if files.is_empty() => {}
                Ok(files) => tracing::warn!(?files, "rewriting files that were changed by something else"),
                Err(why) => tracing::warn!("failed to rewrite the node's certificate: {why:#}"),
            }
        }
    }

    /// Restores files that somebody else has damaged or removed, and returns their names. Without them the node could not rejoin
    /// after a restart.
    pub fn mend(&self) -> anyhow::Result<Vec<&'static str>> {
        // Held throughout: the next certificate is written before or after.
        let pair = self.pair();
        let Some(pair) = pair.as_ref() else { return Ok(Vec::new()) };
        let wanted = [(CA, &self.ca), (KEY, &pair.key), (CERTIFICATE, &pair.certificate)];
        let is_other = |(name, text): &(&str, &String)| {
            fs::read(self.folder.join(name)).map_or(true, |found| found != text.as_bytes())
        };
        let other: Vec<_> = wanted.into_iter().filter(is_other).collect();
        for (name, text) in &other {
            make(&self.folder)?;
            write_private(&self.folder.join(name), text)?;
        }
        Ok(other.into_iter().map(|(name, _)| name).collect())
    }

    /// Renews a certificate that is due: after 70 to 90 % of its lifetime, by `spread` out of 1000; or before it is valid, which
    /// means that the clock was wrong when it was signed. Uses the certificate itself, or the token if the server does not accept
    /// it.
    pub async fn renew(&self, now: Timestamp, spread: u64) -> anyhow::Result<bool> {
        let shown = self.pair().clone().context("the node has no certificate yet")?;
        let (begins, ends) = shown.validity()?;
        if begins <= now && now < due(begins, ends, spread) {
            return Ok(false);
        }
        if let Err(why) = self.ask(&self.client()).await {
            if begins <= now && now < ends {
                return Err(why);
            }
            tracing::warn!(%begins, %ends, "rejecting the node's certificate: {why:#}");
            self.ask_by_token().await?;
        }
        tracing::info!("renewed the node's certificate");
        Ok(true)
    }

    /// Joins, or rejoins. A node whose name is taken waits for an administrator's approval.
    async fn ask_by_token(&self) -> anyhow::Result<()> {
        let server = self.by_token.clone().context(
            "--token-file is needed: this node has no certificate that lasts. Make a bootstrap token, start the agent with it, and \
             approve the request (podwright certificate approve) where the Node is there already",
        )?;
        self.ask(&rpc::over_tls(server, "kubelet")).await.context("joining")
    }

    fn pair(&self) -> MutexGuard<'_, Option<Pair>> {
        // It is replaced as a whole.
        self.pair.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Uses a certificate from now on.
    fn show(&self, pair: Pair) -> anyhow::Result<()> {
        self.identity.set(pair.certified()?);
        *self.pair() = Some(pair);
        Ok(())
    }

    fn read(&self, key: &str) -> anyhow::Result<Pair> {
        let read = |name: &str| fs::read_to_string(self.folder.join(name));
        Ok(Pair { certificate: read(CERTIFICATE)?, key: read(key)? })
    }

    /// Stores a pair such that a crash leaves a certificate with its key and the authority that has signed it: first that, and the key
    /// beside the previous one, then the certificate, then the key in its place.
    fn write(&self, pair: &Pair) -> anyhow::Result<()> {
        write_private(&self.folder.join(CA), &self.ca)?;
        write_private(&self.folder.join(NEXT_KEY), &pair.key)?;
        write_private(&self.folder.join(CERTIFICATE), &pair.certificate)?;
        self.take_next_key()
    }

    fn take_next_key(&self) -> anyhow::Result<()> {
        put_in_place(&self.folder.join(NEXT_KEY), &self.folder.join(KEY))
    }

    /// The stored certificate, if it is this node's and has not expired.
    fn kept(&self) -> Option<Pair> {
        // The last write may be incomplete.
        let pair = match self.read(NEXT_KEY).ok().filter(belongs) {
            Some(next) => {
                self.take_next_key().inspect_err(|why| tracing::warn!("{why:#}")).ok();
                next
            }
            None => self.read(KEY).ok().filter(belongs)?,
        };
        let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).ok()?;
        let (_, ends) = pair.validity().ok()?;
        let is_ours = user_of(&certificate).is_some_and(|user| user.name == format!("system:node:{}", self.node));
        (is_ours && ends > self.env.now() && pair.certified().is_ok()).then_some(pair)
    }

    /// 1. generates a key, 2. sends the request, 3. waits for the certificate, 4. stores both, 5. uses it from now on.
    async fn ask(&self, client: &Client) -> anyhow::Result<()> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{}", self.node));
        let request = params.serialize_request(&key)?.pem()?;
        let certificate = signed(client, &request).await?;
        let pair = Pair { certificate, key: key.serialize_pem() };
        let certified = pair.certified().context("the certificate that came")?;
        let mut shown = self.pair();
        self.write(&pair)?;
        self.identity.set(certified);
        *shown = Some(pair);
        Ok(())
    }
}

/// When a certificate should be renewed.
fn due(begins: Timestamp, ends: Timestamp, spread: u64) -> Timestamp {
    let life = ends.duration_since(begins).as_secs();
    let share = 700 + i64::try_from(spread.min(1000)).unwrap_or(0) / 5;
    begins.checked_add(SignedDuration::from_secs(life / 1000 * share)).unwrap_or(ends)
}

/// The certificate for a request (PEM), once the cluster has signed it.
async fn signed(client: &Client, request: &str) -> anyhow::Result<String> {
    let csr = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "node-csr-"},
        "spec": {
            "request": STANDARD.encode(request),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
        },
    });
    let resource = RESOURCE.to_owned();
    let create = Request { verb: Verb::Create, resource: resource.clone(), body: Some(csr), ..Request::default() };
    let made = object(client, create).await?;
    let name = Some(made.name().to_owned());
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    let mut told = String::new();
    loop {
        let get = Request { verb: Verb::Get, resource: resource.clone(), name: name.clone(), ..Request::default() };
        let csr = object(client, get).await?;
        if let Some(certificate) = csr.at("status.certificate").and_then(Value::as_str) {
            return Ok(String::from_utf8(STANDARD.decode(certificate)?)?);
        }
        for condition in csr.0["status"]["conditions"].as_array().into_iter().flatten() {
            if let Some(how @ ("Denied" | "Failed")) = condition["type"].as_str() {
                bail!("the certificate signing request {}: {how}: {}", csr.name(), condition["message"]);
            }
        }
        let name = csr.name();
        if let Some(why) = csr.annotation(WAITS).filter(|_| told.is_empty()) {
            tracing::warn!("the certificate signing request {name} waits for an administrator: {why}");
            told = format!(": it waits for an administrator: {why}");
        }
        ensure!(
            tokio::time::Instant::now() < deadline,
            "the certificate signing request {name} was not approved and signed within {TIMEOUT:?}{told}"
        );
        tokio::time::sleep(LOOK).await;
    }
}

async fn object(client: &Client, request: Request) -> anyhow::Result<Object> {
    match client.call(request).await.map_err(|status| anyhow!("{status}"))?.body {
        Body::Object { bytes, .. } => Object::from_slice(&bytes).map_err(|status| anyhow!("{status}")),
        _ => bail!("the server did not answer with an object"),
    }
}

fn make(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("making {}", folder.display()))
}
