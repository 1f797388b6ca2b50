//! Resource names and amounts.

use std::collections::HashSet;

use serde_json::Value;

use super::super::{At, Errors, names};
use crate::field_path;
use crate::pod_totals::of_containers;
use crate::quantity::Quantity;

/// All standard resource names without a prefix.
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
const FOR_PODS: &[&str] = &["cpu", "memory"];
const HUGE: &str = "hugepages-";

fn is_huge(name: &str) -> bool {
    name.starts_with(HUGE)
}
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether a name is valid for its type of list.
type NameRule = fn(path: &str, name: &str, errs: &mut Errors);

fn name_of_container(path: &str, name: &str, errs: &mut Errors) {
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

fn name_of_pod(path: &str, name: &str, errs: &mut Errors) {
    let wrong = names::qualified_name(name);
    if !wrong.is_empty() {
        errs.invalid_each(path, name, wrong);
    } else if !name.contains('/') && !STANDARD.contains(&name) && !is_huge(name) {
        errs.invalid(path, name, "must be a standard resource type or fully qualified");
    } else if !FOR_PODS.contains(&name) && !is_huge(name) {
        errs.not_supported(path, name, &[FOR_PODS, &[HUGE]].concat());
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

/// A map of names and quantities.
pub fn list(at: &At<'_>, errs: &mut Errors) {
    for (key, entry) in at.entries() {
        errs.invalid_each(&entry.path, key, names::qualified_name(key));
        amount(&entry, key, errs);
    }
}

/// `resources` of a container.
pub fn of_container(at: &At<'_>, errs: &mut Errors) {
    requirements(at, name_of_container, errs);
}

/// The most different resource names in all containers of a Pod. Upstream has no limit; but the scheduler keeps each with the Pod's
/// node, and looks it up on every node.
const MAX_NAMES: usize = 256;

/// The names in all containers, without duplicates.
pub fn names_of_all(spec: &At<'_>, errs: &mut Errors) {
    let containers = ["containers", "initContainers"].into_iter().flat_map(|list| spec.get(list).items());
    let resources = containers.map(|container| &container.value["resources"]);
    let maps = resources.flat_map(|of| [&of["limits"], &of["requests"]]).filter_map(Value::as_object);
    let all: HashSet<&String> = maps.flat_map(|map| map.keys()).collect();
    if all.len() > MAX_NAMES {
        errs.too_many_of(spec.path("containers[*].resources"), all.len(), MAX_NAMES, "names");
    }
}

/// Pod-level `resources`; upstream's `validatePodResources`.
/// <https://github.com/kubernetes/enhancements/tree/master/keps/sig-node/2837-pod-level-resource-spec>
pub fn of_pod(spec: &At<'_>, errs: &mut Errors) {
    let whole = spec.get("resources");
    if !whole.is_set() {
        return;
    }
    if spec.get("os").get("name").str() == "windows" {
        return errs.forbidden(&whole.path, "may not be set for a windows pod");
    }
    let claims = whole.get("claims");
    if !claims.is_empty() {
        errs.forbidden(&claims.path, "claims may not be set for Resources at pod-level");
    }
    requirements(&whole, name_of_pod, errs);
    covers(spec, &whole, errs);
}

/// Pod-level requests must cover the sum of the containers' requests, and Pod-level limits each container's limit. The sum of
/// limits may be higher, except for huge pages, which are not shared.
fn covers(spec: &At<'_>, whole: &At<'_>, errs: &mut Errors) {
    let Some(fields) = spec.value.as_object() else { return };
    let summed: [(_, _, fn(&str) -> bool); 2] =
        [("requests", "container requests", |_| true), ("limits", "container limits", is_huge)];
    for (field, of, is_summed) in summed {
        let own = whole.get(field);
        for (name, sum) in of_containers(fields, field).into_iter().filter(|(name, _)| is_summed(name)) {
            if let Some(own_amount) = own.value.get(&name).and_then(Quantity::from_json).filter(|own| *own < sum) {
                let why = format!("must be greater than or equal to aggregate {of} of {sum}");
                errs.invalid(own.key_path(&name), own_amount.to_string(), why);
            }
        }
    }
    let most = whole.get("limits");
    for (i, container) in spec.get("containers").items().enumerate() {
        for (name, limit) in container.get("resources").get("limits").entries() {
            let amount = Quantity::from_json;
            let Some((limit, most)) = amount(limit.value).zip(most.value.get(name).and_then(amount)) else { continue };
            if limit > most {
                // Upstream's path is below the Pod's resources.
                let path = field_path::key(&field_path::index(&whole.path("containers"), i), name);
                let why = format!("must be less than or equal to pod limits of {most}");
                errs.invalid(field_path::field(&path, "limits"), limit.to_string(), why);
            }
        }
    }
}

fn requirements(at: &At<'_>, name: NameRule, errs: &mut Errors) {
    let (limits, requests) = (at.get("limits"), at.get("requests"));
    for (key, entry) in limits.entries() {
        name(&entry.path, key, errs);
        amount(&entry, key, errs);
    }
    for (key, entry) in requests.entries() {
        name(&entry.path, key, errs);
        let requested = amount(&entry, key, errs);
        let limit = limits.value.get(key).and_then(Quantity::from_json);
        // Exclusive resources cannot be overcommitted.
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
