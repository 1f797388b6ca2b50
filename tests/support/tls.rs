//! HTTPS as used by a program in a Pod, with a CA and a token, and by the administrator.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::netns::within;
use super::{TestNode, slowness};

/// A server's address, and the TLS configuration of its administrator, or of a client without certificate.
pub fn client(node: &TestNode, with_certificate: bool) -> (String, Arc<ClientConfig>) {
    let kubeconfig = std::fs::read_to_string(node.dir.path().join("admin.kubeconfig")).unwrap();
    let field = |name: &str| kubeconfig.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap().to_owned();
    let decoded = |name: &str| STANDARD.decode(field(name)).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&decoded("certificate-authority-data: ")).unwrap()).unwrap();
    let certificate = CertificateDer::from_pem_slice(&decoded("client-certificate-data: ")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(&decoded("client-key-data: ")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let config = match with_certificate {
        true => config.with_client_auth_cert(vec![certificate], key).unwrap(),
        false => config.with_no_client_auth(),
    };
    (field("server: ").trim_start_matches("https://").to_owned(), Arc::new(config))
}

/// A connection to a server on this machine's loopback.
pub fn dial(address: &str, config: &Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
    let tls = ClientConnection::new(config.clone(), ServerName::try_from("127.0.0.1").unwrap()).unwrap();
    let tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(Duration::from_secs(30) * slowness())).unwrap();
    StreamOwned::new(tls, tcp)
}

/// A GET from inside a network namespace: the status code and the body. The server must be `name`, as certified by `ca`.
pub fn get(
    netns: &Path,
    address: SocketAddr,
    name: &str,
    ca: &str,
    token: Option<&str>,
    path: &str,
) -> std::io::Result<(u16, String)> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    let tls = ClientConnection::new(config, ServerName::try_from(name.to_owned()).unwrap()).unwrap();
    let patience = Duration::from_secs(5) * slowness();
    let bearer = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    within(netns, || {
        let tcp = TcpStream::connect_timeout(&address, patience)?;
        tcp.set_read_timeout(Some(patience))?;
        let mut stream = StreamOwned::new(tls, tcp);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {name}\r\n{bearer}Connection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
        Ok((code, body))
    })
}
