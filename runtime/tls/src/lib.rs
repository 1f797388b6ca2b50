//! Certificate chains of peers, verified at bounded cost.
//!
//! A path to an authority is searched among all certificates presented: ten with the same name can be ordered in hundreds of
//! thousands of ways, and each is tried. So a chain longer than any in use is rejected unread, by servers verifying clients and
//! clients verifying servers.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};

/// Maximum certificates between a peer's own and an authority's. Public ones have one or two; four have 24 orders.
pub const INTERMEDIATES: usize = 4;

/// Verifies servers like another verifier, but rejects longer chains.
pub fn of_servers(verifier: Arc<dyn ServerCertVerifier>) -> Arc<dyn ServerCertVerifier> {
    Arc::new(Servers(verifier))
}

/// Verifies clients like another verifier, but rejects longer chains.
pub fn of_clients(verifier: Arc<dyn ClientCertVerifier>) -> Arc<dyn ClientCertVerifier> {
    Arc::new(Clients(verifier))
}

/// Verifies nothing of a server but that it has the key of the certificate that it shows: for a first question to a server that is not
/// known yet, which says nothing secret.
pub fn anybody() -> Arc<dyn ServerCertVerifier> {
    Arc::new(Anybody(rustls::crypto::ring::default_provider().signature_verification_algorithms))
}

/// Calls to servers whose certificates the authorities of this machine have signed, by HTTP/1.1. Reads their files.
pub fn trusting_system() -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls_platform_verifier::Verifier::new(provider.clone())?;
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = builder.dangerous().with_custom_certificate_verifier(of_servers(Arc::new(verifier)));
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Why a chain is rejected.
struct TooLong(usize);

/// The same message: rustls only shows this form.
impl fmt::Debug for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the chain has {} intermediate certificates, more than {INTERMEDIATES}", self.0)
    }
}

impl std::error::Error for TooLong {}

fn check(intermediates: &[CertificateDer<'_>]) -> Result<(), Error> {
    match intermediates.len() {
        0..=INTERMEDIATES => Ok(()),
        long => Err(CertificateError::Other(OtherError(Arc::new(TooLong(long)))).into()),
    }
}

#[derive(Debug)]
struct Servers(Arc<dyn ServerCertVerifier>);

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        check(intermediates)?;
        self.0.verify_server_cert(shown, intermediates, name, ocsp, now)
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, shown, signed)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, shown, signed)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }
    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        self.0.root_hint_subjects()
    }
}

#[derive(Debug)]
struct Anybody(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, shown, signed, &self.0)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, shown, signed, &self.0)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[derive(Debug)]
struct Clients(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Clients {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }
    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }
    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        check(intermediates)?;
        self.0.verify_client_cert(shown, intermediates, now)
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, shown, signed)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, shown, signed)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }
}

#[cfg(test)]
mod tests;
