//! HTTP and HTTPS probes and hooks, from inside the node's network, with upstream's handling of redirects.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, Uri, header};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::{address::address, attempt::Attempt, error::ProbeError, verdict::Finding};
use crate::executor::Executor;
use podwright_api::bounded::Bounded;
use podwright_client::Duplex;

/// How much of a response's body is read.
const BODY: usize = 10 << 10;
const REDIRECTS: usize = 10;

/// A request's target.
#[derive(Clone, Debug)]
pub struct Target {
    pub address: SocketAddr,
    pub tls: bool,
    /// Path and query.
    pub path: String,
    pub headers: Vec<(String, String)>,
}

/// A response.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub code: u16,
    pub location: Option<String>,
    pub body: String,
}

impl Target {
    /// The target of a probe or hook.
    ///
    /// # Errors
    ///
    /// As [`address`].
    pub fn of(get: &HTTPGetAction, container: &Container, ips: &[IpAddr]) -> Result<Target, ProbeError> {
        let path = get.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/");
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let headers = get.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect();
        Ok(Target {
            address: address(get.host.as_deref(), &get.port, container, ips)?,
            tls: get.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
            path,
            headers,
        })
    }
    fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
    fn url(&self) -> String {
        format!("{}://{}{}", self.scheme(), self.address, self.path)
    }
}

/// One probe: follows redirects within the host; one to another host is a success with a warning, as upstream. All responses
/// together share one read limit.
pub async fn probe(
    executor: &dyn Executor,
    get: &HTTPGetAction,
    container: &Container,
    ips: &[IpAddr],
    attempt: &Attempt,
) -> Finding {
    let mut target = match Target::of(get, container, ips) {
        Ok(target) => target,
        Err(why) => return Finding::Failure(why.to_string()),
    };
    for _ in 0..=REDIRECTS {
        let answer = match self::get(executor, &target, "kube-probe/1.35", attempt).await {
            Ok(answer) => answer,
            Err(why) => return Finding::Failure(format!("Get \"{}\": {why}", target.url())),
        };
        match (answer.code, answer.location) {
            (300..400, Some(location)) => match redirect(&target, &location) {
                Some(next) => target = next,
                None => return Finding::Warning(format!("Probe terminated redirects, Response body: {}", answer.body)),
            },
            (200..400, _) => return Finding::Success,
            (code, _) => return Finding::Failure(format!("HTTP probe failed with statuscode: {code}")),
        }
    }
    Finding::Failure(format!("Get \"{}\": stopped after {REDIRECTS} redirects", target.url()))
}

/// The target of a redirect; `None`: another host.
pub fn redirect(from: &Target, location: &str) -> Option<Target> {
    let uri: Uri = location.parse().ok()?;
    let path = uri.path_and_query().map_or("/", |p| p.as_str()).to_owned();
    let Some(authority) = uri.authority() else {
        let path = if path.starts_with('/') { path } else { format!("/{path}") };
        return Some(Target { path, ..from.clone() });
    };
    let ip: IpAddr = authority.host().trim_matches(['[', ']']).parse().ok()?;
    let tls = uri.scheme_str() == Some("https");
    let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
    (ip == from.address.ip()).then(|| Target { address: (ip, port).into(), tls, path, headers: from.headers.clone() })
}

/// Sends one GET.
///
/// # Errors
///
/// No request could be sent, or no response was received; any response is a success.
pub async fn get(
    executor: &dyn Executor,
    target: &Target,
    agent: &str,
    attempt: &Attempt,
) -> Result<Answer, ProbeError> {
    let dial = |source| ProbeError::Dial { address: target.address, source };
    exchange(executor.connect(target.address).await.map_err(dial)?, target, agent, attempt).await
}

/// Sends the request over a stream; leaves no task behind.
async fn exchange<S: Duplex + 'static>(
    stream: S,
    target: &Target,
    agent: &str,
    attempt: &Attempt,
) -> Result<Answer, ProbeError> {
    let tcp = Bounded::within(stream, attempt.bound.clone());
    let stream: Box<dyn Duplex> = match target.tls {
        false => Box::new(tcp),
        true => {
            let name = ServerName::IpAddress(target.address.ip().into());
            Box::new(unverified().connect(name, tcp).await.map_err(ProbeError::Tls)?)
        }
    };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(ProbeError::Handshake)?;
    // Ends with this call in any case: otherwise it would wait for a server that does not read.
    let _connection = AbortOnDropHandle::new(tokio::spawn(attempt.cost.clone().of(connection)));
    ask(&mut sender, target, agent).await
}

async fn ask(
    sender: &mut hyper::client::conn::http1::SendRequest<Empty<Bytes>>,
    target: &Target,
    agent: &str,
) -> Result<Answer, ProbeError> {
    let mut request = Request::get(&target.path);
    let given = |name: &str| target.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    for (name, value) in &target.headers {
        request = request.header(name, value);
    }
    let host = target.address.to_string();
    for (name, value) in [("host", host.as_str()), ("user-agent", agent), ("accept", "*/*"), ("connection", "close")] {
        if !given(name) {
            request = request.header(name, value);
        }
    }
    let request = request.body(Empty::new())?;
    let response = sender.send_request(request).await.map_err(ProbeError::Exchange)?;
    let code = response.status().as_u16();
    let location = response.headers().get(header::LOCATION).and_then(|l| l.to_str().ok()).map(str::to_owned);
    let body = Limited::new(response.into_body(), BODY).collect().await;
    let body = body.map(|b| String::from_utf8_lossy(&b.to_bytes()).into_owned()).unwrap_or_default();
    Ok(Answer { code, location, body })
}

/// TLS that accepts any certificate: a probe checks whether a server responds, not its identity.
fn unverified() -> TlsConnector {
    #[derive(Debug)]
    struct Anyone(Arc<rustls::crypto::CryptoProvider>);
    impl ServerCertVerifier for Anyone {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            Ok(ServerCertVerified::assertion())
        }
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    // Invariant: ring supports the default protocol versions.
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("ring speaks TLS 1.2 and 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, split};

    use super::*;

    fn target() -> Target {
        let headers = vec![("filler".to_owned(), "f".repeat(4096))];
        Target { address: ([127, 0, 0, 1], 1).into(), tls: false, path: "/".into(), headers }
    }

    #[tokio::test]
    async fn a_probe_that_is_over_leaves_no_connection_to_a_server_that_does_not_read() {
        let (ours, mut server) = tokio::io::duplex(512);
        let late =
            tokio::time::timeout(Duration::from_millis(50), exchange(ours, &target(), "test", &Attempt::default()))
                .await;
        late.expect_err("nobody answers");
        let mut sent = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(10), server.read_to_end(&mut sent)).await;
        // More would have arrived if the connection were still open.
        assert_eq!(read.expect("the connection is closed").unwrap(), 512);
    }

    #[tokio::test]
    async fn a_server_that_has_nothing_but_interim_answers_fails_the_probe() {
        for interim in ["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n"] {
            let (ours, server) = tokio::io::duplex(64 << 10);
            let (mut from, mut to) = split(server);
            tokio::spawn(async move {
                from.read_exact(&mut [0; 100]).await.unwrap();
                tokio::spawn(async move { while to.write_all(interim.as_bytes()).await.is_ok() {} });
                from.read_to_end(&mut Vec::new()).await
            });
            let target = target();
            let attempt = Attempt::default();
            let asked = exchange(ours, &target, "test", &attempt);
            let asked = tokio::time::timeout(Duration::from_secs(10), asked).await;
            let why = asked.expect("it ends by itself").unwrap_err();
            assert!(matches!(why, ProbeError::Exchange(_)), "{why:?}");
            assert!(why.to_string().contains("exceeded 262144 bytes"), "{why}");
        }
    }

    /// A server that redirects to itself with long heads: one attempt reads no more because of it.
    #[tokio::test]
    async fn all_answers_of_one_try_together_have_the_bound_of_one() {
        let head = format!(
            "HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\nfiller: {}\r\n\r\n",
            "f".repeat(50 << 10)
        );
        let (attempt, target) = (Attempt::default(), target());
        let mut answers = 0;
        let why = loop {
            let (ours, server) = tokio::io::duplex(64 << 10);
            let (mut from, mut to) = split(server);
            let head = head.clone();
            tokio::spawn(async move {
                from.read_exact(&mut [0; 100]).await.unwrap();
                to.write_all(head.as_bytes()).await.ok();
                drop(to);
                from.read_to_end(&mut Vec::new()).await
            });
            match exchange(ours, &target, "test", &attempt).await {
                Ok(answer) => assert_eq!(answer.location.as_deref(), Some("/x")),
                Err(why) => break why.to_string(),
            }
            answers += 1;
        };
        assert_eq!(answers, 5);
        assert!(why.contains("exceeded 262144 bytes"), "{why}");
        assert!(!attempt.cost.so_far().is_zero());
    }
}
