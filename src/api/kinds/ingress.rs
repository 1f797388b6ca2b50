//! Ingress (networking.k8s.io/v1).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text_or};
use crate::validation::{At, Errors, names};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["ing"],
    subresources: &["status"],
    columns: &[
        NAME,
        column("CLASS", |o, _| text_or(o, "spec.ingressClassName", "<none>")),
        column("HOSTS", |o, _| hosts(o)),
        column("ADDRESS", |o, _| addresses(o)),
        column("PORTS", ports),
        AGE,
    ],
    strategy: Strategy { prepare_create, validate, validate_create, has_generation: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::networking::v1::Ingress>("ingress")
};

/// The annotation for the class before there was a field.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// At most three, then the number of others; `*` without any.
fn hosts(ingress: &Object) -> String {
    const SHOWN: usize = 3;
    let rules = ingress.at("spec.rules").and_then(Value::as_array).into_iter().flatten();
    let all: Vec<&str> = rules.filter_map(|r| r["host"].as_str()).filter(|h| !h.is_empty()).collect();
    match all.len() {
        0 => "*".into(),
        n if n > SHOWN => format!("{} + {} more...", all[..SHOWN].join(","), n - SHOWN),
        _ => all.join(","),
    }
}

fn addresses(ingress: &Object) -> String {
    let list = ingress.at("status.loadBalancer.ingress").and_then(Value::as_array).into_iter().flatten();
    list.filter_map(|i| i["ip"].as_str().or(i["hostname"].as_str())).collect::<Vec<_>>().join(",")
}

fn ports(ingress: &Object, _now: Timestamp) -> String {
    let encrypted = ingress.at("spec.tls").and_then(Value::as_array).is_some_and(|tls| !tls.is_empty());
    if encrypted { "80, 443".into() } else { "80".into() }
}

fn prepare_create(ingress: &mut Object) {
    ingress.0["status"] = json!({"loadBalancer": {}});
}

fn validate(ingress: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&ingress.0).get("spec");
    for tls in spec.get("tls").items() {
        for host in tls.get("hosts").items() {
            errs.invalid_each(&host.path, host.str(), hostname(host.str()));
        }
        let secret = tls.get("secretName");
        if !secret.is_empty() {
            errs.invalid_each(&secret.path, secret.str(), names::dns1123_subdomain(secret.str()));
        }
    }
    let (rules, default) = (spec.get("rules"), spec.get("defaultBackend"));
    if rules.is_empty() && !default.is_set() {
        errs.invalid_value(&spec.path, rules.value, "either `defaultBackend` or `rules` must be specified");
    }
    if default.is_set() {
        backend(&default, &mut errs);
    }
    for rule in rules.items() {
        check_rule(&rule, &mut errs);
    }
    let class = spec.get("ingressClassName");
    if class.is_set() {
        errs.invalid_each(&class.path, class.str(), names::dns1123_subdomain(class.str()));
    }
    errs.0
}

/// `example.com`, `*.example.com`
fn hostname(host: &str) -> Vec<String> {
    if host.contains('*') { names::wildcard_subdomain(host) } else { names::dns1123_subdomain(host) }
}

fn check_rule(rule: &At<'_>, errs: &mut Errors) {
    let host = rule.get("host");
    if !host.is_empty() {
        if host.str().parse::<std::net::IpAddr>().is_ok() {
            errs.invalid(&host.path, host.str(), "must be a DNS name, not an IP address");
        } else {
            errs.invalid_each(&host.path, host.str(), hostname(host.str()));
        }
    }
    let http = rule.get("http");
    if !http.is_set() {
        return;
    }
    let paths = http.get("paths");
    if paths.is_empty() {
        errs.required(&paths.path, "");
    }
    for path in paths.items() {
        check_path(&path, errs);
        backend(&path.get("backend"), errs);
    }
}

/// What a path of type Exact or Prefix may not contain or end with.
const BAD_PARTS: &[&str] = &["//", "/./", "/../", "%2f", "%2F"];
const BAD_ENDS: &[&str] = &["/..", "/."];

fn check_path(path: &At<'_>, errs: &mut Errors) {
    let (kind, at) = (path.get("pathType"), path.get("path"));
    let text = at.str();
    match kind.str() {
        "Exact" | "Prefix" => {
            if !text.starts_with('/') {
                errs.invalid(&at.path, text, "must be an absolute path");
            }
            for part in BAD_PARTS.iter().filter(|part| text.contains(**part)) {
                errs.invalid(&at.path, text, format!("must not contain '{part}'"));
            }
            for end in BAD_ENDS.iter().filter(|end| text.ends_with(**end)) {
                errs.invalid(&at.path, text, format!("cannot end with '{end}'"));
            }
        }
        "ImplementationSpecific" if !text.is_empty() && !text.starts_with('/') => {
            errs.invalid(&at.path, text, "must be an absolute path");
        }
        "ImplementationSpecific" => {}
        "" => errs.required(&kind.path, "pathType must be specified"),
        other => errs.not_supported(&kind.path, other, &["Exact", "ImplementationSpecific", "Prefix"]),
    }
}

fn backend(backend: &At<'_>, errs: &mut Errors) {
    let (service, resource) = (backend.get("service"), backend.get("resource"));
    match (service.is_set(), resource.is_set()) {
        (true, true) => errs.invalid(&backend.path, "", "cannot set both resource and service backends"),
        (false, true) => {
            for field in ["kind", "name"] {
                if resource.get(field).is_empty() {
                    errs.required(resource.path(field), "");
                }
            }
        }
        (false, false) => errs.required(&backend.path, "resource or service backend is required"),
        (true, false) => {
            let (name, port) = (service.get("name"), service.get("port"));
            match name.is_empty() {
                true => errs.required(&name.path, ""),
                false => errs.invalid_each(&name.path, name.str(), names::dns1035_label(name.str())),
            }
            let (number, by_name) = (port.get("number"), port.get("name"));
            match (number.int().unwrap_or(0), by_name.str()) {
                (0, "") => errs.required(&port.path, "port name or number is required"),
                (0, name) => errs.invalid_each(&by_name.path, name, names::port_name(name)),
                (n, "") => names::port_number(n).into_iter().for_each(|why| errs.invalid(&number.path, n, why)),
                (_, _) => errs.invalid(&port.path, "", "cannot set both port name & port number"),
            }
        }
    }
}

fn validate_create(ingress: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let annotated = ingress.annotation(CLASS_ANNOTATION);
    if let (Some(class), Some(_)) = (annotated, ingress.at("spec.ingressClassName")) {
        let why = "can not be set when the class field is also set";
        errs.invalid(format!("metadata.annotations.{CLASS_ANNOTATION}"), class, why);
    }
    errs.0
}
