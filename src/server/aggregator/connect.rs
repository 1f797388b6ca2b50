//! Connections to extension API servers: dialled like webhooks behind Services, over TLS with the front proxy's certificate; the
//! caller is sent in headers, together with the trace span.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, body::Incoming};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::task::AbortOnDropHandle;

use super::table::Remote;
use super::trust;
use crate::dial::Purpose;
use crate::rest::streams::{Dialled, backend_of};
use crate::{Server, authorities, webhook};
use podwright_api::bounded::Bounded;
use podwright_api::spans::{Span, TRACEPARENT};
use podwright_api::{Status, User};

/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The longest head of a response.
const MAX_HEAD: usize = 1 << 20;
/// Responses up to this size are read without waiting for a turn.
const SHORT: usize = 64 << 10;

/// The headers that tell an extension server who the user is; an error if these cannot express the user.
pub fn identity(user: &User) -> anyhow::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    let mut add = |name: &str, value: &str| -> anyhow::Result<()> {
        let name = HeaderName::from_bytes(name.as_bytes())?;
        // A name cannot break out of its header line: invalid values are errors.
        headers.append(name, HeaderValue::from_bytes(value.as_bytes())?);
        Ok(())
    };
    add(trust::USER, &user.name)?;
    if !user.uid.is_empty() {
        add(trust::UID, &user.uid)?;
    }
    for group in &user.groups {
        add(trust::GROUP, group)?;
    }
    for (key, values) in &user.extra {
        for value in values {
            add(&format!("{}{}", trust::EXTRA, escaped(key)), value)?;
        }
    }
    Ok(headers)
}

/// A key as part of a header name; upstream's `headerKeyEscape`.
fn escaped(key: &str) -> String {
    let mut out = String::new();
    for byte in key.bytes() {
        match byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The trace context header for the callee, if a span is recorded.
pub fn trace_header() -> Option<(HeaderName, HeaderValue)> {
    let link = Span::current().link()?;
    Some((HeaderName::from_static(TRACEPARENT), HeaderValue::from_str(&link.traceparent()).ok()?))
}

/// A request, and on whose behalf.
pub(super) struct Fetch<'a> {
    pub method: Method,
    /// With its query.
    pub path: &'a str,
    pub accept: &'static str,
    pub etag: Option<&'a str>,
    /// Its media type, and the bytes.
    pub body: Option<(&'static str, Bytes)>,
    pub user: &'a User,
}

impl<'a> Fetch<'a> {
    pub fn get(path: &'a str, user: &'a User) -> Fetch<'a> {
        Fetch { method: Method::GET, path, accept: "application/json", etag: None, body: None, user }
    }
}

/// A response whose head was received, with the connection for the rest.
pub(super) struct Answer {
    response: Response<Incoming>,
    _connection: AbortOnDropHandle<()>,
}

impl Answer {
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }
    pub fn etag(&self) -> Option<String> {
        self.response.headers().get(header::ETAG)?.to_str().ok().map(str::to_owned)
    }
    /// The values of a header.
    pub fn headers(&self, name: HeaderName) -> impl Iterator<Item = &str> {
        self.response.headers().get_all(name).into_iter().filter_map(|value| value.to_str().ok())
    }
    /// The next chunk of the body; an error if the connection broke.
    pub async fn part(&mut self) -> Option<anyhow::Result<Bytes>> {
        loop {
            match self.response.body_mut().frame().await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) => return Some(Ok(data)),
                    Err(_trailers) => {}
                },
                Err(why) => return Some(Err(why.into())),
            }
        }
    }
    /// The body, of at most this many bytes.
    pub async fn body(self, most: usize) -> anyhow::Result<Bytes> {
        let read = Limited::new(self.response.into_body(), most).collect().await;
        Ok(read.map_err(|why| anyhow!("{why}"))?.to_bytes())
    }
    /// The same; with `turns`, a long body is read while holding a permit, which the caller keeps as long as needed.
    pub async fn body_in_turn(
        mut self,
        most: usize,
        turns: Option<&Semaphore>,
    ) -> anyhow::Result<(Bytes, Option<SemaphorePermit<'_>>)> {
        let (mut body, mut turn) = (BytesMut::new(), None);
        while let Some(part) = self.part().await {
            let part = part?;
            let size = body.len() + part.len();
            ensure!(size <= most, "length limit exceeded");
            if let Some(turns) = turns.filter(|_| turn.is_none() && size > SHORT) {
                turn = Some(turns.acquire().await?);
            }
            body.extend_from_slice(&part);
        }
        Ok((body.freeze(), turn))
    }
}

impl Server {
    /// Opens a connection to an extension server, which is not counted.
    pub(crate) async fn dial_extension(&self, remote: &Remote) -> anyhow::Result<Dialled> {
        let plain = |why: Status| anyhow!(why.message);
        let backend = backend_of(self, &remote.namespace, &remote.service, remote.port).await.map_err(plain)?;
        let stream = backend.dial(self, Purpose::Extension, None).await.map_err(plain)?;
        let tls = tokio_rustls::TlsConnector::from(self.tls_of(remote).await?);
        let name = ServerName::try_from(remote.host())?;
        match tokio::time::timeout(HANDSHAKE, tls.connect(name, stream)).await {
            Ok(secured) => Ok(Box::new(secured.context("tls")?)),
            Err(_) => Err(anyhow!("net/http: TLS handshake timeout")),
        }
    }

    async fn tls_of(&self, remote: &Remote) -> anyhow::Result<Arc<rustls::ClientConfig>> {
        if let Some(made) = remote.tls.get() {
            return Ok(made.clone());
        }
        let mut made = match (&remote.bundle, remote.insecure) {
            (_, true) => authorities::trusting_anyone()?,
            (Some(bundle), false) => authorities::trusting(&STANDARD.decode(bundle).context("caBundle")?)?,
            (None, false) => authorities::trusting(&webhook::system_roots().await?)?,
        };
        if let Some(front_proxy) = &self.config.front_proxy {
            made.client_auth_cert_resolver = front_proxy.certificate();
        }
        Ok(remote.tls.get_or_init(|| Arc::new(made)).clone())
    }

    /// Sends a request to an extension server.
    pub(super) async fn ask_extension(&self, remote: &Remote, asked: &Fetch<'_>) -> anyhow::Result<Answer> {
        let stream = Bounded::new(self.dial_extension(remote).await?, MAX_HEAD);
        let bound = stream.bound();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async move { connection.await.unwrap_or(()) }));
        let mut request = Request::builder()
            .method(asked.method.clone())
            .uri(asked.path)
            .header(header::HOST, remote.authority())
            .header(header::USER_AGENT, "podwright")
            .header(header::ACCEPT, asked.accept);
        if let Some(etag) = asked.etag {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        let body = match &asked.body {
            Some((media_type, body)) => {
                request = request.header(header::CONTENT_TYPE, *media_type);
                body.clone()
            }
            None => Bytes::new(),
        };
        let mut request = request.body(Full::new(body))?;
        request.headers_mut().extend(identity(asked.user)?);
        request.headers_mut().extend(trace_header());
        let response = sender.send_request(request).await?;
        bound.lift();
        Ok(Answer { response, _connection: connection })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_told_in_the_headers_of_a_front_proxy() {
        let mut user = User::new("ann", ["dev", "system:authenticated"]);
        user.uid = "1".into();
        user.extra.insert("example.com/Scopes%".into(), vec!["a".into(), "b".into()]);
        let told = identity(&user).unwrap();
        let all = |name: &str| told.get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!((all("X-Remote-User"), all("X-Remote-Uid")), (vec!["ann"], vec!["1"]));
        assert_eq!(all("X-Remote-Group"), ["dev", "system:authenticated"]);
        assert_eq!(all("X-Remote-Extra-example.com%2Fscopes%25"), ["a", "b"]);
        assert!(identity(&User::new("ann\r\nX-Remote-Group: system:masters", [""; 0])).is_err());
    }

    /// An answer of so many bytes.
    async fn answer(size: usize) -> Answer {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let body = Full::new(Bytes::from(vec![b'x'; size]));
            let served = hyper::service::service_fn(move |_| {
                let body = body.clone();
                async move { Ok::<_, std::convert::Infallible>(Response::new(body)) }
            });
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(theirs), served).await;
        });
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(ours)).await.unwrap();
        let connection = AbortOnDropHandle::new(tokio::spawn(async move { drop(connection.await) }));
        let request = Request::builder().uri("/").header("host", "x").body(Full::<Bytes>::default()).unwrap();
        Answer { response: sender.send_request(request).await.unwrap(), _connection: connection }
    }

    #[tokio::test]
    async fn long_answers_are_read_one_after_the_other() {
        let turns = Semaphore::new(1);
        let (long, short) = (2 * SHORT, SHORT / 2);
        let (body, turn) = answer(long).await.body_in_turn(long, Some(&turns)).await.unwrap();
        assert!(body.len() == long && turn.is_some(), "it keeps its turn until all is made of it");
        let (body, none) = answer(short).await.body_in_turn(long, Some(&turns)).await.unwrap();
        assert!(body.len() == short && none.is_none());
        let (body, none) = answer(long).await.body_in_turn(long, None).await.unwrap();
        assert!(body.len() == long && none.is_none(), "a user's counts elsewhere");
        let mut next = Box::pin(answer(long).await.body_in_turn(long, Some(&turns)));
        let soon = tokio::time::timeout(Duration::from_millis(50), next.as_mut()).await;
        assert!(soon.is_err(), "it waits for its turn");
        drop(turn);
        let (body, turn) = next.await.unwrap();
        assert!(body.len() == long && turn.is_some());
        assert!(answer(long + 1).await.body_in_turn(long, None).await.is_err());
    }
}
