//! What the CAs sign: the cluster's own certificates, and requested ones.

use std::time::Duration;

use anyhow::{Context, anyhow};
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Names, Pair};

const CA_LIFE: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);
const LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);
/// Other machines' clocks may be behind.
const BACKDATED: SignedDuration = SignedDuration::from_mins(5);

/// The cluster's CA, for signing requests.
#[derive(Clone)]
pub struct Authority(pub(super) Pair);

impl Authority {
    /// A temporary CA that is not stored.
    pub fn generate(now: Timestamp) -> anyhow::Result<Authority> {
        authority("podwright-ca", now).map(Authority)
    }

    /// Its certificate, in PEM.
    pub fn certificate(&self) -> &str {
        &self.0.certificate
    }

    /// The certificate for a request, both in PEM: with its subject and alternative names, for these usages, for this many seconds,
    /// at most until the CA expires.
    pub fn sign(&self, request: &str, usages: &[String], seconds: i64, now: Timestamp) -> anyhow::Result<String> {
        let ca = CertificateDer::from_pem_slice(self.0.certificate.as_bytes())?;
        let (_, ca) = X509Certificate::from_der(&ca).context("the CA")?;
        let left = ca.validity().not_after.timestamp() - now.as_second();
        let mut csr = CertificateSigningRequestParams::from_pem(request).context("the request")?;
        let der = CertificateSigningRequestDer::from_pem_slice(request.as_bytes())?;
        let (_, parsed) = X509CertificationRequest::from_der(&der).context("the request")?;
        let subject = &parsed.certification_request_info.subject;
        if subject.iter_organization().count() > 1 || subject.iter_common_name().count() > 1 {
            return Err(anyhow!("one common name and one organization are all that can be signed"));
        }
        let params = &mut csr.params;
        params.is_ca = IsCa::ExplicitNoCa;
        (params.key_usages, params.extended_key_usages) = purposes(usages)?;
        params.use_authority_key_identifier_extension = true;
        validity(params, now, SignedDuration::from_secs(seconds.min(left)))?;
        let issuer =
            Issuer::from_ca_cert_pem(&self.0.certificate, KeyPair::from_pem(&self.0.key)?).context("the CA")?;
        Ok(csr.signed_by(&issuer)?.pem())
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a certificate authority")
    }
}

/// Converts a CertificateSigningRequest's usages to X.509's.
fn purposes(usages: &[String]) -> anyhow::Result<(Vec<KeyUsagePurpose>, Vec<ExtendedKeyUsagePurpose>)> {
    let (mut key, mut extended) = (Vec::new(), Vec::new());
    for usage in usages {
        match usage.as_str() {
            "digital signature" | "signing" => key.push(KeyUsagePurpose::DigitalSignature),
            "content commitment" => key.push(KeyUsagePurpose::ContentCommitment),
            "key encipherment" => key.push(KeyUsagePurpose::KeyEncipherment),
            "data encipherment" => key.push(KeyUsagePurpose::DataEncipherment),
            "key agreement" => key.push(KeyUsagePurpose::KeyAgreement),
            "client auth" => extended.push(ExtendedKeyUsagePurpose::ClientAuth),
            "server auth" => extended.push(ExtendedKeyUsagePurpose::ServerAuth),
            other => return Err(anyhow!("the usage {other:?} is not signed")),
        }
    }
    Ok((key, extended))
}

pub(super) fn subject(name: &str, groups: &[&str]) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    // The library accepts a single organization; further ones would replace it.
    if let Some(group) = groups.first() {
        subject.push(DnType::OrganizationName, *group);
    }
    subject.push(DnType::CommonName, name);
    subject
}

fn validity(params: &mut CertificateParams, now: Timestamp, life: SignedDuration) -> anyhow::Result<()> {
    let at = |time: Timestamp| {
        let since_1970 = Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0));
        rcgen::date_time_ymd(1970, 1, 1) + since_1970
    };
    params.not_before = at(now.checked_sub(BACKDATED)?);
    params.not_after = at(now.checked_add(life)?);
    Ok(())
}

/// A self-signed CA.
pub(super) fn authority(name: &str, now: Timestamp) -> anyhow::Result<Pair> {
    let mut params = CertificateParams::default();
    // The name distinguishes clusters' CAs in clients' error messages.
    params.distinguished_name = subject(&format!("{name}@{}", now.as_second()), &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    validity(&mut params, now, CA_LIFE)?;
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

pub(super) fn signed(
    ca: &Pair,
    subject: DistinguishedName,
    names: &Names,
    purpose: ExtendedKeyUsagePurpose,
    now: Timestamp,
) -> anyhow::Result<Pair> {
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, KeyPair::from_pem(&ca.key)?).context("the CA")?;
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    for host in &names.hosts {
        let host = host.as_str().try_into().map_err(|e| anyhow!("{host}: {e}"))?;
        params.subject_alt_names.push(SanType::DnsName(host));
    }
    params.subject_alt_names.extend(names.addresses.iter().copied().map(SanType::IpAddress));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![purpose];
    params.use_authority_key_identifier_extension = true;
    validity(&mut params, now, LIFE)?;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Whether both can be parsed, and the key matches the certificate.
pub fn belongs(pair: &Pair) -> bool {
    let check = || {
        let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let key = KeyPair::from_pem(&pair.key).ok()?;
        Some(certificate.public_key().raw == rcgen::PublicKeyData::subject_public_key_info(&key).as_slice())
    };
    check().unwrap_or(false)
}
