//! Which certificates are trusted when the server calls others: like Go's `crypto/x509`, which upstream's clients use.

use std::sync::Arc;

use anyhow::Context;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::time::ASN1Time;

/// Trusts servers whose certificate is signed by one of these, or is one of these.
pub(super) fn trusting(pem: &[u8]) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let all: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem).flatten().collect();
    for certificate in &all {
        // A bundle may contain certificates that this library cannot parse; the others still count.
        let _ = roots.add(certificate.clone());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?.dangerous();
    anyhow::ensure!(!roots.is_empty(), "there is no certificate of an authority");
    let by_chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let by_chain = by_chain.context("the certificates of the authorities")?;
    let verifier = podwright_tls::of_servers(Arc::new(Verifier { by_chain, all }));
    Ok(builder.with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Trusts any server: upstream's proxy connects to Pods and Services by address, which certificates do not name.
pub(super) fn trusting_anyone() -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?.dangerous();
    Ok(builder.with_custom_certificate_verifier(Arc::new(Anyone(provider))).with_no_client_auth())
}

/// Verifies chains as rustls does. That refuses a CA certificate as a server's, which is what `openssl req -x509` creates; Go
/// trusts one that is in the bundle itself.
#[derive(Debug)]
struct Verifier {
    by_chain: Arc<WebPkiServerVerifier>,
    all: Vec<CertificateDer<'static>>,
}

impl Verifier {
    /// Whether it is in the bundle itself, and is valid for this server now.
    fn is_known(&self, shown: &CertificateDer<'_>, name: &ServerName<'_>, now: UnixTime) -> Result<bool, Error> {
        if !self.all.iter().any(|known| known == shown) {
            return Ok(false);
        }
        let bad = |why: CertificateError| Err(Error::InvalidCertificate(why));
        let Ok((_, certificate)) = X509Certificate::from_der(shown) else {
            return bad(CertificateError::BadEncoding);
        };
        let now = i64::try_from(now.as_secs()).ok().and_then(|at| ASN1Time::from_timestamp(at).ok());
        let Some(now) = now else { return bad(CertificateError::NotValidYet) };
        if now < certificate.validity().not_before {
            return bad(CertificateError::NotValidYet);
        }
        if now > certificate.validity().not_after {
            return bad(CertificateError::Expired);
        }
        match certificate.extended_key_usage() {
            Ok(Some(usage)) if !usage.value.server_auth && !usage.value.any => {
                return bad(CertificateError::InvalidPurpose);
            }
            Ok(_) => {}
            Err(_) => return bad(CertificateError::BadEncoding),
        }
        verify_server_name(&ParsedCertificate::try_from(shown)?, name)?;
        Ok(true)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.is_known(shown, name, now)? {
            true => Ok(ServerCertVerified::assertion()),
            false => self.by_chain.verify_server_cert(shown, intermediates, name, ocsp, now),
        }
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_chain.verify_tls12_signature(message, shown, signed)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_chain.verify_tls13_signature(message, shown, signed)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_chain.supported_verify_schemes()
    }
}

#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
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
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd};
    use rustls::ServerConfig;
    use rustls::crypto::ring::sign::any_supported_type;
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::sign::{CertifiedKey, SingleCertAndKey};

    use super::*;

    /// A self-signed certificate with these changes.
    fn own(change: impl Fn(&mut CertificateParams)) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["hook.test".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        (params.self_signed(&key).unwrap(), key)
    }

    /// The result for a client with this bundle and a server with this certificate.
    async fn call(bundle: &str, shown: &(rcgen::Certificate, KeyPair), name: &'static str) -> Result<(), String> {
        call_to(bundle, vec![shown.0.der().clone()], &shown.1, name).await
    }

    /// The same for a server that sends more certificates.
    async fn call_to(
        bundle: &str,
        shown: Vec<CertificateDer<'static>>,
        key: &KeyPair,
        name: &'static str,
    ) -> Result<(), String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let server = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        // The client is what checks whether both match.
        let key = CertifiedKey::new(shown, any_supported_type(&key).unwrap());
        let server = server.with_no_client_auth().with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let accept = tokio_rustls::TlsAcceptor::from(Arc::new(server)).accept(theirs);
        let client = tokio_rustls::TlsConnector::from(Arc::new(trusting(bundle.as_bytes()).unwrap()));
        let (called, _) = tokio::join!(client.connect(name.try_into().unwrap(), ours), accept);
        called.map(drop).map_err(|why| why.to_string())
    }

    #[tokio::test]
    async fn a_certificate_that_is_in_the_bundle_is_trusted_for_what_it_is() {
        let (good, other) = (own(|_| {}), own(|_| {}));
        let bundle = other.0.pem() + &good.0.pem();
        assert_eq!(call(&bundle, &good, "hook.test").await, Ok(()));
        for (shown, name, why) in [
            (&good, "other.test", "not valid for name"),
            (&own(|_| {}), "hook.test", "CaUsedAsEndEntity"),
            (&own(|params| params.not_after = date_time_ymd(2001, 1, 1)), "hook.test", "Expired"),
            (&own(|params| params.not_before = date_time_ymd(2999, 1, 1)), "hook.test", "NotValidYet"),
            (
                &own(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]),
                "hook.test",
                "InvalidPurpose",
            ),
        ] {
            // The last ones are in the bundle, but not valid for this.
            let bundle = if why == "CaUsedAsEndEntity" { bundle.clone() } else { bundle.clone() + &shown.0.pem() };
            let told = call(&bundle, shown, name).await.unwrap_err();
            assert!(told.contains(why), "{why}: {told}");
        }
    }

    #[tokio::test]
    async fn a_chain_in_which_many_may_have_signed_each_other_is_not_read() {
        let same = |params: &mut CertificateParams| params.distinguished_name.push(DnType::CommonName, "same");
        let (bundle, key) = (own(|_| {}).0.pem(), KeyPair::generate().unwrap());
        let shown = own(|params| (params.is_ca, _) = (IsCa::NoCa, same(params)));
        let shown = [vec![shown.0.der().clone()], (0..10).map(|_| own(same).0.der().clone()).collect()].concat();
        let told = call_to(&bundle, shown, &key, "hook.test").await.unwrap_err();
        assert!(told.contains("10 intermediate certificates, more than 4"), "{told}");
    }

    #[tokio::test]
    async fn who_has_another_key_than_the_certificate_is_not_trusted() {
        let (good, thief) = (own(|_| {}), KeyPair::generate().unwrap());
        let forged = (good.0.clone(), thief);
        assert!(call(&good.0.pem(), &forged, "hook.test").await.is_err());
    }
}
