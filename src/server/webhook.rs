//! Calling webhooks: a JSON document is sent over HTTPS to a URL or a Service, and one comes back.
//! <https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#contacting-the-webhook>

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::Server;
use super::rest::streams::{Dialled, dial_service};

/// Whose signatures count where a configuration names none.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// An answer is no longer than this.
const LONGEST: usize = 3 << 20;

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
        if let Some((namespace, name, port)) = &self.service {
            return dial_service(server, namespace, name, *port).await.map_err(|why| anyhow!(why.message));
        }
        let host = self.uri.host().ok_or_else(|| anyhow!("the url has no host"))?.trim_matches(['[', ']']);
        let port = self.uri.port_u16().unwrap_or(443);
        let stream = TcpStream::connect((host, port)).await.with_context(|| format!("dial tcp {host}:{port}"))?;
        Ok(Box::new(stream))
    }
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
        let name = ServerName::try_from(host)?;
        let tls = tokio_rustls::TlsConnector::from(Arc::new(tls(client_config).await?));
        post(tls.connect(name, stream).await?, &place.uri, document).await
    };
    let posted = format!("Post \"{}\"", place.uri);
    match tokio::time::timeout(timeout, exchange).await {
        Ok(answer) => answer.context(posted),
        Err(_) => Err(anyhow!("context deadline exceeded").context(posted)),
    }
}

/// What the webhook's certificate is checked with.
async fn tls(client_config: &Value) -> anyhow::Result<rustls::ClientConfig> {
    let pem = match client_config["caBundle"].as_str().filter(|bundle| !bundle.is_empty()) {
        Some(bundle) => STANDARD.decode(bundle).context("caBundle")?,
        None => tokio::fs::read(SYSTEM_ROOTS).await.with_context(|| format!("reading {SYSTEM_ROOTS}"))?,
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem).flatten() {
        // A bundle may hold what this library cannot read; the others still count.
        let _ = roots.add(certificate);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

async fn post<S>(stream: S, uri: &Uri, document: &Value) -> anyhow::Result<Value>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let request = Request::post(path)
        .header(header::HOST, host)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json");
    let answer = sender.send_request(request.body(Full::new(Bytes::from(document.to_string())))?).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LONGEST).collect().await.map_err(|why| anyhow!("{why}"))?.to_bytes();
    connection.abort();
    if status != StatusCode::OK {
        let text: String = String::from_utf8_lossy(&body).trim().chars().take(200).collect();
        match status.is_server_error() {
            true => bail!("an error on the server ({text:?}) has prevented the request from succeeding"),
            false => bail!("the server rejected our request: {status}: {text}"),
        }
    }
    serde_json::from_slice(&body).context("the answer is no JSON")
}
