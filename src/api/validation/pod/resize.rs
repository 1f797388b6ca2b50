//! Which resources of a running Pod may change; upstream's `ValidatePodResize`.
//! <https://kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources/>

use serde_json::{Map, Value};

use super::super::{At, Errors, same};
use crate::{Object, pod, pod_references::MIRROR, quantity::Quantity};

/// The lists of containers whose resources may change, with the messages for forbidden changes.
const LISTS: [(&str, &str, &str); 2] = [
    (
        "containers",
        "containers may not be added or removed on resize",
        "containers may not be renamed or reordered on resize",
    ),
    (
        "initContainers",
        "initContainers may not be added or removed on resize",
        "initContainers may not be renamed or reordered on resize",
    ),
];

/// The resources that can change while a container runs.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// `new` differs from `old` only in the resources and resize policies of containers, unless it has other containers.
pub fn check(new: &Object, old: &Object, errs: &mut Errors) {
    let refusal = [
        (is_static(old), "static pods cannot be resized"),
        (old.0["spec"]["os"]["name"] == "windows", "windows pods cannot be resized"),
        (has_resources(old), "pods with pod-level resources cannot be resized"),
    ];
    if let Some((_, why)) = refusal.into_iter().find(|(holds, _)| *holds) {
        errs.0.clear();
        return errs.forbidden("", why);
    }
    let class = old.0["status"]["qosClass"].as_str().unwrap_or_else(|| pod::qos_class(&old.0["spec"]));
    if pod::qos_class(&new.0["spec"]) != class {
        errs.invalid("spec", class, "Pod QOS Class may not change as a result of resizing");
    }
    if !is_supported(old) {
        errs.forbidden("spec", "Pod running on node without support for resize");
    }
    if !same_containers(new, old, errs) {
        return;
    }
    let (root, before) = (At::root(&new.0).get("spec"), At::root(&old.0).get("spec"));
    for (list, ..) in LISTS.iter().rev() {
        for (new, old) in root.get(list).items().zip(before.get(list).items()) {
            if *list == "containers" || is_sidecar(old.value) {
                removed(&new.get("resources"), &old.get("resources"), errs);
            }
        }
    }
    for (new, old) in root.get("containers").items().zip(before.get("containers").items()) {
        if !same(&restored(new.value, old.value), old.value) {
            errs.forbidden("spec", "only cpu and memory resources are mutable");
        }
    }
    for (new, old) in root.get("initContainers").items().zip(before.get("initContainers").items()) {
        if !is_sidecar(new.value) {
            if !same(new.value, old.value) {
                errs.forbidden("spec", "resources for non-sidecar init containers are immutable");
            }
        } else if !same(&restored(new.value, old.value), old.value) {
            errs.forbidden("spec", "only cpu and memory resources for sidecar containers are mutable");
        }
    }
    if errs.0.is_empty() && !same(&rest(root.value), &rest(before.value)) {
        errs.forbidden("spec", "only cpu and memory resources are mutable");
    }
}

fn is_static(pod: &Object) -> bool {
    pod.annotation(MIRROR).is_some()
}

/// Whether it has Pod-level resources.
fn has_resources(pod: &Object) -> bool {
    let whole = &pod.0["spec"]["resources"];
    ["requests", "limits"].iter().any(|field| whole[field].as_object().is_some_and(|map| !map.is_empty()))
}

fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

/// A node that reports its containers' allocated resources supports resizing.
fn is_supported(pod: &Object) -> bool {
    let statuses = pod.0["status"]["containerStatuses"].as_array().into_iter().flatten();
    let running = |status: &&Value| !status["state"]["running"].is_null();
    statuses.into_iter().find(running).is_none_or(|status| !status["resources"].is_null())
}

/// Whether the Pod has the same containers in the same order.
fn same_containers(new: &Object, old: &Object, errs: &mut Errors) -> bool {
    let (new, old) = (At::root(&new.0).get("spec"), At::root(&old.0).get("spec"));
    let earlier = errs.0.len();
    for (list, other_number, other_names) in LISTS {
        let (now, before) = (new.get(list), old.get(list));
        if now.len() != before.len() {
            errs.forbidden(&now.path, other_number);
            continue;
        }
        for (now, before) in now.items().zip(before.items()) {
            if now.get("name").str() != before.get("name").str() {
                errs.forbidden(now.path("name"), other_names);
            }
        }
    }
    errs.0.len() == earlier
}

/// Existing values may be changed, but not removed.
fn removed(new: &At<'_>, old: &At<'_>, errs: &mut Errors) {
    for (field, why) in
        [("requests", "resource requests cannot be removed"), ("limits", "resource limits cannot be removed")]
    {
        let (now, before) = (new.get(field), old.get(field));
        // A limit of 0 is none.
        let nothing = |amount: &Value| field == "limits" && is_zero(amount);
        let taken = |resource: &str, was: &Value| now.value.get(resource).is_none_or(nothing) && !nothing(was);
        if before.entries().any(|(resource, was)| taken(resource, was.value)) {
            errs.forbidden(&now.path, why);
        }
    }
}

fn is_zero(amount: &Value) -> bool {
    let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
    text.parse::<Quantity>().is_ok_and(|amount| amount.is_zero())
}

/// A container with the old CPU and memory. As upstream, a container that had device claims cannot be resized: they are dropped
/// here. New ones are kept, and differ.
fn restored(new: &Value, old: &Value) -> Value {
    let mut container = new.clone();
    let mut resources = Map::new();
    for field in ["requests", "limits"] {
        let mut amounts = new["resources"][field].as_object().cloned().unwrap_or_default();
        for resource in RESIZABLE {
            match old["resources"][field].get(resource) {
                Some(amount) => amounts.insert(resource.to_owned(), amount.clone()),
                None => amounts.shift_remove(resource),
            };
        }
        resources.insert(field.to_owned(), amounts.into());
    }
    let claims = |container: &Value| container["resources"]["claims"].as_array().cloned().unwrap_or_default();
    if claims(old).is_empty() && !claims(new).is_empty() {
        resources.insert("claims".to_owned(), claims(new).into());
    }
    container["resources"] = resources.into();
    container
}

/// A spec without its containers.
fn rest(spec: &Value) -> Value {
    let fields = spec.as_object().into_iter().flatten();
    fields
        .filter(|(name, _)| LISTS.iter().all(|(list, ..)| name != list))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}
