//! The certificates that the CAs sign for the cluster itself: a table, and when a stored one is still good.

use std::net::IpAddr;
use std::path::Path;

use anyhow::Context;
use jiff::Timestamp;
use rcgen::ExtendedKeyUsagePurpose;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::front_proxy;
use super::roots::{CLUSTER, FRONT_PROXY, Root};
use super::sign::{belongs, signed, subject};
use super::{Names, Pair, RENEW_WITHIN, make, write_private};

/// A certificate: its file name, its issuer, its subject.
pub(super) struct Issue {
    pub file: &'static str,
    pub root: &'static Root,
    user: &'static str,
    groups: &'static [&'static str],
    /// Whether it contains the server's names.
    named: bool,
    purpose: ExtendedKeyUsagePurpose,
}

pub(super) const SERVER: usize = 0;
pub(super) const ADMIN: usize = 1;
pub(super) const PROXY_CLIENT: usize = 2;

pub(super) static ISSUED: [Issue; 3] = [
    Issue {
        file: "server",
        root: &CLUSTER,
        user: "kube-apiserver",
        groups: &[],
        named: true,
        purpose: ExtendedKeyUsagePurpose::ServerAuth,
    },
    Issue {
        file: "admin",
        root: &CLUSTER,
        user: "kubernetes-admin",
        groups: &["system:masters"],
        named: false,
        purpose: ExtendedKeyUsagePurpose::ClientAuth,
    },
    Issue {
        file: front_proxy::NAME,
        root: &FRONT_PROXY,
        user: front_proxy::NAME,
        groups: &[],
        named: false,
        purpose: ExtendedKeyUsagePurpose::ClientAuth,
    },
];

/// The files of all certificates that a CA has signed.
pub(super) fn files_of(root: &Root) -> Vec<String> {
    ISSUED.iter().filter(|issue| issue.root.file == root.file).flat_map(Issue::files).collect()
}

impl Issue {
    pub fn files(&self) -> [String; 2] {
        ["crt", "key"].map(|end| format!("{}.{end}", self.file))
    }

    fn names<'a>(&self, names: &'a Names, none: &'a Names) -> &'a Names {
        if self.named { names } else { none }
    }

    pub fn is_good(&self, pair: &Pair, names: &Names, ca: &Pair, now: Timestamp) -> bool {
        is_good(pair, now, self.names(names, &Names::default())) && is_signed_by(pair, ca)
    }

    /// The stored pair if it is good, or a new one.
    pub fn kept(&self, folder: &Path, names: &Names, ca: &Pair, now: Timestamp) -> anyhow::Result<Pair> {
        let [certificate, key] = self.files().map(|file| std::fs::read_to_string(folder.join(file)));
        if let (Ok(certificate), Ok(key)) = (certificate, key) {
            let pair = Pair { certificate, key };
            if self.is_good(&pair, names, ca, now) {
                return Ok(pair);
            }
        }
        self.make(folder, names, ca, now)
    }

    pub fn make(&self, folder: &Path, names: &Names, ca: &Pair, now: Timestamp) -> anyhow::Result<Pair> {
        tracing::info!("issuing the certificate {}", self.file);
        let none = Names::default();
        let subject = subject(self.user, self.groups);
        let pair = signed(ca, subject, self.names(names, &none), self.purpose.clone(), now)
            .with_context(|| format!("issuing the certificate {}", self.file))?;
        let [certificate, key] = self.files();
        make(folder)?;
        write_private(&folder.join(key), &pair.key)?;
        write_private(&folder.join(certificate), &pair.certificate)?;
        Ok(pair)
    }
}

/// Whether the key matches the certificate, which is valid, does not expire soon, and has all these names.
fn is_good(pair: &Pair, now: Timestamp, names: &Names) -> bool {
    let check = || {
        let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let (begins, ends) = pair.validity().ok()?;
        Some(begins <= now && ends.duration_since(now) > RENEW_WITHIN && has_names(&certificate, names))
    };
    belongs(pair) && check().unwrap_or(false)
}

fn has_names(certificate: &X509Certificate<'_>, names: &Names) -> bool {
    let Ok(extension) = certificate.subject_alternative_name() else { return false };
    let have = extension.map(|e| e.value.general_names.as_slice()).unwrap_or_default();
    let octets = |address: &IpAddr| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let has_host = |host: &String| have.iter().any(|n| matches!(n, GeneralName::DNSName(name) if name == host));
    let has_address =
        |address: &IpAddr| have.iter().any(|n| matches!(n, GeneralName::IPAddress(ip) if *ip == octets(address)));
    names.hosts.iter().all(has_host) && names.addresses.iter().all(has_address)
}

/// Each CA has a name of its own, so comparing the issuer is enough.
fn is_signed_by(pair: &Pair, ca: &Pair) -> bool {
    let check = || {
        let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).ok()?;
        let ca = CertificateDer::from_pem_slice(ca.certificate.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let (_, ca) = X509Certificate::from_der(&ca).ok()?;
        Some(certificate.issuer() == ca.subject())
    };
    check().unwrap_or(false)
}
