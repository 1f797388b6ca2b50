//! What a certificate signing request asks for, and whether its signer accepts that.

use std::string::FromUtf8Error;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::{self, PemObject};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::error::X509Error;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::nom;
use x509_parser::prelude::FromDer;

use podwright_api::validation::NameRule;
use podwright_api::{Object, User};

/// Client certificates for any user.
pub(super) const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// Client certificates of nodes, approved automatically.
pub const NODE_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Serving certificates of nodes.
pub const NODE_SERVING: &str = "kubernetes.io/kubelet-serving";

/// The signers that are served here.
pub(super) const SIGNERS: [&str; 3] = [CLIENT, NODE_CLIENT, NODE_SERVING];

/// The most bytes of a request in PEM: the largest keys with a few names need some thousand.
const MAX_REQUEST: usize = 64 << 10;
const END: &str = "-----END CERTIFICATE REQUEST-----";

/// Why a request is invalid or not signed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("must not have more than {MAX_REQUEST} bytes")]
    TooLong,
    /// Data follows its end.
    #[error("must have nothing behind the certificate request")]
    Trailing,
    #[error("{0}")]
    Base64(base64::DecodeError),
    #[error("{0}")]
    Text(FromUtf8Error),
    #[error("{0}")]
    Pem(pem::Error),
    #[error("{0}")]
    Der(nom::Err<X509Error>),
    /// Some parsers skip parts of the subject, others do not: a group missing here could be signed.
    #[error("the subject may have strings of the types UTF8String, PrintableString and IA5String alone")]
    Illegible,
    #[error("the subject must have one common name")]
    SeveralNames,
    #[error("a common name is needed")]
    NoName,
    /// It requests a group that may do anything.
    #[error("the organization {} is not allowed", super::MASTERS)]
    Masters,
    /// The group is not that of nodes.
    #[error("the organization must be {NODES}")]
    NotNodes,
    #[error("the common name must begin with {NODE_PREFIX}")]
    NotANode,
    /// What follows the prefix is not a valid Node name: the reason.
    #[error("the common name must end with the name of a node: {0}")]
    NodeName(String),
    #[error("alternative names are not allowed")]
    AlternativeNames,
    #[error("the common name must be the requestor's")]
    NotTheRequestor,
    #[error("a host name or an address is needed")]
    NoHost,
    #[error("mail addresses and URIs are not allowed")]
    MailOrUri,
    #[error("usage {usage:?} is not allowed for signer {signer:?}")]
    Usage { usage: String, signer: String },
    #[error("usage {0:?} is needed")]
    NoUsage(&'static str),
    /// This signer is not served here.
    #[error("{0:?} is not signed here")]
    UnknownSigner(String),
    /// The CA failed.
    #[error("{0:#}")]
    Signing(anyhow::Error),
}

/// Whether it is a single request; its signer judges malformed ones. (Upstream accepts any length, and reads only the first block.)
pub(super) fn is_one(encoded: &str) -> Result<(), RequestError> {
    let too_long = || Err(RequestError::TooLong);
    // The base64 length, before decoding.
    if encoded.len() > MAX_REQUEST.div_ceil(3) * 4 {
        return too_long();
    }
    let Ok(pem) = STANDARD.decode(encoded) else { return Ok(()) };
    if pem.len() > MAX_REQUEST {
        return too_long();
    }
    let pem = String::from_utf8_lossy(&pem);
    match pem.split_once(END) {
        Some((_, behind)) if !behind.trim().is_empty() => Err(RequestError::Trailing),
        _ => Ok(()),
    }
}

const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";

/// The request's content and the requestor.
#[derive(Debug)]
pub(super) struct Asked {
    pub signer: String,
    pub requestor: User,
    /// The common name: the first one, which authenticates the certificate's holder.
    pub name: String,
    /// The number of common names.
    pub names: usize,
    /// The organizations.
    pub groups: Vec<String>,
    pub hosts: usize,
    pub addresses: usize,
    /// Other alternative names: mail addresses and URIs.
    pub others: usize,
    /// Whether all parsers read the subject alike.
    pub legible: bool,
    pub usages: Vec<String>,
    pub seconds: Option<i64>,
    pub pem: String,
}

impl Asked {
    /// Fails if it is not a valid request.
    pub fn of(csr: &Object) -> Result<Asked, RequestError> {
        let spec = &csr.0["spec"];
        let text = |field: &str| spec[field].as_str().unwrap_or("").to_owned();
        let list = |field: &str| -> Vec<String> {
            spec[field].as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
        };
        let pem = STANDARD.decode(text("request")).map_err(RequestError::Base64)?;
        let pem = String::from_utf8(pem).map_err(RequestError::Text)?;
        let der = CertificateSigningRequestDer::from_pem_slice(pem.as_bytes()).map_err(RequestError::Pem)?;
        let (_, request) = X509CertificationRequest::from_der(&der).map_err(RequestError::Der)?;
        let subject = &request.certification_request_info.subject;
        let name = subject.iter_common_name().next().and_then(|name| name.as_str().ok());
        let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
        let mut asked = Asked {
            signer: text("signerName"),
            requestor: User { uid: text("uid"), ..User::new(text("username"), list("groups")) },
            name: name.unwrap_or("").to_owned(),
            names: subject.iter_common_name().count(),
            groups: groups.map(str::to_owned).collect(),
            hosts: 0,
            addresses: 0,
            others: 0,
            legible: subject.iter_attributes().all(|part| part.as_str().is_ok()),
            usages: list("usages"),
            seconds: spec["expirationSeconds"].as_i64(),
            pem: pem.clone(),
        };
        for extension in request.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
            for name in &names.general_names {
                match name {
                    GeneralName::DNSName(_) => asked.hosts += 1,
                    GeneralName::IPAddress(_) => asked.addresses += 1,
                    _ => asked.others += 1,
                }
            }
        }
        Ok(asked)
    }

    /// Whether it is a node agent's client certificate.
    pub fn is_node_client(&self) -> bool {
        self.signer == NODE_CLIENT && self.check().is_ok()
    }

    /// Fails if the signer does not sign this.
    pub fn check(&self) -> Result<(), RequestError> {
        let usages = |allowed: &[&str], needed: &'static str| {
            let odd = self.usages.iter().find(|usage| !allowed.contains(&usage.as_str()));
            match odd {
                Some(odd) => Err(RequestError::Usage { usage: odd.clone(), signer: self.signer.clone() }),
                None if !self.usages.iter().any(|usage| usage == needed) => Err(RequestError::NoUsage(needed)),
                None => Ok(()),
            }
        };
        if !self.legible {
            return Err(RequestError::Illegible);
        }
        if self.names > 1 {
            return Err(RequestError::SeveralNames);
        }
        match self.signer.as_str() {
            CLIENT => {
                if self.name.is_empty() {
                    return Err(RequestError::NoName);
                }
                if self.groups.iter().any(|group| group == super::MASTERS) {
                    return Err(RequestError::Masters);
                }
                usages(&["client auth", "digital signature", "key encipherment"], "client auth")
            }
            NODE_CLIENT => {
                self.is_node()?;
                if self.hosts + self.addresses + self.others > 0 {
                    return Err(RequestError::AlternativeNames);
                }
                usages(&["client auth", "digital signature", "key encipherment"], "client auth")
            }
            NODE_SERVING => {
                self.is_node()?;
                if self.name != self.requestor.name {
                    return Err(RequestError::NotTheRequestor);
                }
                if self.hosts + self.addresses == 0 {
                    return Err(RequestError::NoHost);
                }
                if self.others > 0 {
                    return Err(RequestError::MailOrUri);
                }
                usages(&["server auth", "digital signature", "key encipherment"], "server auth")
            }
            other => Err(RequestError::UnknownSigner(other.to_owned())),
        }
    }

    fn is_node(&self) -> Result<(), RequestError> {
        if self.groups != [NODES] {
            return Err(RequestError::NotNodes);
        }
        let node = self.node().filter(|node| !node.is_empty()).ok_or(RequestError::NotANode)?;
        match NameRule::Subdomain.check(node).into_iter().next() {
            Some(why) => Err(RequestError::NodeName(why)),
            None => Ok(()),
        }
    }

    /// The certificate's lifetime in seconds.
    pub fn lifetime(&self) -> i64 {
        self.seconds.unwrap_or(super::YEAR).min(super::YEAR)
    }

    /// The node that the certificate authenticates.
    pub fn node(&self) -> Option<&str> {
        self.name.strip_prefix(NODE_PREFIX)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
    use serde_json::json;

    use super::*;

    /// A request of the node `n` to this signer: the common name, the organization, the alternative names.
    fn asked(signer: &str, name: &str, group: &str, others: Vec<SanType>) -> Result<(), RequestError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.subject_alt_names = others;
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let usage = if signer == NODE_SERVING { "server auth" } else { "client auth" };
        let spec = json!({
            "request": STANDARD.encode(pem), "signerName": signer, "usages": [usage, "digital signature"],
            "username": "system:node:n", "groups": [NODES],
        });
        Asked::of(&Object(json!({"spec": spec}))).unwrap().check()
    }

    #[test]
    fn a_request_is_one_and_small() {
        let pem = CertificateParams::default().serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let of = |text: String| is_one(&STANDARD.encode(text)).err().map_or(String::new(), |why| why.to_string());
        assert_eq!(of(pem.clone()), "");
        assert_eq!(of(pem.clone() + "\n \n"), "");
        assert_eq!(of("x".repeat(MAX_REQUEST)), "");
        assert_eq!(of("x".repeat(MAX_REQUEST + 1)), "must not have more than 65536 bytes");
        assert_eq!(of(pem.clone() + "x"), "must have nothing behind the certificate request");
        assert_eq!(of(pem.clone() + &pem), "must have nothing behind the certificate request");
    }

    #[test]
    fn each_signer_signs_what_it_is_for() {
        let host = || SanType::DnsName("n.example".try_into().unwrap());
        let address = || SanType::IpAddress([192, 0, 2, 1].into());
        let mail = || SanType::Rfc822Name("a@n.example".try_into().unwrap());
        let uri = || SanType::URI("https://n.example".try_into().unwrap());
        let own = "system:node:n";
        for (signer, name, group, others, why) in [
            (CLIENT, "ann", "people", vec![], ""),
            (CLIENT, "ann", super::super::MASTERS, vec![], "the organization system:masters is not allowed"),
            (NODE_CLIENT, own, NODES, vec![], ""),
            (NODE_CLIENT, own, NODES, vec![host()], "alternative names are not allowed"),
            (NODE_CLIENT, own, NODES, vec![address()], "alternative names are not allowed"),
            (NODE_CLIENT, own, NODES, vec![mail()], "alternative names are not allowed"),
            (NODE_CLIENT, own, "people", vec![], "the organization must be system:nodes"),
            (NODE_CLIENT, "n", NODES, vec![], "the common name must begin with system:node:"),
            (NODE_SERVING, own, NODES, vec![host(), address()], ""),
            (NODE_SERVING, own, NODES, vec![], "a host name or an address is needed"),
            (NODE_SERVING, own, NODES, vec![host(), mail()], "mail addresses and URIs are not allowed"),
            (NODE_SERVING, own, NODES, vec![address(), uri()], "mail addresses and URIs are not allowed"),
            (NODE_SERVING, "system:node:m", NODES, vec![host()], "the common name must be the requestor's"),
            ("example.com/other", "ann", "people", vec![], "\"example.com/other\" is not signed here"),
        ] {
            let refused = asked(signer, name, group, others.clone()).err();
            let refused = refused.map_or(String::new(), |why| why.to_string());
            assert_eq!(refused, why, "{signer} {name} {group} {others:?}");
        }
    }
}
