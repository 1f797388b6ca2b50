//! HTTPS as a program in a Pod speaks it: with a CA that it was given, and a token.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::netns::within;
use super::slowness;

/// A GET from inside a network namespace: the status code and the body. The server must be `name` by the word of `ca`.
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
