//! An HTTPS server of somebody else, on loopback.

use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::TcpListener;

/// It ends when dropped.
pub struct Https {
    pub port: u16,
    /// Its certificate in PEM, signed by itself, for `localhost`, `127.0.0.1` and `hook.default.svc`.
    pub ca: String,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Https {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Https {
    pub async fn start<F>(answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static) -> Https
    where
        F: Future<Output = Result<Response<Full<Bytes>>, hyper::Error>> + Send + 'static,
    {
        let names = ["localhost", "127.0.0.1", "hook.default.svc"].map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = builder.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, answer) = (acceptor.clone(), answer.clone());
                tokio::spawn(async move {
                    // Who does not trust us hangs up.
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let serve = service_fn(answer);
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), serve).await.ok();
                });
            }
        });
        Https { port, ca: made.cert.pem(), task }
    }
}
