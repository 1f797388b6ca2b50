//! NetworkPolicy (networking.k8s.io/v1).

use serde_json::{Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, selector};
use crate::defaults::{each, fill, made};
use crate::validation::{At, Errors, names, selectors};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["netpol"],
    columns: &[NAME, column("POD-SELECTOR", |o, _| selector(o.at("spec.podSelector"))), AGE],
    strategy: Strategy { default, validate, has_generation: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::networking::v1::NetworkPolicy>("networkpolicy")
};

fn default(policy: &mut Object) {
    let Some(map) = policy.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    if spec.get("policyTypes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        let has_egress = spec.get("egress").and_then(Value::as_array).is_some_and(|l| !l.is_empty());
        spec.insert("policyTypes".into(), if has_egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) });
    }
    for direction in ["ingress", "egress"] {
        for rule in each(spec, direction) {
            each(rule, "ports").for_each(|port| fill(port, "protocol", "TCP"));
        }
    }
}

fn validate(policy: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&policy.0).get("spec");
    selectors::label_selector(&spec.get("podSelector"), &mut errs);
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for rule in spec.get(direction).items() {
            rule.get("ports").items().for_each(|port| check_port(&port, &mut errs));
            rule.get(peers).items().for_each(|peer| check_peer(&peer, &mut errs));
        }
    }
    let types = spec.get("policyTypes");
    if types.len() > 2 {
        errs.invalid_value(&types.path, types.value, "may not specify more than two policyTypes");
        return errs.0;
    }
    for it in types.items().filter(|it| !matches!(it.str(), "Egress" | "Ingress")) {
        errs.not_supported(&it.path, it.str(), &["Egress", "Ingress"]);
    }
    errs.0
}

fn check_port(port: &At<'_>, errs: &mut Errors) {
    let (protocol, number, end) = (port.get("protocol"), port.get("port"), port.get("endPort"));
    if protocol.is_set() {
        errs.one_of(&protocol, &["SCTP", "TCP", "UDP"]);
    }
    match (number.int(), number.str()) {
        (Some(n), _) => {
            names::port_number(n).into_iter().for_each(|why| errs.invalid(&number.path, n, why));
            if let Some(last) = end.int() {
                if last < n {
                    errs.invalid(&end.path, last, "must be greater than or equal to `port`");
                }
                names::port_number(last).into_iter().for_each(|why| errs.invalid(&end.path, last, why));
            }
        }
        (None, "") if end.is_set() => errs.required(&number.path, "must be specified when endPort is set"),
        (None, "") => {}
        (None, name) => {
            errs.invalid_each(&number.path, name, names::port_name(name));
            if end.is_set() {
                errs.required(&end.path, "may not be specified when `port` is non-numeric");
            }
        }
    }
}

fn check_peer(peer: &At<'_>, errs: &mut Errors) {
    let (pods, namespaces, block) = (peer.get("podSelector"), peer.get("namespaceSelector"), peer.get("ipBlock"));
    for selector in [&pods, &namespaces].into_iter().filter(|s| s.is_set()) {
        selectors::label_selector(selector, errs);
    }
    if !pods.is_set() && !namespaces.is_set() && !block.is_set() {
        errs.required(&peer.path, "must specify a peer");
    }
    if !block.is_set() {
        return;
    }
    if pods.is_set() || namespaces.is_set() {
        errs.forbidden(&peer.path, "may not specify both ipBlock and another peer");
    }
    let cidr = block.get("cidr");
    if cidr.is_empty() {
        errs.required(&cidr.path, "");
        return;
    }
    let whole = match cidr.str().parse::<ipnet::IpNet>() {
        Ok(net) => net,
        Err(_) => return errs.invalid_each(&cidr.path, cidr.str(), names::cidr(cidr.str())),
    };
    for except in block.get("except").items() {
        match except.str().parse::<ipnet::IpNet>() {
            Ok(part) if whole.contains(&part) && part.prefix_len() > whole.prefix_len() => {}
            Ok(_) => {
                let why = "must be a strict subset of `cidr`";
                errs.invalid(&except.path, except.str(), why);
            }
            Err(_) => errs.invalid_each(&except.path, except.str(), names::cidr(except.str())),
        }
    }
}
