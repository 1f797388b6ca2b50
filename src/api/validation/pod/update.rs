//! Which parts of a Pod may change.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::super::{At, Errors, same};
use crate::pod_references::MIRROR;
use crate::{Object, app_armor, defaults};

const UPDATABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
    tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// For any update of a Pod: system annotations are immutable; upstream's `ValidatePodSpecificAnnotationUpdates`.
pub fn annotations(new: &Object, old: &Object, errs: &mut Errors) {
    let of = |object: &Object| object.0["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    let (new, old) = (of(new), of(old));
    let kinds = |key: &str| match key {
        MIRROR => Some("mirror pod annotation"),
        key if key.starts_with(app_armor::ANNOTATION) => Some("AppArmor annotations"),
        _ => None,
    };
    let mut refuse = |key: &str, verb: &str| {
        if let Some(what) = kinds(key) {
            errs.forbidden(format!("metadata.annotations[{key}]"), format!("may not {verb} {what}"));
        }
    };
    old.iter().filter(|(key, value)| new.get(*key) != Some(value)).for_each(|(key, _)| refuse(key, "remove or update"));
    new.keys().filter(|key| !old.contains_key(*key)).for_each(|key| refuse(key, "add"));
}

/// For an update of the Pod itself: images, deadlines, additional tolerations, fewer scheduling gates.
pub fn spec(new: &Object, old: &Object, errs: &mut Errors) {
    let (new, old) = (At::root(&new.0).get("spec"), At::root(&old.0).get("spec"));
    for field in ["containers", "initContainers"] {
        if new.get(field).len() != old.get(field).len() {
            errs.forbidden(new.path(field), "pod updates may not add or remove containers");
            return;
        }
    }
    deadline(&new, &old, errs);
    tolerations(&new.get("tolerations"), &old.get("tolerations"), errs);
    gates(&new.get("schedulingGates"), &old.get("schedulingGates"), errs);

    // After restoring the mutable fields any other difference is forbidden.
    let gated = !old.get("schedulingGates").is_empty();
    let mut restored = new.value.as_object().cloned().unwrap_or_default();
    let mut before = old.value.as_object().cloned().unwrap_or_default();
    // A stored spec may lack newer defaults, which is not a difference.
    defaults::pod::whole(&mut before);
    restore(&mut restored, &before, gated);
    if !same(&Value::Object(restored.clone()), &Value::Object(before.clone())) {
        let changed: Vec<&str> = restored
            .keys()
            .chain(before.keys().filter(|k| !restored.contains_key(*k)))
            .filter(|k| {
                !same(&restored.get(*k).cloned().unwrap_or_default(), &before.get(*k).cloned().unwrap_or_default())
            })
            .map(String::as_str)
            .collect();
        errs.forbidden(&new.path, format!("{UPDATABLE}\nchanged: {}", changed.join(", ")));
    }
}

/// The most containers of all types in a Pod that nodes support. A node refuses a new Pod with more; but containers added to a
/// running one could never be removed.
pub const MAX_CONTAINERS: usize = 512;

/// For an update of the ephemeral containers: they may only be added; upstream's `ValidatePodEphemeralContainersUpdate`, which has
/// no limit.
pub fn ephemeral(new: &Object, old: &Object, errs: &mut Errors) {
    let is_static = old.annotation(MIRROR).is_some();
    let (spec, old) = (At::root(&new.0).get("spec"), At::root(&old.0).get("spec"));
    let (new, old) = (spec.get("ephemeralContainers"), old.get("ephemeralContainers"));
    let others = spec.get("containers").len() + spec.get("initContainers").len();
    if new.len() > old.len() && others + new.len() > MAX_CONTAINERS {
        errs.too_many(&new.path, new.len(), MAX_CONTAINERS.saturating_sub(others));
    }
    if is_static {
        errs.forbidden("", "static pods do not support ephemeral containers");
    }
    let mut now: HashMap<&str, &Value> = HashMap::new();
    for container in new.items() {
        now.entry(container.get("name").str()).or_insert(container.value);
    }
    for before in old.items() {
        let name = before.get("name");
        match now.get(name.str()) {
            None => errs
                .forbidden(&new.path, format!("existing ephemeral containers {:?} may not be removed\n", name.str())),
            Some(now) if !same(now, before.value) => errs
                .forbidden(&new.path, format!("existing ephemeral containers {:?} may not be changed\n", name.str())),
            Some(_) => {}
        }
    }
}

fn restore(spec: &mut Map<String, Value>, old: &Map<String, Value>, gated: bool) {
    let mut put_back = vec!["activeDeadlineSeconds", "tolerations", "schedulingGates"];
    let negative = old.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|n| n < 0);
    if negative && spec.get("terminationGracePeriodSeconds") == Some(&Value::from(1)) {
        put_back.push("terminationGracePeriodSeconds");
    }
    if gated {
        // A gated Pod's node selector and affinity may still be narrowed.
        put_back.extend(["nodeSelector", "affinity"]);
    }
    for field in put_back {
        match old.get(field) {
            Some(value) => spec.insert(field.to_owned(), value.clone()),
            None => spec.shift_remove(field),
        };
    }
    for list in ["containers", "initContainers"] {
        let (Some(new), Some(old)) = (spec.get_mut(list).and_then(Value::as_array_mut), old.get(list)) else {
            continue;
        };
        for (i, container) in new.iter_mut().enumerate() {
            container["image"] = old[i]["image"].clone();
        }
    }
}

fn deadline(new: &At<'_>, old: &At<'_>, errs: &mut Errors) {
    let (new, old) = (new.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds"));
    let Some(before) = old.int() else { return };
    match new.int() {
        None => errs.invalid(&new.path, Value::Null, "must not update from a positive integer to nil value"),
        Some(n) if n > before => errs.invalid(&new.path, n, "must be less than or equal to previous value"),
        Some(_) => {}
    }
}

fn tolerations<'a>(new: &At<'a>, old: &At<'a>, errs: &mut Errors) {
    let identity = |t: At<'a>| ["key", "operator", "value", "effect"].map(|f| t.value.get(f).and_then(Value::as_str));
    let kept: HashSet<[Option<&str>; 4]> = new.items().map(identity).collect();
    for before in old.items() {
        if !kept.contains(&identity(before)) {
            errs.forbidden(&new.path, "existing toleration can not be modified except its tolerationSeconds");
        }
    }
}

fn gates(new: &At<'_>, old: &At<'_>, errs: &mut Errors) {
    let known: HashSet<&str> = old.items().map(|gate| gate.get("name").str()).collect();
    for gate in new.items() {
        if !known.contains(gate.get("name").str()) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{}'", gate.get("name").str());
            errs.forbidden(gate.path("name"), why);
        }
    }
}
