//! Node.

use std::collections::HashSet;

use serde_json::Value;

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text, text_or, wide};
use crate::validation::{At, Errors, names, pod as pod_rules};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["no"],
    subresources: &["status"],
    selectable: &["spec.unschedulable"],
    columns: &[
        NAME,
        column("STATUS", |o, _| status(o)),
        column("ROLES", |o, _| roles(o)),
        AGE,
        column("VERSION", |o, _| text(o, "status.nodeInfo.kubeletVersion")),
        wide("INTERNAL-IP", |o, _| address(o, "InternalIP")),
        wide("EXTERNAL-IP", |o, _| address(o, "ExternalIP")),
        wide("OS-IMAGE", |o, _| text_or(o, "status.nodeInfo.osImage", "<unknown>")),
        wide("KERNEL-VERSION", |o, _| text_or(o, "status.nodeInfo.kernelVersion", "<unknown>")),
        wide("CONTAINER-RUNTIME", |o, _| text_or(o, "status.nodeInfo.containerRuntimeVersion", "<unknown>")),
    ],
    // A Node registers with its status in one write.
    strategy: Strategy {
        default,
        prepare_status: |new, _| default(new),
        validate,
        validate_update,
        validate_status,
        creates_with_status: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::core::v1::Node>("node")
};

/// The default for allocatable resources is the capacity.
fn default(node: &mut Object) {
    let Some(status) = node.0.get_mut("status").and_then(Value::as_object_mut) else { return };
    if let (Some(capacity), None) = (status.get("capacity"), status.get("allocatable")) {
        let all = capacity.clone();
        status.insert("allocatable".into(), all);
    }
}

/// `Ready`, `NotReady,SchedulingDisabled`
fn status(node: &Object) -> String {
    let conditions = node.at("status.conditions").and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().find(|c| c["type"] == "Ready");
    let first = match ready {
        Some(c) if c["status"] == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let disabled = node.0["spec"]["unschedulable"] == true;
    if disabled { format!("{first},SchedulingDisabled") } else { first.to_owned() }
}

fn roles(node: &Object) -> String {
    let mut roles: Vec<&str> = Vec::new();
    for (key, value) in node.labels().into_iter().flatten() {
        if let Some(role) = key.strip_prefix("node-role.kubernetes.io/") {
            roles.extend((!role.is_empty()).then_some(role));
        } else if key == "kubernetes.io/role" {
            roles.extend(value.as_str().filter(|v| !v.is_empty()));
        }
    }
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn address(node: &Object, of_type: &str) -> String {
    let addresses = node.at("status.addresses").and_then(Value::as_array);
    let found = addresses.into_iter().flatten().find(|a| a["type"] == of_type);
    found.and_then(|a| a["address"].as_str()).unwrap_or("<none>").to_owned()
}

fn validate(node: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&node.0).get("spec");
    let mut seen: HashSet<(&str, &str)> = HashSet::new();
    for taint in spec.get("taints").items() {
        let (key, value, effect) = (taint.get("key"), taint.get("value"), taint.get("effect"));
        errs.invalid_each(&key.path, key.str(), names::qualified_name(key.str()));
        errs.invalid_each(&value.path, value.str(), names::label_value(value.str()));
        pod_rules::taint_effect(&effect, &mut errs);
        if seen.contains(&(key.str(), effect.str())) {
            errs.duplicate(&taint.path, taint.value.clone());
        }
        seen.insert((key.str(), effect.str()));
    }
    cidrs(&spec, &mut errs);
    errs.0
}

/// At most one of each family, and the first must equal the old single field.
fn cidrs(spec: &At<'_>, errs: &mut Errors) {
    let list = spec.get("podCIDRs");
    for cidr in list.items() {
        errs.invalid_each(&cidr.path, cidr.str(), names::cidr(cidr.str()));
    }
    let families: Vec<bool> = list.items().map(|c| c.str().contains(':')).collect();
    if families.len() > 2 || (families.len() == 2 && families[0] == families[1]) {
        let why = "may specify no more than one CIDR for each IP family";
        errs.invalid_value(&list.path, list.value, why);
    }
    let single = spec.get("podCIDR");
    if let Some(first) = list.items().next().filter(|f| !single.is_empty() && f.str() != single.str()) {
        errs.invalid(&list.path, first.str(), "the first value must match `podCIDR`");
    }
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let (new, old) = (At::root(&new.0).get("spec"), At::root(&old.0).get("spec"));
    for (field, called) in [("podCIDRs", "podCIDR"), ("providerID", "providerID")] {
        if !old.get(field).is_empty() && new.get(field).value != old.get(field).value {
            let why = format!("node updates may not change {called} except from \"\" to valid");
            errs.forbidden(new.path(field), why);
        }
    }
    errs.0
}

fn validate_status(new: &Object, _old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let status = At::root(&new.0).get("status");
    let mut seen: HashSet<(&str, &str)> = HashSet::new();
    for address in status.get("addresses").items() {
        let it = (address.get("type").str(), address.get("address").str());
        if seen.contains(&it) {
            errs.duplicate(&address.path, address.value.clone());
        }
        seen.insert(it);
    }
    for field in ["capacity", "allocatable"] {
        pod_rules::resource_list(&status.get(field), &mut errs);
    }
    errs.0
}
