//! Connections to a remote server: TLS with the cluster's CA, and a node's client certificate or its bootstrap token.

use std::io;
use std::sync::{Arc, RwLock};

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Stream;

const PORT: u16 = 6443;

/// The current client certificate; none at first. It may be replaced at any time: new connections use the new one.
#[derive(Debug, Default)]
pub struct Identity(RwLock<Option<Arc<CertifiedKey>>>);

impl Identity {
    pub fn set(&self, certificate: Arc<CertifiedKey>) {
        *self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(certificate);
    }
    fn get(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

/// Provides an identity to TLS handshakes.
#[derive(Debug)]
struct Shown(Arc<Identity>);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.get()
    }
    fn has_certs(&self) -> bool {
        self.0.get().is_some()
    }
}

/// A server, and the client's credentials.
#[derive(Clone)]
pub struct ServerEndpoint {
    /// `HOST:PORT`, as it is dialled.
    pub authority: String,
    name: ServerName<'static>,
    connector: TlsConnector,
    /// A token for clients without a certificate yet.
    pub bearer: Option<String>,
}

impl ServerEndpoint {
    /// The server at `https://HOST[:PORT]`, which must have a certificate from this CA (PEM).
    pub fn new(url: &str, ca: &str, identity: Arc<Identity>, bearer: Option<String>) -> Result<ServerEndpoint, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
            let certificate = certificate.map_err(|why| format!("the CA: {why}"))?;
            roots.add(certificate).map_err(|why| format!("the CA: {why}"))?;
        }
        if roots.is_empty() {
            return Err("the CA: there is no certificate in it".into());
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.map_err(|why| format!("the CA: {why}"))?;
        ServerEndpoint::verified_by(url, verifier, identity, bearer)
    }

    /// Whoever answers at `https://HOST[:PORT]`: for a question that needs no secret, whose answer proves itself.
    pub(super) fn unverified(url: &str) -> Result<ServerEndpoint, String> {
        ServerEndpoint::verified_by(url, podwright_tls::anybody(), Arc::default(), None)
    }

    fn verified_by(
        url: &str,
        verifier: Arc<dyn ServerCertVerifier>,
        identity: Arc<Identity>,
        bearer: Option<String>,
    ) -> Result<ServerEndpoint, String> {
        let (authority, host) = parse(url).ok_or_else(|| format!("{url:?}: expected https://HOST:PORT"))?;
        let name = ServerName::try_from(host.clone()).map_err(|_| format!("{url:?}: {host:?} is no name of a host"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = podwright_tls::of_servers(verifier);
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|why| why.to_string())?.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = builder.with_client_cert_resolver(Arc::new(Shown(identity)));
        // WebSockets and streams start as HTTP/1.1.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(ServerEndpoint { authority, name, connector: TlsConnector::from(Arc::new(config)), bearer })
    }

    pub(super) async fn dial(&self) -> io::Result<Stream> {
        let stream = TcpStream::connect(&self.authority).await?;
        // If this fails, responses are a little late.
        let _ = stream.set_nodelay(true);
        Ok(Box::new(self.connector.connect(self.name.clone(), stream).await?))
    }
}

/// The `HOST:PORT` and `HOST` of a URL.
fn parse(url: &str) -> Option<(String, String)> {
    let rest = url.strip_prefix("https://")?.trim_end_matches('/');
    let (host, port) = match rest.strip_prefix('[') {
        Some(v6) => {
            let (host, port) = v6.split_once(']')?;
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        None => rest.split_once(':').unwrap_or((rest, "")),
    };
    let port = if port.is_empty() { PORT } else { port.parse().ok()? };
    let is_word = !host.is_empty() && !host.contains(['/', '@', '?', '#']);
    let shown = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    is_word.then(|| (format!("{shown}:{port}"), host.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
    use rustls::ServerConfig;
    use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

    use super::*;

    /// A certificate of a CA, or an unrelated one, with the same common name.
    fn certificate(is_ca: IsCa) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "same");
        params.is_ca = is_ca;
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap(), key)
    }

    #[tokio::test]
    async fn a_server_that_shows_ten_authorities_of_one_name_is_refused() {
        let authority = || certificate(IsCa::Ca(BasicConstraints::Unconstrained)).0;
        let (own, key) = certificate(IsCa::NoCa);
        let mut shown = vec![own.der().clone()];
        shown.extend((0..10).map(|_| authority().der().clone()));
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(shown, key).unwrap();
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let server = ServerEndpoint::new(&url, &authority().pem(), Arc::default(), None).unwrap();
        let accept = async {
            let (stream, _) = listener.accept().await.unwrap();
            tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(stream).await
        };
        let (dialled, _) = tokio::join!(server.dial(), accept);
        let refused = dialled.map(drop).unwrap_err().to_string();
        assert!(refused.contains("10 intermediate certificates, more than 4"), "{refused}");
    }

    #[test]
    fn urls_name_hosts_and_ports() {
        let found = |url: &str| parse(url).map(|(authority, host)| format!("{authority} {host}"));
        for (url, wanted) in [
            ("https://a.example:7443", Some("a.example:7443 a.example")),
            ("https://10.0.0.1/", Some("10.0.0.1:6443 10.0.0.1")),
            ("https://[2001:db8::1]:7443", Some("[2001:db8::1]:7443 2001:db8::1")),
            ("https://[2001:db8::1]", Some("[2001:db8::1]:6443 2001:db8::1")),
            ("http://a", None),
            ("https://", None),
            ("https://a:b", None),
            ("https://a/path", None),
        ] {
            assert_eq!(found(url).as_deref(), wanted, "{url}");
        }
    }
}
