//! EndpointSlice (discovery.k8s.io/v1).

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text};
use crate::defaults::{each, fill};
use crate::validation::{At, Errors, names};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    columns: &[
        NAME,
        column("ADDRESSTYPE", |o, _| text(o, "addressType")),
        column("PORTS", ports),
        column("ENDPOINTS", endpoints),
        AGE,
    ],
    strategy: Strategy { default, validate, validate_update, has_generation: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::discovery::v1::EndpointSlice>("endpointslice")
};

fn default(slice: &mut Object) {
    let Some(map) = slice.0.as_object_mut() else { return };
    for port in each(map, "ports") {
        port.entry("name").or_insert_with(|| "".into());
        fill(port, "protocol", "TCP");
    }
    // Upstream stores a list here, even an empty one.
    map.entry("endpoints").or_insert_with(|| json!([]));
}

/// At most three, then the number of others.
fn shortened(mut all: Vec<String>) -> String {
    const SHOWN: usize = 3;
    let more = all.len().saturating_sub(SHOWN);
    all.truncate(SHOWN);
    match (all.is_empty(), more) {
        (true, _) => "<unset>".to_owned(),
        (_, 0) => all.join(","),
        _ => format!("{} + {more} more...", all.join(",")),
    }
}

fn ports(slice: &Object, _now: Timestamp) -> String {
    let list = slice.at("ports").and_then(Value::as_array).into_iter().flatten();
    shortened(list.map(|p| p["port"].as_i64().map_or_else(|| "*".to_owned(), |n| n.to_string())).collect())
}

fn endpoints(slice: &Object, _now: Timestamp) -> String {
    let list = slice.at("endpoints").and_then(Value::as_array).into_iter().flatten();
    let addresses = list.flat_map(|e| e["addresses"].as_array().into_iter().flatten());
    shortened(addresses.filter_map(|a| a.as_str().map(str::to_owned)).collect())
}

const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20000;

fn validate(slice: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let root = At::root(&slice.0);
    let family = root.get("addressType");
    errs.one_of(&family, &["FQDN", "IPv4", "IPv6"]);
    let list = root.get("endpoints");
    if list.len() > MAX_ENDPOINTS {
        errs.too_many(&list.path, list.len(), MAX_ENDPOINTS);
    }
    for endpoint in list.items() {
        addresses(&endpoint.get("addresses"), family.str(), &mut errs);
        let hostname = endpoint.get("hostname");
        if hostname.is_set() {
            errs.invalid_each(&hostname.path, hostname.str(), names::dns1123_label(hostname.str()));
        }
        let node = endpoint.get("nodeName");
        if node.is_set() {
            errs.invalid_each(&node.path, node.str(), names::dns1123_subdomain(node.str()));
        }
    }
    check_ports(&root.get("ports"), &mut errs);
    errs.0
}

fn addresses(list: &At<'_>, family: &str, errs: &mut Errors) {
    if list.is_empty() {
        errs.required(&list.path, "must contain at least 1 address");
    } else if list.len() > MAX_ADDRESSES {
        errs.too_many(&list.path, list.len(), MAX_ADDRESSES);
    }
    for address in list.items() {
        let text = address.str();
        match (family, text.parse::<std::net::IpAddr>()) {
            ("FQDN", _) => errs.invalid_each(&address.path, text, names::dns1123_subdomain(text)),
            ("IPv4", Ok(ip)) if ip.is_ipv4() => usable(&address, ip, errs),
            ("IPv6", Ok(ip)) if ip.is_ipv6() => usable(&address, ip, errs),
            ("IPv4", _) => errs.invalid(&address.path, text, "must be an IPv4 address"),
            ("IPv6", _) => errs.invalid(&address.path, text, "must be an IPv6 address"),
            _ => {}
        }
    }
}

/// An address of an Endpoints object.
pub fn address(at: &At<'_>, errs: &mut Errors) {
    match at.str().parse::<std::net::IpAddr>() {
        Ok(ip) => usable(at, ip, errs),
        Err(_) => errs.invalid_each(&at.path, at.str(), names::ip(at.str())),
    }
}

/// Refuses addresses that would lead traffic to the node itself, or nowhere.
fn usable(at: &At<'_>, ip: std::net::IpAddr, errs: &mut Errors) {
    if let Some(wrong) = names::special_ip(ip) {
        errs.invalid(&at.path, at.str(), wrong);
    }
}

fn check_ports(list: &At<'_>, errs: &mut Errors) {
    if list.len() > MAX_PORTS {
        errs.too_many(&list.path, list.len(), MAX_PORTS);
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for port in list.items() {
        let name = port.get("name");
        if !name.is_empty() {
            errs.invalid_each(&name.path, name.str(), names::dns1123_label(name.str()));
        }
        if seen.contains(&name.str()) {
            errs.duplicate(&name.path, name.str());
        }
        seen.insert(name.str());
        errs.one_of(&port.get("protocol"), &["SCTP", "TCP", "UDP"]);
        let number = port.get("port");
        if let Some(n) = number.int() {
            for why in names::port_number(n) {
                errs.invalid(&number.path, n, why);
            }
        }
    }
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    errs.immutable(&At::root(&new.0).get("addressType"), &At::root(&old.0).get("addressType"));
    errs.0
}
