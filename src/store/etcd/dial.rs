//! The way to one member: without TLS, or by its authorities, who are asked about no longer chain than others' are.

use std::io;
use std::sync::Arc;

use etcd_client::Channel;
use hyper::Uri;
use hyper_util::rt::TokioIo;
use rustls::client::WebPkiServerVerifier;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::Endpoint;

use super::calls::{CONNECT, KEEP_ALIVE, Tls};
use crate::store::Error;

const PORT: u16 = 443;

/// The way to the member at `url`. Nobody is dialled yet; a connection that is lost is made anew.
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
            let dial = move |uri: Uri| {
                let tls = tls.clone();
                async move { dial(&tls, &uri).await.map(TokioIo::new) }
            };
            endpoint.connect_with_connector_lazy(tower::service_fn(dial))
        }
    }))
}

/// What members are checked by, and what is shown to them.
pub fn connector(tls: &Tls) -> Result<TlsConnector, Error> {
    let wrong = |what: &str, why: &dyn std::fmt::Display| Error::Io(format!("etcd: {what}: {why}"));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&tls.authorities) {
        let certificate = certificate.map_err(|why| wrong("the authorities", &why))?;
        roots.add(certificate).map_err(|why| wrong("the authorities", &why))?;
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
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

async fn dial(tls: &TlsConnector, uri: &Uri) -> io::Result<TlsStream<TcpStream>> {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(PORT))).await?;
    // Where this fails, answers come a little later.
    let _ = stream.set_nodelay(true);
    tls.connect(name, stream).await
}
