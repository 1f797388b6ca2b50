//! Calling webhooks: a JSON document is sent over HTTPS to a URL or a Service, and one comes back. A redirect is an error, and
//! nothing of an answer that is no answer is told to anyone: it may come from where the caller may not look (CVE-2020-8561). Nor
//! is why nobody answers: whoever may name a webhook would learn what listens on the server's own machine.
//! <https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#contacting-the-webhook>

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

use super::dial::{self, Purpose};
use super::rest::streams::{Dialled, backend_of};
use super::{Server, authorities};
use crate::api::bounded::Bounded;
use crate::api::spans::{Span, TRACEPARENT};

/// Whose signatures count where a configuration names none.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// An answer is no longer than this.
const LONGEST: usize = 3 << 20;
/// Nor is what comes before it: interim answers, the head.
const MAX_HEAD: usize = 1 << 20;

/// Where a webhook is, out of a `clientConfig`.
struct Place {
    uri: Uri,
    /// Namespace, name and port of a Service.
    service: Option<(String, String, u16)>,
}

impl Place {
    fn of(config: &Value, timeout: Duration) -> anyhow::Result<Place> {
        let seconds = timeout.as_secs();
        if let Some(url) = config["url"].as_str() {
            let join = if url.contains('?') { '&' } else { '?' };
            let uri: Uri = url.parse().with_context(|| format!("url {url:?}"))?;
            let path = if uri.path_and_query().is_none_or(|path| path.as_str() == "/") && !url.ends_with('/') {
                "/"
            } else {
                ""
            };
            let uri = format!("{url}{path}{join}timeout={seconds}s").parse().with_context(|| format!("url {url:?}"))?;
            return Ok(Place { uri, service: None });
        }
        let service = &config["service"];
        let text = |field: &str| service[field].as_str().unwrap_or("").to_owned();
        let (namespace, name, path) = (text("namespace"), text("name"), text("path"));
        let port = service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
        let path = path.trim_start_matches('/');
        let uri = format!("https://{name}.{namespace}.svc:{port}/{path}?timeout={seconds}s").parse()?;
        Ok(Place { uri, service: Some((namespace, name, port)) })
    }

    async fn dial(&self, server: &Server) -> anyhow::Result<Dialled> {
        if let Some((namespace, name, port)) = self.service.clone() {
            let server = server.me.upgrade().ok_or_else(|| anyhow!("the server ends"))?;
            // By a task of its own: Services and endpoints are read, and a request within a request takes too much of a stack.
            let dialling = async move {
                let backend = backend_of(&server, &namespace, &name, port).await.map_err(|why| anyhow!(why.message))?;
                let dialled = backend.dial(&server, Purpose::WebhookService, None).await;
                dialled.map_err(|why| unreachable(&backend.address(), why.message))
            };
            let dialling = Span::current().around(dialling);
            return AbortOnDropHandle::new(tokio::spawn(dialling)).await?;
        }
        let host = self.uri.host().ok_or_else(|| anyhow!("the url has no host"))?.trim_matches(['[', ']']);
        let port = self.uri.port_u16().unwrap_or(443);
        let dialled = dial::connect(Purpose::WebhookUrl, host, port).await;
        Ok(Box::new(dialled.map_err(|why| unreachable(host, format!("{why:#}")))?))
    }
}

/// What is told of a webhook that nobody answers for. Whether a port is open, and whose certificate is there, is for the log.
pub(super) fn unreachable(place: &str, why: impl Display) -> anyhow::Error {
    tracing::warn!(place, %why, "a webhook cannot be reached");
    anyhow!("the webhook cannot be reached")
}

/// Sends a document to a webhook and reads its answer, all within a time. The error tells where it was sent, in upstream's
/// words.
pub(super) async fn call(
    server: &Server,
    client_config: &Value,
    document: &Value,
    timeout: Duration,
) -> anyhow::Result<Value> {
    let place = Place::of(client_config, timeout)?;
    let exchange = async {
        let stream = place.dial(server).await?;
        let host = place.uri.host().unwrap_or("").trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host.clone())?;
        let tls = tokio_rustls::TlsConnector::from(Arc::new(tls(client_config).await?));
        let stream = tls.connect(name, stream).await.map_err(|why| unreachable(&host, why))?;
        let posted = post(stream, &place.uri, document).await;
        let (answer, _connection) = posted.map_err(|why| unreachable(&host, format!("{why:#}")))?;
        read(answer).await
    };
    let posted = format!("Post \"{}\"", place.uri);
    match tokio::time::timeout(timeout, exchange).await {
        Ok(answer) => answer.context(posted),
        Err(_) => Err(anyhow!("context deadline exceeded").context(posted)),
    }
}

/// The authorities that this machine trusts.
pub(super) async fn system_roots() -> anyhow::Result<Vec<u8>> {
    tokio::fs::read(SYSTEM_ROOTS).await.with_context(|| format!("reading {SYSTEM_ROOTS}"))
}

/// What the webhook's certificate is checked with.
async fn tls(client_config: &Value) -> anyhow::Result<rustls::ClientConfig> {
    let pem = match client_config["caBundle"].as_str().filter(|bundle| !bundle.is_empty()) {
        Some(bundle) => STANDARD.decode(bundle).context("caBundle")?,
        None => system_roots().await?,
    };
    authorities::trusting(&pem).context("caBundle")
}

/// Sends a document: the head of the answer, and the connection that its body comes by.
async fn post<S>(
    stream: S,
    uri: &Uri,
    document: &Value,
) -> anyhow::Result<(Response<Incoming>, AbortOnDropHandle<hyper::Result<()>>)>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(Bounded::new(stream, MAX_HEAD + LONGEST))).await?;
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let request = Request::post(path)
        .header(header::HOST, host)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json");
    let request = match Span::current().link() {
        Some(link) => request.header(TRACEPARENT, link.traceparent()),
        None => request,
    };
    let answer = sender.send_request(request.body(Full::new(Bytes::from(document.to_string())))?).await?;
    Ok((answer, connection))
}

async fn read(answer: Response<Incoming>) -> anyhow::Result<Value> {
    let status = answer.status();
    if status != StatusCode::OK {
        match status.is_server_error() {
            true => bail!("an error on the server ({status}) has prevented the request from succeeding"),
            false => bail!("the server rejected our request: {status}"),
        }
    }
    let body = Limited::new(answer.into_body(), LONGEST).collect().await.map_err(|why| anyhow!("{why}"))?.to_bytes();
    serde_json::from_slice(&body).context("the answer is no JSON")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, split};

    use super::*;

    #[tokio::test]
    async fn a_webhook_that_has_nothing_but_interim_answers_has_not_answered() {
        let (ours, server) = tokio::io::duplex(64 << 10);
        let (mut from, mut to) = split(server);
        tokio::spawn(async move {
            from.read_exact(&mut [0; 100]).await.unwrap();
            tokio::spawn(async move { while to.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_ok() {} });
            from.read_to_end(&mut Vec::new()).await
        });
        let (uri, document) = (Uri::from_static("https://webhook.test/"), Value::Null);
        let posted = tokio::time::timeout(Duration::from_secs(30), post(ours, &uri, &document)).await;
        let why = format!("{:#}", posted.expect("it ends by itself").map(drop).unwrap_err());
        assert!(why.contains("server response headers exceeded"), "{why}");
    }

    #[tokio::test]
    async fn a_call_that_is_over_leaves_no_connection_to_a_webhook_that_does_not_read() {
        let (ours, mut server) = tokio::io::duplex(512);
        let (uri, document) = (Uri::from_static("https://webhook.test/"), Value::from("d".repeat(4096)));
        let posted = tokio::time::timeout(Duration::from_millis(50), post(ours, &uri, &document)).await;
        posted.map(drop).expect_err("no answer");
        let mut rest = Vec::new();
        let rest = tokio::time::timeout(Duration::from_secs(10), server.read_to_end(&mut rest)).await;
        assert_eq!(rest.expect("the connection is closed").unwrap(), 512);
    }
}
