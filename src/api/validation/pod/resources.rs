//! Resource names and amounts.

use serde_json::Value;

use super::super::{At, Errors, names};
use crate::quantity::Quantity;

/// Every name that upstream knows without a prefix.
const STANDARD: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "requests.storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "services.loadbalancers",
    "services.nodeports",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
];
const FOR_CONTAINERS: &[&str] = &["cpu", "memory", "ephemeral-storage"];

fn is_huge(name: &str) -> bool {
    name.starts_with("hugepages-")
}
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether the name is well formed for a container.
fn name(path: &str, name: &str, errs: &mut Errors) {
    errs.invalid_each(path, name, names::qualified_name(name));
    if !name.contains('/') {
        if !STANDARD.contains(&name) && !is_huge(name) {
            errs.invalid(path, name, "must be a standard resource type or fully qualified");
        }
        if !FOR_CONTAINERS.contains(&name) && !is_huge(name) {
            errs.invalid(path, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && name.starts_with("requests.") {
        errs.invalid(path, name, "doesn't follow extended resource name standard");
    }
}

fn amount(at: &At<'_>, name: &str, errs: &mut Errors) -> Quantity {
    let quantity = Quantity::from_json(at.value).unwrap_or_default();
    if quantity.is_negative() {
        errs.invalid(&at.path, quantity.to_string(), "must be greater than or equal to 0");
    }
    let whole_only = !is_native(name) || name == "pods";
    if whole_only && !quantity.is_whole() {
        errs.invalid(&at.path, quantity.to_string(), "must be an integer");
    }
    quantity
}

/// A map of amounts: names and quantities.
pub fn list(at: &At<'_>, errs: &mut Errors) {
    for (key, entry) in at.entries() {
        errs.invalid_each(&entry.path, key, names::qualified_name(key));
        amount(&entry, key, errs);
    }
}

/// `resources` of a container.
pub fn requirements(at: &At<'_>, errs: &mut Errors) {
    let (limits, requests) = (at.get("limits"), at.get("requests"));
    for (key, entry) in limits.entries() {
        name(&entry.path, key, errs);
        amount(&entry, key, errs);
    }
    for (key, entry) in requests.entries() {
        name(&entry.path, key, errs);
        let requested = amount(&entry, key, errs);
        let limit = limits.value.get(key).and_then(Quantity::from_json);
        // What cannot be shared cannot be overcommitted.
        let exclusive = !is_native(key) || is_huge(key);
        match limit {
            Some(limit) if exclusive && requested != limit => {
                let why = format!("must be equal to {key} limit of {limit}");
                errs.invalid(&requests.path, requested.to_string(), why);
            }
            Some(limit) if requested > limit => {
                let why = format!("must be less than or equal to {key} limit of {limit}");
                errs.invalid(&requests.path, requested.to_string(), why);
            }
            None if exclusive => {
                errs.required(&limits.path, "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
    }
    let names_of = |v: &Value| -> Vec<String> { v.as_object().into_iter().flatten().map(|(k, _)| k.clone()).collect() };
    let all: Vec<String> = names_of(limits.value).into_iter().chain(names_of(requests.value)).collect();
    if all.iter().any(|n| is_huge(n)) && !all.iter().any(|n| n == "cpu" || n == "memory") {
        errs.forbidden(&at.path, "HugePages require cpu or memory");
    }
}
