//! How a node joins a cluster and stays in it: it asks for a client certificate with the token that it was given, and for the
//! next one with the one it has, before that ends.
//!
//! The request is a CertificateSigningRequest for the signer `kubernetes.io/kube-apiserver-client-kubelet`; key and
//! certificate are kept in a folder, readable by root alone.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::tls::{Identity, Server};
use super::{Client, rpc};
use crate::api::{Env, Object, Request, Verb, request::Body};
use crate::server::certificates::WAITS;
use crate::server::pki::{Pair, user_of, write_private};

const RESOURCE: &str = "certificatesigningrequests.certificates.k8s.io";
/// How long a request may wait for its certificate, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(200);
/// How often it is looked whether the certificate is due; after a failure.
const EVERY: Duration = Duration::from_secs(600);
const AGAIN: Duration = Duration::from_secs(60);

/// What a node needs to join.
#[derive(Clone, Debug)]
pub struct Joining {
    /// Where its certificate is kept: `client.crt`, `client.key`, `ca.crt`.
    pub folder: PathBuf,
    pub node: String,
    /// `https://HOST:PORT`
    pub url: String,
    /// The cluster's CA; a node that was here before has it.
    pub ca: Option<String>,
    /// A bootstrap token; needed while there is no certificate.
    pub token: Option<String>,
}

/// A node's place in a cluster.
pub struct Membership {
    folder: PathBuf,
    node: String,
    identity: Arc<Identity>,
    server: Server,
    env: Env,
}

impl Membership {
    /// Takes up the certificate in the folder if it still lasts, or asks for one by the token.
    pub async fn open(joining: Joining, env: Env) -> anyhow::Result<Membership> {
        let Joining { folder, node, url, ca, token } = joining;
        make(&folder)?;
        let kept = folder.join("ca.crt");
        let ca = match ca {
            Some(ca) => {
                write_private(&kept, &ca)?;
                ca
            }
            None => fs::read_to_string(&kept).context("--ca-file is needed: this node has not joined yet")?,
        };
        let identity = Arc::new(Identity::default());
        let server = Server::new(&url, &ca, identity.clone(), None).map_err(anyhow::Error::msg)?;
        let member = Membership { folder, node, identity, server, env };
        match member.kept() {
            Some(pair) => member.identity.set(pair.certified()?),
            None => {
                let token =
                    token.ok_or_else(|| anyhow!("--token-file is needed: this node has no certificate that lasts"))?;
                let bearer = Server::new(&url, &ca, Arc::default(), Some(token)).map_err(anyhow::Error::msg)?;
                member.ask(&rpc::over_tls(bearer, "kubelet")).await.context("joining")?;
            }
        }
        Ok(member)
    }

    /// The node's client of the server.
    pub fn client(&self) -> Client {
        rpc::over_tls(self.server.clone(), "kubelet")
    }

    /// `HOST:PORT` of the server.
    pub fn server(&self) -> &str {
        &self.server.authority
    }

    /// Gets the next certificate in time, for as long as it runs.
    pub async fn keep(self) {
        // Nodes that joined together do not all come back at once.
        let spread = self.env.below(1000);
        loop {
            let pause = match self.renew(self.env.now(), spread).await {
                Ok(_) => EVERY,
                Err(why) => {
                    tracing::warn!("the node's certificate cannot be renewed: {why:#}");
                    AGAIN
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Asks for the next certificate if the one there is due then: after 70 to 90 % of its time, by `spread` of 1000.
    pub async fn renew(&self, now: Timestamp, spread: u64) -> anyhow::Result<bool> {
        let (begins, ends) = self.read().context("reading the node's certificate")?.validity()?;
        if now < due(begins, ends, spread) {
            return Ok(false);
        }
        self.ask(&self.client()).await?;
        tracing::info!("the node has a new certificate");
        Ok(true)
    }

    fn paths(&self) -> (PathBuf, PathBuf) {
        (self.folder.join("client.crt"), self.folder.join("client.key"))
    }

    fn read(&self) -> anyhow::Result<Pair> {
        let (certificate, key) = self.paths();
        Ok(Pair { certificate: fs::read_to_string(certificate)?, key: fs::read_to_string(key)? })
    }

    /// The certificate in the folder, if it is this node's and has not ended.
    fn kept(&self) -> Option<Pair> {
        let pair = self.read().ok()?;
        let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).ok()?;
        let (_, ends) = pair.validity().ok()?;
        let is_ours = user_of(&certificate).is_some_and(|user| user.name == format!("system:node:{}", self.node));
        (is_ours && ends > self.env.now() && pair.certified().is_ok()).then_some(pair)
    }

    /// 1. makes a key, 2. asks, 3. waits for the certificate, 4. keeps both, 5. shows it from now on.
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
        let (certificate, key) = self.paths();
        write_private(&key, &pair.key)?;
        write_private(&certificate, &pair.certificate)?;
        self.identity.set(certified);
        Ok(())
    }
}

/// When a certificate should be followed by the next.
fn due(begins: Timestamp, ends: Timestamp, spread: u64) -> Timestamp {
    let life = ends.duration_since(begins).as_secs();
    let share = 700 + i64::try_from(spread.min(1000)).unwrap_or(0) / 5;
    begins.checked_add(SignedDuration::from_secs(life / 1000 * share)).unwrap_or(ends)
}

/// The certificate for a request (PEM), when the cluster has signed it.
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
    let deadline = tokio::time::Instant::now() + PATIENCE;
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
            "the certificate signing request {name} was not approved and signed within {PATIENCE:?}{told}"
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

fn make(folder: &std::path::Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("making {}", folder.display()))
}
