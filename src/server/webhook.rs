//! Calls webhooks: sends a JSON document over HTTPS to a URL or a Service, and receives one. Redirects are errors, and the content
//! of an invalid response is never disclosed: it may come from a place that the caller may not read (CVE-2020-8561). Neither is the
//! reason of a connection failure: it would reveal what listens on the server's own machine to those who configure webhooks.
//!
//! A response counts for the requesting user: its bytes, its decoded size, and its CPU time.
//! <https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#contacting-the-webhook>

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

use super::dial::{self, Purpose};
use super::large::BodySize;
use super::limits::{BodyBytes, Seat, full};
use super::rest::streams::{Dialled, backend_of};
use super::{Server, authorities};
use podwright_api::bounded::Bounded;
use podwright_api::spans::{Span, TRACEPARENT};
use podwright_api::{Status, User};

/// The CAs that count if a configuration names none.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The longest response.
const LONGEST: usize = 3 << 20;
/// The longest head with interim responses.
const MAX_HEAD: usize = 1 << 20;

/// The destination in a `clientConfig`.
struct WebhookTarget {
    uri: Uri,
    /// The namespace, name and port of a Service.
    service: Option<(String, String, u16)>,
}

impl WebhookTarget {
    fn of(config: &Value, timeout: Duration) -> anyhow::Result<WebhookTarget> {
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
            return Ok(WebhookTarget { uri, service: None });
        }
        let service = &config["service"];
        let text = |field: &str| service[field].as_str().unwrap_or("").to_owned();
        let (namespace, name, path) = (text("namespace"), text("name"), text("path"));
        let port = service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
        let path = path.trim_start_matches('/');
        let uri = format!("https://{name}.{namespace}.svc:{port}/{path}?timeout={seconds}s").parse()?;
        Ok(WebhookTarget { uri, service: Some((namespace, name, port)) })
    }

    async fn dial(&self, server: &Server) -> anyhow::Result<Dialled> {
        if let Some((namespace, name, port)) = self.service.clone() {
            let server = server.me.upgrade().ok_or_else(|| anyhow!("the server ends"))?;
            // On a task of its own: Services and endpoints are read, and nested requests need too much stack.
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

/// The public error for an unreachable webhook. Whether a port is open, and its certificate, are only logged.
pub(super) fn unreachable(place: &str, why: impl Display) -> anyhow::Error {
    tracing::warn!(place, %why, "failed to reach a webhook");
    anyhow!("the webhook cannot be reached")
}

/// A response as received.
pub(super) struct Answer {
    bytes: Bytes,
    taken: BodyBytes,
    posted: String,
}

/// A decoded response. It stays charged as long as it is kept.
pub(super) struct Tree {
    pub value: Value,
    /// Its decoded size, in bytes of a request.
    size: usize,
    taken: BodyBytes,
    _place: Option<Seat>,
}

impl Answer {
    /// Decodes it, in the turn of the requesting user. Not within [`super::limits::Away::wait`]: there the request has released its
    /// place.
    pub async fn read(self, server: &Server, user: &User) -> anyhow::Result<Tree> {
        let Answer { bytes, taken, posted } = self;
        let size = BodySize::of_json(&bytes);
        let place = server.large.enter_answer(user, size).await?;
        let parsed = server.large.run(user, size.bytes, async { serde_json::from_slice(&bytes) }).await;
        let value = parsed.context("the answer is no JSON").context(posted)?;
        Ok(Tree { value, size: size.bytes, taken, _place: place })
    }
}

impl Tree {
    /// Drops the tree; the bytes remain charged for what was made of it.
    pub fn leave(self) -> BodyBytes {
        self.taken
    }

    /// Its content, its size for [`super::large::LargeRequests::run`], and its charges.
    pub fn split(self) -> (Value, usize, (BodyBytes, Option<Seat>)) {
        (self.value, self.size, (self.taken, self._place))
    }
}

/// The refusal of the request if its user has no room for the response, regardless of the failure policy.
pub(super) fn refusal(why: &anyhow::Error) -> Option<Status> {
    why.downcast_ref::<Status>().cloned()
}

/// Sends a document to a webhook and receives the response, for a user, with a total time limit. The error names the destination,
/// in upstream's words.
pub(super) async fn call(
    server: &Server,
    user: &User,
    client_config: &Value,
    document: &Value,
    timeout: Duration,
) -> anyhow::Result<Answer> {
    let place = WebhookTarget::of(client_config, timeout)?;
    let exchange = async {
        let stream = place.dial(server).await?;
        let host = place.uri.host().unwrap_or("").trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host.clone())?;
        let tls = tokio_rustls::TlsConnector::from(Arc::new(tls(client_config).await?));
        let stream = tls.connect(name, stream).await.map_err(|why| unreachable(&host, why))?;
        let posted = post(stream, &place.uri, document).await;
        let (answer, _connection) = posted.map_err(|why| unreachable(&host, format!("{why:#}")))?;
        take(answer, server.limiters.bodies.of(user)).await
    };
    let posted = format!("Post \"{}\"", place.uri);
    match tokio::time::timeout(timeout, exchange).await {
        Ok(Ok((bytes, taken))) => Ok(Answer { bytes, taken, posted }),
        Ok(Err(why)) => Err(why.context(posted)),
        Err(_) => Err(anyhow!("context deadline exceeded").context(posted)),
    }
}

/// The CAs that this machine trusts.
pub(super) async fn system_roots() -> anyhow::Result<Vec<u8>> {
    tokio::fs::read(SYSTEM_ROOTS).await.with_context(|| format!("reading {SYSTEM_ROOTS}"))
}

/// The TLS configuration for the webhook's certificate.
async fn tls(client_config: &Value) -> anyhow::Result<rustls::ClientConfig> {
    let pem = match client_config["caBundle"].as_str().filter(|bundle| !bundle.is_empty()) {
        Some(bundle) => STANDARD.decode(bundle).context("caBundle")?,
        None => system_roots().await?,
    };
    authorities::trusting(&pem).context("caBundle")
}

/// Sends a document; returns the response's head, and the connection for its body.
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

async fn take(answer: Response<Incoming>, mut taken: BodyBytes) -> anyhow::Result<(Bytes, BodyBytes)> {
    let status = answer.status();
    if status != StatusCode::OK {
        match status.is_server_error() {
            true => bail!("an error on the server ({status}) has prevented the request from succeeding"),
            false => bail!("the server rejected our request: {status}"),
        }
    }
    let mut body = Limited::new(answer.into_body(), LONGEST);
    let (lost, mut bytes) = (taken.lost(), BytesMut::new());
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = lost.cancelled() => bail!(full()),
        };
        let Some(frame) = frame else { break };
        let Ok(data) = frame.map_err(|why| anyhow!("{why}"))?.into_data() else { continue };
        if !taken.more(data.len()) {
            bail!(full());
        }
        bytes.extend_from_slice(&data);
    }
    taken.whole();
    Ok((bytes.freeze(), taken))
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
