//! What of a Pod may change.

use serde_json::{Map, Value};

use super::super::{At, Errors, same};
use super::scheduling;
use crate::api::Object;

pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

const UPDATABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
    tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// An update of the Pod itself: images, deadlines, more tolerations, fewer scheduling gates.
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

    // Whatever else differs once the changeable fields are put back is forbidden.
    let gated = !old.get("schedulingGates").is_empty();
    let mut restored = new.value.as_object().cloned().unwrap_or_default();
    let before = old.value.as_object().cloned().unwrap_or_default();
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

/// An update of the ephemeral containers: more of them, and nothing else; upstream's `ValidatePodEphemeralContainersUpdate`.
pub fn ephemeral(new: &Object, old: &Object, errs: &mut Errors) {
    let is_static = !At::root(&new.0).get("metadata").get("annotations").get(MIRROR).is_empty();
    let (new, old) = (At::root(&new.0).get("spec"), At::root(&old.0).get("spec"));
    let (new, old) = (new.get("ephemeralContainers"), old.get("ephemeralContainers"));
    if is_static {
        errs.forbidden("", "static pods do not support ephemeral containers");
    }
    for before in old.items() {
        let name = before.get("name");
        match new.items().find(|c| c.get("name").str() == name.str()) {
            None => errs
                .forbidden(&new.path, format!("existing ephemeral containers {:?} may not be removed\n", name.str())),
            Some(now) if !same(now.value, before.value) => errs
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
        // A Pod that may not be scheduled yet may still be told where to go, more narrowly than before.
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

fn tolerations(new: &At<'_>, old: &At<'_>, errs: &mut Errors) {
    for before in old.items() {
        let alike = |t: &At<'_>| {
            ["key", "operator", "value", "effect"].iter().all(|f| same(t.get(f).value, before.get(f).value))
        };
        if !new.items().any(|t| alike(&t)) {
            errs.forbidden(&new.path, "existing toleration can not be modified except its tolerationSeconds");
        }
    }
    for it in new.items() {
        scheduling::toleration(&it, errs);
    }
}

fn gates(new: &At<'_>, old: &At<'_>, errs: &mut Errors) {
    for gate in new.items() {
        if !old.items().any(|o| o.get("name").str() == gate.get("name").str()) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{}'", gate.get("name").str());
            errs.forbidden(gate.path("name"), why);
        }
    }
}

/// An update of the Pod's status by its agent.
pub fn status(new: &Object, old: &Object, errs: &mut Errors) {
    let (new_status, old_status) = (At::root(&new.0).get("status"), At::root(&old.0).get("status"));
    let (class, before) = (new_status.get("qosClass"), old_status.get("qosClass"));
    if !before.is_empty() && class.str() != before.str() {
        errs.invalid(&class.path, class.str(), "field is immutable");
    }
    let nominated = new_status.get("nominatedNodeName");
    if !nominated.is_empty() {
        errs.invalid_each(&nominated.path, nominated.str(), super::names::dns1123_subdomain(nominated.str()));
    }
    for list in ["podIPs", "hostIPs"] {
        for ip in new_status.get(list).items() {
            let ip = ip.get("ip");
            errs.invalid_each(&ip.path, ip.str(), super::names::ip(ip.str()));
        }
    }
    let policy = At::root(&old.0).get("spec").get("restartPolicy").str().to_owned();
    transitions(&new_status.get("containerStatuses"), &old_status.get("containerStatuses"), &policy, errs);
}

/// A container that has ended for good stays ended.
fn transitions(new: &At<'_>, old: &At<'_>, policy: &str, errs: &mut Errors) {
    for before in old.items() {
        let terminated = before.get("state").get("terminated");
        let failed = terminated.get("exitCode").int().unwrap_or(0) != 0;
        if !terminated.is_set() || policy == "Always" || (policy == "OnFailure" && failed) {
            continue;
        }
        let name = before.get("name");
        for now in new.items().filter(|n| n.get("name").str() == name.str()) {
            let state = now.get("state");
            if state.is_set() && !state.get("terminated").is_set() {
                errs.forbidden(&state.path, "may not be transitioned to non-terminated state");
            }
        }
    }
}
