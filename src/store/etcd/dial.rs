//! Connections to one member: without TLS, or with its CAs, which must not have longer chains than those of other clients.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Channel;
use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::client::WebPkiServerVerifier;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::Endpoint;
use tower::ServiceExt;

use crate::Error;

/// The protocol that both sides must negotiate.
const HTTP_2: &[u8] = b"h2";

const CONNECT: Duration = Duration::from_secs(3);
/// The interval and timeout of keep-alives. (etcd forbids intervals below 5 s.)
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// All in PEM.
#[derive(Clone, Default)]
pub struct Tls {
    /// The CAs of the members' certificates.
    pub authorities: Vec<u8>,
    /// The client's certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Tls {
    /// The key is kept out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// A channel to the member at `url`. It connects lazily, and reconnects.
pub fn channel(url: &str, tls: Option<&TlsConnector>) -> Result<Channel, Error> {
    let wrong = |why| Error::Io(format!("etcd: {url}: {why}"));
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|why| wrong(why.to_string()))?;
    let endpoint = endpoint
        .connect_timeout(CONNECT)
        .keep_alive_while_idle(true)
        .http2_keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1);
    Ok(Channel::Tonic(match tls.cloned() {
        None => endpoint.connect_lazy(),
        Some(tls) => {
            let tcp = tcp();
            let dial = move |uri: Uri| {
                let (tcp, tls) = (tcp.clone(), tls.clone());
                async move { dial(tcp, &tls, uri).await.map(TokioIo::new) }
            };
            endpoint.connect_with_connector_lazy(tower::service_fn(dial))
        }
    }))
}

/// The TLS configuration for members, with the client's certificate.
pub fn connector(tls: &Tls) -> Result<TlsConnector, Error> {
    let wrong = |what: &str, why: &dyn std::fmt::Display| Error::Io(format!("etcd: {what}: {why}"));
    let mut roots = RootCertStore::empty();
    let authorities: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&tls.authorities).collect();
    // Files with many CAs contain some that are unusable; without any usable one the verifier cannot be built.
    let (_, unusable) = roots.add_parsable_certificates(authorities.map_err(|why| wrong("the authorities", &why))?);
    if unusable > 0 {
        tracing::warn!(unusable, "ignoring unusable certificate authorities for etcd");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let verifier = podwright_tls::of_servers(verifier.map_err(|why| wrong("the authorities", &why))?);
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|why| wrong("TLS", &why))?.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((certificates, key)) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
            let chain = chain.map_err(|why| wrong("the client's certificate", &why))?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|why| wrong("the client's key", &why))?;
            builder.with_client_auth_cert(chain, key).map_err(|why| wrong("the client's certificate", &why))?
        }
    };
    config.alpn_protocols = vec![HTTP_2.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Dials all addresses of a name, both families in parallel, sharing the time limit.
fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp
}

async fn dial(tcp: HttpConnector, tls: &TlsConnector, uri: Uri) -> io::Result<TlsStream<TcpStream>> {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let stream = tcp.oneshot(uri).await.map_err(io::Error::other)?.into_inner();
    let stream = tls.connect(name, stream).await?;
    match stream.get_ref().1.alpn_protocol() {
        Some(HTTP_2) => Ok(stream),
        _ => Err(io::Error::other("it does not speak HTTP/2 over TLS (ALPN)")),
    }
}
