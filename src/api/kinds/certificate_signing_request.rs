//! CertificateSigningRequest (certificates.k8s.io/v1).

use std::collections::HashSet;

use base64::Engine;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text};
use crate::validation::{At, Errors, same};
use crate::{Cause, Object, duration};

pub const KIND: Kind = Kind {
    short_names: &["csr"],
    subresources: &["status", "approval"],
    selectable: &["spec.signerName"],
    columns: &[
        NAME,
        AGE,
        column("SIGNERNAME", |o, _| text(o, "spec.signerName")),
        column("REQUESTOR", |o, _| text(o, "spec.username")),
        column("REQUESTEDDURATION", requested),
        column("CONDITION", |o, _| condition(o)),
    ],
    strategy: Strategy {
        default,
        prepare_create,
        prepare_update,
        validate,
        validate_create,
        validate_status,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::certificates::v1::CertificateSigningRequest>("certificatesigningrequest")
};

fn requested(csr: &Object, _now: Timestamp) -> String {
    match csr.at("spec.expirationSeconds").and_then(Value::as_i64) {
        Some(seconds) => duration::human(seconds),
        None => "<none>".into(),
    }
}

/// `Pending`, `Approved,Issued`
fn condition(csr: &Object) -> String {
    let conditions = csr.at("status.conditions").and_then(Value::as_array);
    let has = |name: &str| conditions.into_iter().flatten().any(|c| c["type"] == name);
    let mut all: Vec<&str> = ["Approved", "Denied", "Failed"].into_iter().filter(|name| has(name)).collect();
    if all.is_empty() {
        all.push("Pending");
    }
    if csr.at("status.certificate").is_some() {
        all.push("Issued");
    }
    all.join(",")
}

/// A condition's presence makes it true.
fn default(csr: &mut Object) {
    use crate::defaults::{each, fill, object};
    if let Some(status) = csr.0.as_object_mut().and_then(|map| object(map, "status")) {
        each(status, "conditions").for_each(|condition| fill(condition, "status", "True"));
    }
}

fn prepare_create(csr: &mut Object) {
    csr.0["status"] = json!({});
}

/// The requestor and the request are immutable.
fn prepare_update(new: &mut Object, old: &Object) {
    new.0["spec"] = old.0["spec"].clone();
}

const MIN_SECONDS: i64 = 600;

fn validate(csr: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&csr.0).get("spec");
    let (signer, usages, seconds) = (spec.get("signerName"), spec.get("usages"), spec.get("expirationSeconds"));
    signer_name(&signer, &mut errs);
    if usages.is_empty() {
        errs.required(&usages.path, "usages must not be empty");
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for usage in usages.items() {
        if !USAGES.contains(&usage.str()) {
            errs.not_supported(&usage.path, usage.str(), USAGES);
        }
        if seen.contains(&usage.str()) {
            errs.duplicate(&usage.path, usage.str());
        }
        seen.insert(usage.str());
    }
    if let Some(n) = seconds.int().filter(|n| *n < MIN_SECONDS) {
        errs.invalid(&seconds.path, n, "may not specify a duration less than 600 seconds (10 minutes)");
    }
    errs.0
}

/// `example.com/my-signer`
fn signer_name(signer: &At<'_>, errs: &mut Errors) {
    use crate::validation::names;
    if signer.is_empty() {
        errs.required(&signer.path, "");
        return;
    }
    match signer.str().split_once('/') {
        Some((domain, path)) if !path.is_empty() && !path.contains('/') => {
            errs.invalid_each(&signer.path, signer.str(), names::dns1123_subdomain(domain));
            errs.invalid_each(&signer.path, signer.str(), names::dns1123_subdomain(path));
            if !domain.contains('.') {
                let why = "should be a domain with at least two segments separated by dots";
                errs.invalid(&signer.path, signer.str(), why);
            }
        }
        _ => errs.invalid(
            &signer.path,
            signer.str(),
            "must be a fully qualified domain and path of the form 'example.com/signer-name'",
        ),
    }
}

const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

fn validate_create(csr: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let request = At::root(&csr.0).get("spec").get("request");
    let pem = base64::engine::general_purpose::STANDARD.decode(request.str()).unwrap_or_default();
    if !String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE REQUEST-----") {
        errs.invalid(&request.path, request.str(), "PEM block type must be CERTIFICATE REQUEST");
    }
    errs.0
}

/// Approval and denial exclude each other, and neither can be revoked; nor can a certificate.
fn validate_status(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let (now, before) = (At::root(&new.0).get("status"), At::root(&old.0).get("status"));
    let conditions = now.get("conditions");
    let has = |at: &At<'_>, name: &str| at.get("conditions").items().any(|c| c.get("type").str() == name);
    let mut seen: HashSet<&str> = HashSet::new();
    for condition in conditions.items() {
        let (name, status) = (condition.get("type"), condition.get("status"));
        if name.is_empty() {
            errs.required(&name.path, "");
        }
        if seen.contains(&name.str()) {
            errs.duplicate(&name.path, name.str());
        }
        seen.insert(name.str());
        match name.str() {
            "Approved" | "Denied" | "Failed" if status.str() != "True" => {
                errs.not_supported(&status.path, status.str(), &["True"]);
            }
            _ => errs.one_of(&status, &["False", "True", "Unknown"]),
        }
    }
    if has(&now, "Approved") && has(&now, "Denied") {
        errs.invalid(&conditions.path, "Denied", "Approved and Denied conditions are mutually exclusive");
    }
    for name in ["Approved", "Denied", "Failed"] {
        if has(&before, name) && !has(&now, name) {
            errs.forbidden(&conditions.path, format!("updates may not remove a condition of type \"{name}\""));
        }
    }
    let (certificate, issued) = (now.get("certificate"), before.get("certificate"));
    if !issued.is_empty() && !same(certificate.value, issued.value) {
        errs.forbidden(&certificate.path, "updates may not change the certificate");
    }
    errs.0
}
