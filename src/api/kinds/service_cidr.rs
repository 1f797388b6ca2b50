//! ServiceCIDR (networking.k8s.io/v1).

use serde_json::{Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column};
use crate::validation::{At, Errors, names};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    subresources: &["status"],
    columns: &[NAME, column("CIDRS", |o, _| cidrs(o)), AGE],
    strategy: Strategy { prepare_create, validate, validate_update, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::networking::v1::ServiceCIDR>("servicecidr")
};

fn cidrs(it: &Object) -> String {
    let list = it.at("spec.cidrs").and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).collect::<Vec<_>>().join(",")
}

fn prepare_create(it: &mut Object) {
    it.0["status"] = json!({});
}

fn validate(it: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let list = At::root(&it.0).get("spec").get("cidrs");
    match list.len() {
        0 => errs.required(&list.path, "at least one CIDR required"),
        1 | 2 => {}
        _ => errs.invalid_value(&list.path, list.value, "may only hold up to 2 values"),
    }
    for cidr in list.items() {
        match cidr.str().parse::<ipnet::IpNet>() {
            Ok(net) if net.addr() != net.network() => {
                errs.invalid(
                    &cidr.path,
                    cidr.str(),
                    format!("must not have bits set beyond the prefix length (should be \"{}\")", net.trunc()),
                );
            }
            Ok(_) => {}
            Err(_) => errs.invalid_each(&cidr.path, cidr.str(), names::cidr(cidr.str())),
        }
    }
    let families: Vec<bool> = list.items().map(|c| c.str().contains(':')).collect();
    if let [a, b] = families[..]
        && a == b
    {
        errs.invalid_value(
            &list.path,
            list.value,
            "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
        );
    }
    errs.0
}

/// A second family may be added.
fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let list = |it: &Object| it.at("spec.cidrs").and_then(Value::as_array).cloned().unwrap_or_default();
    let (now, before) = (list(new), list(old));
    let grown = before.len() == 1 && now.len() == 2 && now[0] == before[0];
    if now != before && !grown {
        errs.invalid("spec.cidrs", Value::Array(now), "field is immutable");
    }
    errs.0
}
