//! Discovery: how a machine that knows a server's address, a bootstrap token and the hash of the cluster's authority gets that
//! authority, as kubeadm does.
//!
//! Until it is known who answers, nothing is sent but a question that anybody may ask, and what comes back is read up to a bound,
//! for a bounded time.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::tls::ServerEndpoint;
use podwright_api::bootstrap_token::Token;
use podwright_api::cluster_info::{self, CaHash, ClusterInfo};

/// How long one exchange may take, and how large its answer may be: more than a ConfigMap can be.
const EXCHANGE: Duration = Duration::from_secs(10);
const LARGEST: usize = 2 << 20;
/// The head of an answer.
const HEAD: usize = 64 << 10;
/// How often it is asked again where nobody answers, or the token has not signed yet.
const AGAIN: Duration = Duration::from_secs(1);
/// So many hashes are shown to who gave others.
const SHOWN: usize = 4;

/// What is known of a cluster before anything is.
#[derive(Clone, Debug)]
pub struct Discovery {
    /// `https://HOST:PORT`
    pub url: String,
    pub token: Token,
    /// The authority has one of these.
    pub hashes: Vec<CaHash>,
}

/// Why discovery does not succeed.
enum Failed {
    /// It may do so soon.
    Yet(anyhow::Error),
    Ever(anyhow::Error),
}

impl Discovery {
    /// The cluster's authority, in PEM: 1. what anybody who answers says of the cluster, which counts once the token has signed it;
    /// 2. of the authorities in it those whose hashes were given; 3. the same again, from who has a certificate of theirs.
    ///
    /// # Errors
    /// Nobody answers within `patience`, or the token has not signed what is answered; at once: the signature is of another token, no
    /// authority has one of the hashes, or who answers the second time has no certificate of it or says something else.
    pub async fn authority(&self, patience: Duration) -> anyhow::Result<String> {
        ensure!(!self.hashes.is_empty(), "discovery without the hash of a certificate authority trusts anybody");
        let anybody = ServerEndpoint::unverified(&self.url).map_err(anyhow::Error::msg)?;
        let deadline = Instant::now() + patience;
        let signed = loop {
            match self.signed(&anybody, patience).await {
                Ok(signed) => break signed,
                Err(Failed::Ever(why)) => return Err(why),
                Err(Failed::Yet(why)) if Instant::now() + AGAIN > deadline => {
                    return Err(why.context(format!("nothing better within {patience:?}")));
                }
                Err(Failed::Yet(why)) => tracing::debug!("discovery goes on: {why:#}"),
            }
            sleep(AGAIN).await;
        };
        let authority = pinned(&signed, &self.hashes)?;
        let cluster =
            ServerEndpoint::new(&self.url, &authority, Default::default(), None).map_err(anyhow::Error::msg)?;
        let again =
            ask(&cluster, patience).await.context("asking again, by the certificate authority that was found")?;
        ensure!(
            again.get(cluster_info::KUBECONFIG) == Some(&signed),
            "the second answer of {} differs from the first: cluster-info was changed just now, or somebody is in between",
            self.url
        );
        Ok(authority)
    }

    /// The kubeconfig that the token has signed.
    async fn signed(&self, server: &ServerEndpoint, patience: Duration) -> Result<String, Failed> {
        let mut data = ask(server, patience).await.map_err(Failed::Yet)?;
        let id = self.token.id();
        let kubeconfig = data.remove(cluster_info::KUBECONFIG);
        let kubeconfig = kubeconfig.ok_or_else(|| Failed::Yet(anyhow!("cluster-info has no kubeconfig")))?;
        let Some(signature) = data.get(&format!("{}{id}", cluster_info::SIGNATURE)) else {
            return Err(Failed::Yet(anyhow!(
                "cluster-info is not signed by the token {id:?}: the cluster has no such token, it has expired, or it may not be \
                 used for signing"
            )));
        };
        match self.token.has_signed(&kubeconfig, signature) {
            true => Ok(kubeconfig),
            false => Err(Failed::Ever(anyhow!(
                "the signature of cluster-info by the token {id:?} is invalid: the token's secret is another one, or who answers at \
                 {} is not the cluster",
                self.url
            ))),
        }
    }
}

/// The authorities of a kubeconfig that have one of the hashes, in PEM. Others beside them, which whoever has a token could have
/// signed in, are not trusted.
fn pinned(kubeconfig: &str, hashes: &[CaHash]) -> anyhow::Result<String> {
    let info: ClusterInfo = kubeconfig.parse()?;
    let found = cluster_info::hashes(&info.authority)?;
    let pinned: String =
        found.iter().filter(|(hash, _)| hashes.contains(hash)).map(|(_, it)| cluster_info::pem(it)).collect();
    if pinned.is_empty() {
        let shown: Vec<String> = found.iter().take(SHOWN).map(|(hash, _)| hash.to_string()).collect();
        bail!(
            "the cluster's certificate authority has none of the hashes of --ca-hash, but {}: the hash is of another cluster, or \
             somebody is in between",
            shown.join(", ")
        );
    }
    Ok(pinned)
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

/// What a server answers to who asks for cluster-info without any credentials.
async fn ask(server: &ServerEndpoint, patience: Duration) -> anyhow::Result<BTreeMap<String, String>> {
    let limit = EXCHANGE.min(patience);
    let answered = timeout(limit, exchange(server)).await;
    let bytes = answered.map_err(|_| anyhow!("{} did not answer within {limit:?}", server.authority))??;
    let answer: Answer = serde_json::from_slice(&bytes)
        .with_context(|| format!("{} did not answer with a ConfigMap", server.authority))?;
    Ok(answer.data)
}

async fn exchange(server: &ServerEndpoint) -> anyhow::Result<Bytes> {
    let stream = server.dial().await.with_context(|| format!("connecting to {}", server.authority))?;
    let mut http = hyper::client::conn::http1::Builder::new();
    http.max_buf_size(HEAD);
    let (mut sender, connection) = http.handshake(TokioIo::new(stream)).await?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let path = format!("/api/v1/namespaces/{}/configmaps/{}", cluster_info::NAMESPACE, cluster_info::NAME);
    let request = Request::get(path)
        .header(header::HOST, &server.authority)
        .header(header::ACCEPT, "application/json")
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await.with_context(|| format!("asking {}", server.authority))?;
    let code = response.status();
    ensure!(code == StatusCode::OK, "{} answered {code} to who asks for {}", server.authority, cluster_info::NAME);
    let body = Limited::new(response.into_body(), LARGEST).collect().await;
    let body = body.map_err(|why| anyhow!("the answer of {} ends early or is too large: {why}", server.authority))?;
    Ok(body.to_bytes())
}
