//! What this server shows to extension API servers: the certificate of a front proxy, by which they know that it says truly who
//! asks. Its CA is one of its own: who has a certificate of the cluster's CA is a user, and no proxy.

use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use rcgen::ExtendedKeyUsagePurpose;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;

use super::sign::{authority, signed, subject};
use super::{Names, Pair};

/// The name in the certificate, which extension servers ask for.
pub const NAME: &str = "front-proxy-client";

/// The CA's certificate, and the client's as it is now. Cheap to clone.
#[derive(Clone)]
pub struct FrontProxy {
    authority: Arc<str>,
    client: Arc<Shown>,
}

impl std::fmt::Debug for FrontProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the identity of a front proxy")
    }
}

impl FrontProxy {
    pub(super) fn new(ca: &Pair, client: &Pair) -> anyhow::Result<FrontProxy> {
        let client = Arc::new(Shown(RwLock::new(client.certified()?)));
        Ok(FrontProxy { authority: ca.certificate.as_str().into(), client })
    }

    /// One of a CA of its own, kept nowhere.
    pub fn generate(now: Timestamp) -> anyhow::Result<FrontProxy> {
        let ca = authority("podwright-front-proxy-ca", now)?;
        FrontProxy::new(&ca, &client(&ca, now)?)
    }

    /// The CA's certificate, in PEM.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// What connections show; those that begin later show what is the newest then.
    pub(crate) fn certificate(&self) -> Arc<dyn ResolvesClientCert> {
        self.client.clone()
    }

    pub(super) fn replace(&self, client: &Pair) -> anyhow::Result<()> {
        *self.client.0.write().unwrap_or_else(PoisonError::into_inner) = client.certified()?;
        Ok(())
    }
}

/// The client's certificate, signed by the CA.
pub(super) fn client(ca: &Pair, now: Timestamp) -> anyhow::Result<Pair> {
    signed(ca, subject(NAME, &[]), &Names::default(), ExtendedKeyUsagePurpose::ClientAuth, now)
}

#[derive(Debug)]
struct Shown(RwLock<Arc<CertifiedKey>>);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
    fn has_certs(&self) -> bool {
        true
    }
}
