//! Endpoints, the predecessor of EndpointSlices.

use jiff::Timestamp;
use serde_json::Value;

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column};
use crate::defaults::{each, fill};
use crate::validation::{At, Errors, names};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["ep"],
    columns: &[NAME, column("ENDPOINTS", shown), AGE],
    strategy: Strategy { default, validate, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::core::v1::Endpoints>("endpoints")
};

fn default(endpoints: &mut Object) {
    let Some(map) = endpoints.0.as_object_mut() else { return };
    for subset in each(map, "subsets") {
        each(subset, "ports").for_each(|port| fill(port, "protocol", "TCP"));
    }
}

/// At most three addresses with their ports, and the number of others.
fn shown(endpoints: &Object, _now: Timestamp) -> String {
    const SHOWN: usize = 3;
    let list = |value: &'_ Value, field: &str| value[field].as_array().cloned().unwrap_or_default();
    let mut all: Vec<String> = Vec::new();
    for subset in list(&endpoints.0, "subsets") {
        let ports = list(&subset, "ports");
        for address in list(&subset, "addresses") {
            let ip = address["ip"].as_str().unwrap_or("");
            let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
            match ports.is_empty() {
                true => all.push(ip.to_owned()),
                false => all.extend(ports.iter().map(|port| format!("{host}:{}", port["port"]))),
            }
        }
    }
    let more = all.len().saturating_sub(SHOWN);
    all.truncate(SHOWN);
    match (all.is_empty(), more) {
        (true, _) => "<none>".to_owned(),
        (_, 0) => all.join(","),
        _ => format!("{} + {more} more...", all.join(",")),
    }
}

fn validate(endpoints: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    for subset in At::root(&endpoints.0).get("subsets").items() {
        let (ready, not_ready, ports) = (subset.get("addresses"), subset.get("notReadyAddresses"), subset.get("ports"));
        if ready.is_empty() && not_ready.is_empty() {
            errs.required(&subset.path, "must specify `addresses` or `notReadyAddresses`");
        }
        for address in ready.items().chain(not_ready.items()) {
            super::endpoint_slice::address(&address.get("ip"), &mut errs);
            for (field, check) in
                [("hostname", names::dns1123_label as fn(&str) -> Vec<String>), ("nodeName", names::dns1123_subdomain)]
            {
                let at = address.get(field);
                if !at.is_empty() {
                    errs.invalid_each(&at.path, at.str(), check(at.str()));
                }
            }
        }
        for port in ports.items() {
            check_port(&port, ports.len() > 1, &mut errs);
        }
    }
    errs.0
}

fn check_port(port: &At<'_>, needs_name: bool, errs: &mut Errors) {
    let (name, number) = (port.get("name"), port.get("port"));
    match name.is_empty() {
        true if needs_name => errs.required(&name.path, ""),
        true => {}
        false => errs.invalid_each(&name.path, name.str(), names::dns1123_label(name.str())),
    }
    for why in names::port_number(number.int().unwrap_or(0)) {
        errs.invalid(&number.path, number.int().unwrap_or(0), why);
    }
    errs.one_of(&port.get("protocol"), &["SCTP", "TCP", "UDP"]);
}
