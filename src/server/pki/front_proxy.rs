//! The front proxy certificate that this server presents to extension API servers, by which they trust its user headers. It has a
//! CA of its own: the cluster CA's certificates identify users, not proxies.

use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use rcgen::ExtendedKeyUsagePurpose;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;

use super::sign::{authority, signed, subject};
use super::{Names, Pair};

/// The certificate's common name, which extension servers check.
pub const NAME: &str = "front-proxy-client";

/// The CA's certificate, and the current client certificate. Cheap to clone.
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

    /// With a temporary CA that is not stored.
    pub fn generate(now: Timestamp) -> anyhow::Result<FrontProxy> {
        let ca = authority("podwright-front-proxy-ca", now)?;
        FrontProxy::new(&ca, &client(&ca, now)?)
    }

    /// The CA's certificate, in PEM.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The client certificate for connections; new ones use the newest.
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
