//! The checks of the restricted level: hardening that a Pod must request.

use serde_json::Value;

use super::baseline::added;
use super::violation::{Pod, Violation, bad, containers, name, plural, quoted, setters, sorted, violation};

pub(super) fn escalation(pod: Pod<'_>) -> Option<Violation> {
    let bad = bad(pod, |container| container["securityContext"]["allowPrivilegeEscalation"] != false);
    let must = "must set securityContext.allowPrivilegeEscalation=false";
    if bad.is_empty() {
        None
    } else {
        violation("allowPrivilegeEscalation != false", format!("{} {must}", containers(&bad)))
    }
}
/// Windows has no such setting, so its Pods are exempt.
pub(super) fn escalation_25(pod: Pod<'_>) -> Option<Violation> {
    if pod.is_windows() { None } else { escalation(pod) }
}

pub(super) fn capabilities(pod: Pod<'_>) -> Option<Violation> {
    let keeps = bad(pod, |container| {
        let drop = container["securityContext"]["capabilities"]["drop"].as_array();
        !drop.is_some_and(|drop| drop.iter().any(|capability| capability == "ALL"))
    });
    let mut details = Vec::new();
    if !keeps.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers(&keeps)));
    }
    details.extend(added(pod, &["NET_BIND_SERVICE"]));
    if details.is_empty() { None } else { violation("unrestricted capabilities", details.join("; ")) }
}
pub(super) fn capabilities_25(pod: Pod<'_>) -> Option<Violation> {
    if pod.is_windows() { None } else { capabilities(pod) }
}

const VOLUMES: &[&str] =
    &["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"];

pub(super) fn volumes(pod: Pod<'_>) -> Option<Violation> {
    let (mut names, mut types) = (Vec::new(), Vec::new());
    for volume in pod.spec["volumes"].as_array().into_iter().flatten() {
        let source = volume.as_object().into_iter().flatten().find(|(key, value)| *key != "name" && !value.is_null());
        let source = source.map_or("unknown", |(key, _)| key.as_str());
        if !VOLUMES.contains(&source) {
            names.push(name(volume));
            types.push(source);
        }
    }
    if names.is_empty() {
        return None;
    }
    let types = sorted(types);
    let verb = if names.len() == 1 { "uses" } else { "use" };
    let (volumes, what) = (plural(names.len(), "volume"), plural(types.len(), "restricted volume type"));
    let detail = format!("{volumes} {} {verb} {what} {}", quoted(&names), quoted(&types));
    violation("restricted volume types", detail)
}

pub(super) fn non_root(pod: Pod<'_>) -> Option<Violation> {
    let field = |context: &Value| context["runAsNonRoot"].as_bool();
    let reason = "runAsNonRoot != true";
    let setters = setters(pod, |context| field(context) == Some(false));
    if !setters.is_empty() {
        return violation(reason, format!("{setters} must not set securityContext.runAsNonRoot=false"));
    }
    let of_pod = field(&pod.spec["securityContext"]) == Some(true);
    let silent = bad(pod, |container| !of_pod && field(&container["securityContext"]).is_none());
    match silent.is_empty() {
        true => None,
        false => {
            violation(reason, format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&silent)))
        }
    }
}
/// Root in a user namespace is not the host's root.
pub(super) fn non_root_35(pod: Pod<'_>) -> Option<Violation> {
    if pod.has_own_users() { None } else { non_root(pod) }
}

pub(super) fn user(pod: Pod<'_>) -> Option<Violation> {
    let setters = setters(pod, |context| context["runAsUser"] == 0);
    if setters.is_empty() { None } else { violation("runAsUser=0", format!("{setters} must not set runAsUser=0")) }
}
pub(super) fn user_35(pod: Pod<'_>) -> Option<Violation> {
    if pod.has_own_users() { None } else { user(pod) }
}

pub(super) fn seccomp(pod: Pod<'_>) -> Option<Violation> {
    let explicit = super::baseline::seccomp(pod);
    if explicit.is_some() {
        return explicit;
    }
    let of_pod = pod.spec["securityContext"]["seccompProfile"]["type"].is_string();
    let silent = bad(pod, |container| !of_pod && !container["securityContext"]["seccompProfile"].is_object());
    if silent.is_empty() {
        return None;
    }
    let must = "must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"";
    violation("seccompProfile", format!("pod or {} {must}", containers(&silent)))
}
pub(super) fn seccomp_25(pod: Pod<'_>) -> Option<Violation> {
    if pod.is_windows() { None } else { seccomp(pod) }
}
