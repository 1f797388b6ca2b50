//! APIService (apiregistration.k8s.io/v1): which server serves a group version, this one or one behind a Service.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::{self, PemObject};
use serde_json::{Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text};
use crate::defaults::{fill, object};
use crate::validation::{At, Errors, NameRule, names};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    categories: &["api-extensions"],
    subresources: &["status"],
    columns: &[NAME, column("SERVICE", |o, _| service(o)), column("AVAILABLE", |o, _| availability(o)), AGE],
    strategy: Strategy {
        default,
        prepare_create,
        validate,
        validate_status,
        metadata_by_status: &[],
        // A name with the dot of the core group's `v1.` is no subdomain.
        name: NameRule::PathSegment,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService>("apiservice")
};

/// The condition for forwarding requests.
pub const AVAILABLE: &str = "Available";
/// Marks it as managed by the server: `onstart` for built-in groups, `true` for those of CRDs.
pub const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// The order of groups in discovery, and each one's minimum priority, as upstream's.
const PRIORITIES: &[(&str, i64)] = &[
    ("", 18000),
    ("apps", 17800),
    ("events.k8s.io", 17750),
    ("authentication.k8s.io", 17700),
    ("authorization.k8s.io", 17600),
    ("autoscaling", 17500),
    ("batch", 17400),
    ("certificates.k8s.io", 17300),
    ("networking.k8s.io", 17200),
    ("policy", 17100),
    ("rbac.authorization.k8s.io", 17000),
    ("storage.k8s.io", 16800),
    ("apiextensions.k8s.io", 16700),
    ("admissionregistration.k8s.io", 16700),
    ("scheduling.k8s.io", 16600),
    ("coordination.k8s.io", 16500),
    ("node.k8s.io", 16300),
    ("discovery.k8s.io", 16200),
    ("flowcontrol.apiserver.k8s.io", 16100),
    ("resource.k8s.io", 15900),
    ("metrics.k8s.io", 100),
];

/// The default priorities of a group version: the group's, and the version's.
pub fn priorities(group: &str, version: &str, of_definition: bool) -> (i64, i64) {
    if of_definition {
        return (1000, 100);
    }
    let of_group = PRIORITIES.iter().find(|(known, _)| *known == group).map_or(1000, |(_, priority)| *priority);
    let of_version = match (group, version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        ("metrics.k8s.io", _) => 100,
        _ => 15,
    };
    (of_group, of_version)
}

/// The condition of one that this server itself serves.
pub fn local_condition() -> Value {
    json!({
        "type": AVAILABLE, "status": "True", "reason": "Local", "message": "Local APIServices are always available",
    })
}

fn service(object: &Object) -> String {
    match object.at("spec.service").is_some_and(Value::is_object) {
        true => format!("{}/{}", text(object, "spec.service.namespace"), text(object, "spec.service.name")),
        false => "Local".to_owned(),
    }
}

fn availability(object: &Object) -> String {
    let conditions = object.at("status.conditions").and_then(Value::as_array).into_iter().flatten();
    let Some(condition) = conditions.into_iter().find(|condition| condition["type"] == AVAILABLE) else {
        return "Unknown".to_owned();
    };
    let (status, reason) = (condition["status"].as_str().unwrap_or(""), condition["reason"].as_str().unwrap_or(""));
    if status == "True" || reason.is_empty() { status.to_owned() } else { format!("{status} ({reason})") }
}

fn default(service: &mut Object) {
    let Some(spec) = service.0.as_object_mut().and_then(|map| object(map, "spec")) else { return };
    if let Some(service) = object(spec, "service") {
        fill(service, "port", 443);
    }
}

/// A local one is available at once.
fn prepare_create(service: &mut Object) {
    if let Some(map) = service.0.as_object_mut() {
        map.shift_remove("status");
    }
    if service.at("spec.service").is_none_or(Value::is_null) {
        service.0["status"] = json!({"conditions": [local_condition()]});
    }
}

fn validate(service: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&service.0).get("spec");
    let (group, version) = (spec.get("group"), spec.get("version"));
    let wanted = format!("{}.{}", version.str(), group.str());
    if service.name() != wanted {
        let why = format!("must be `spec.version+\".\"+spec.group`: {wanted:?}");
        errs.invalid("metadata.name", service.name(), why);
    }
    if group.is_empty() {
        if version.str() != "v1" {
            errs.required(&group.path, "only v1 may have an empty group and it better be legacy kube");
        }
    } else {
        errs.invalid_each(&group.path, group.str(), names::dns1123_subdomain(group.str()));
    }
    errs.invalid_each(&version.path, version.str(), names::dns1035_label(version.str()));
    for (field, most) in [("groupPriorityMinimum", 20000), ("versionPriority", 1000)] {
        let priority = spec.get(field);
        let value = priority.int().unwrap_or(0);
        if !(1..=most).contains(&value) {
            errs.invalid(&priority.path, value, format!("must be positive and less than {most}"));
        }
    }
    let (bundle, insecure) = (spec.get("caBundle"), spec.get("insecureSkipTLSVerify"));
    match spec.get("service").is_set() {
        false => {
            if !bundle.is_empty() {
                let shown = format!("{} bytes", STANDARD.decode(bundle.str()).map_or(bundle.len(), |pem| pem.len()));
                errs.invalid(&bundle.path, shown, "local APIServices may not have a caBundle");
            }
            if insecure.bool() {
                errs.invalid(&insecure.path, true, "local APIServices may not have insecureSkipTLSVerify");
            }
        }
        true => {
            validate_service(&spec.get("service"), &mut errs);
            if insecure.bool() && !bundle.is_empty() {
                errs.invalid(&insecure.path, true, "may not be true if caBundle is present");
            }
            validate_bundle(&bundle, &mut errs);
        }
    }
    errs.0
}

fn validate_service(service: &At<'_>, errs: &mut Errors) {
    for field in ["namespace", "name"] {
        if service.get(field).is_empty() {
            errs.required(service.path(field), "");
        }
    }
    let port = service.get("port");
    let value = port.int().unwrap_or(0);
    for why in names::port_number(value) {
        errs.invalid(&port.path, value, format!("port is not valid: {why}"));
    }
}

/// Upstream's `ValidateCABundle`: at least one certificate in PEM, and none is invalid.
fn validate_bundle(bundle: &At<'_>, errs: &mut Errors) {
    if bundle.is_empty() {
        return;
    }
    let why = match STANDARD.decode(bundle.str()).map(|pem| certificates(&pem)) {
        Ok(Ok(1..)) => return,
        Ok(Ok(_)) | Err(_) => "data does not contain any valid RSA or ECDSA certificates".to_owned(),
        Ok(Err(why)) => why.to_string(),
    };
    errs.invalid(&bundle.path, bundle.str(), why);
}

/// What is wrong with a certificate in a bundle.
#[derive(Debug, thiserror::Error)]
enum BundleError {
    #[error(transparent)]
    Pem(#[from] pem::Error),
    #[error("x509: {0}")]
    X509(#[from] x509_parser::nom::Err<x509_parser::error::X509Error>),
}

/// The number of certificates in a bundle.
fn certificates(pem: &[u8]) -> Result<usize, BundleError> {
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        x509_parser::parse_x509_certificate(&certificate?)?;
        count += 1;
    }
    Ok(count)
}

fn validate_status(new: &Object, _: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    for condition in At::root(&new.0).get("status").get("conditions").items() {
        errs.one_of(&condition.get("status"), &["False", "True", "Unknown"]);
    }
    errs.0
}
