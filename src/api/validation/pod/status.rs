//! Valid Pod statuses: upstream's `podStatusStrategy` and `ValidatePodStatusUpdate`.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Value, json};

use super::super::{At, Errors, names};
use super::update;
use crate::Object;

/// The lists of container statuses, with the corresponding lists in the spec.
const LISTS: [(&str, &str); 3] = [
    ("containerStatuses", "containers"),
    ("initContainerStatuses", "initContainers"),
    ("ephemeralContainerStatuses", "ephemeralContainers"),
];

/// Conditions that are exempt from the naming rule.
const SYSTEM_CONDITIONS: [&str; 3] = ["PodScheduled", "Ready", "Initialized"];

/// Prepares an update: restores what writers may omit, and makes redundant fields agree.
pub fn prepare(new: &mut Object, old: &Object) {
    let before = &old.0["status"];
    let Some(status) = new.0.get_mut("status").and_then(Value::as_object_mut) else { return };
    let left_out = |value: Option<&Value>| value.is_none_or(|value| value.is_null() || value == "" || value == 0);
    for field in ["qosClass", "observedGeneration"] {
        if left_out(status.get(field)) && !left_out(before.get(field)) {
            status.insert(field.to_owned(), before[field].clone());
        }
    }
    // If both are given the single field is authoritative, as for kubelets that only know that one.
    for (one, all) in [("podIP", "podIPs"), ("hostIP", "hostIPs")] {
        let single = status.get(one).and_then(Value::as_str).unwrap_or("").to_owned();
        let first = status.get(all).and_then(|list| list[0]["ip"].as_str()).unwrap_or("").to_owned();
        if single.is_empty() && !first.is_empty() && one == "podIP" {
            status.insert(one.to_owned(), first.into());
        } else if !single.is_empty() && single != first && (first.is_empty() || one == "podIP") {
            status.insert(all.to_owned(), json!([{"ip": single}]));
        }
    }
    keep_generations(status.get_mut("conditions"), &before["conditions"]);
}

/// A condition without an observed generation keeps the old one.
fn keep_generations(conditions: Option<&mut Value>, before: &Value) {
    const FIELD: &str = "observedGeneration";
    let mut known: HashMap<&Value, VecDeque<&Value>> = HashMap::new();
    for old in before.as_array().into_iter().flatten() {
        known.entry(&old["type"]).or_default().push_back(old);
    }
    for condition in conditions.and_then(Value::as_array_mut).into_iter().flatten() {
        let of_type = condition.get("type").unwrap_or(&Value::Null);
        let Some(old) = known.get_mut(of_type).and_then(VecDeque::pop_front) else { continue };
        if condition[FIELD].as_i64().unwrap_or(0) == 0 && old[FIELD].as_i64().unwrap_or(0) != 0 {
            condition[FIELD] = old[FIELD].clone();
        }
        if condition[FIELD].is_null()
            && let Some(fields) = condition.as_object_mut()
        {
            // Indexing created a null where there was none.
            fields.shift_remove(FIELD);
        }
    }
}

/// The rules for an update.
pub fn check(new: &Object, old: &Object, errs: &mut Errors) {
    update::annotations(new, old, errs);
    let (root, before) = (At::root(&new.0), At::root(&old.0));
    let (status, before, spec) = (root.get("status"), before.get("status"), before.get("spec"));
    conditions(&status.get("conditions"), errs);
    let class = status.get("qosClass");
    if !before.get("qosClass").is_empty() && class.str() != before.get("qosClass").str() {
        errs.invalid(&class.path, class.str(), "field is immutable");
    }
    errs.non_negative(&status.get("observedGeneration"));
    let nominated = status.get("nominatedNodeName");
    if !nominated.is_empty() && nominated.str() != before.get("nominatedNodeName").str() {
        errs.invalid_each(&nominated.path, nominated.str(), names::dns1123_subdomain(nominated.str()));
    }
    for (list, of) in LISTS {
        transitions(&status.get(list), &before.get(list), &spec, of, errs);
    }
    claims(&status.get("resourceClaimStatuses"), &spec, errs);
    addresses(&status.get("podIPs"), &before.get("podIPs"), errs);
    addresses(&status.get("hostIPs"), &before.get("hostIPs"), errs);
    let (first, single) = (status.get("hostIPs").items().next(), status.get("hostIP"));
    if let Some(first) = first.map(|first| first.get("ip")).filter(|first| first.str() != single.str()) {
        errs.invalid(&first.path, first.str(), "must be equal to `hostIP`");
    }
}

fn conditions(list: &At<'_>, errs: &mut Errors) {
    for of in list.items().map(|condition| condition.get("type")) {
        if !SYSTEM_CONDITIONS.contains(&of.str()) {
            errs.invalid_each(&of.path, of.str(), names::qualified_name(of.str()));
        }
    }
}

/// At most one of each family, and none that leads back to the caller. (Upstream has the last rule only for endpoints, which are
/// derived from these. Existing ones stay.)
fn addresses(list: &At<'_>, old: &At<'_>, errs: &mut Errors) {
    let known: HashSet<&str> = old.items().map(|it| it.get("ip").str()).collect();
    let mut families = Vec::new();
    for it in list.items().map(|it| it.get("ip")) {
        match it.str().parse::<std::net::IpAddr>() {
            Err(_) => errs.invalid_each(&it.path, it.str(), names::ip(it.str())),
            Ok(ip) => {
                families.push(ip.is_ipv4());
                if let Some(wrong) = names::special_ip(ip).filter(|_| !known.contains(it.str())) {
                    errs.invalid(&it.path, it.str(), wrong);
                }
            }
        }
    }
    if families.len() > 2 || (families.len() == 2 && families[0] == families[1]) {
        errs.invalid_value(&list.path, list.value, "may specify no more than one IP for each IP family");
    }
}

fn claims(list: &At<'_>, spec: &At<'_>, errs: &mut Errors) {
    let mut seen: HashSet<&str> = HashSet::new();
    let known: HashSet<&str> = spec.get("resourceClaims").items().map(|claim| claim.get("name").str()).collect();
    for status in list.items() {
        let (name, claim) = (status.get("name"), status.get("resourceClaimName"));
        if !known.contains(name.str()) {
            errs.invalid(&name.path, name.str(), "must match the name of an entry in `spec.resourceClaims`");
        }
        if !seen.insert(name.str()) {
            errs.duplicate(&name.path, name.str());
        }
        if claim.is_set() {
            errs.invalid_each(&name.path, claim.str(), names::dns1123_subdomain(claim.str()));
        }
    }
}

/// The items of a list by name.
fn by_name<'a>(list: &At<'a>) -> HashMap<&'a str, Vec<At<'a>>> {
    let mut all: HashMap<_, Vec<_>> = HashMap::new();
    list.items().for_each(|it| all.entry(it.get("name").str()).or_default().push(it));
    all
}

/// A terminated container that is not restarted stays terminated.
fn transitions(new: &At<'_>, old: &At<'_>, spec: &At<'_>, of: &str, errs: &mut Errors) {
    let policy = match of {
        // They are never restarted.
        "ephemeralContainers" => "Never",
        _ => spec.get("restartPolicy").str(),
    };
    if policy == "Always" {
        return;
    }
    let (containers, states) = (by_name(&spec.get(of)), by_name(new));
    for before in old.items() {
        let (name, terminated) = (before.get("name"), before.get("state").get("terminated"));
        let failed = terminated.get("exitCode").int().unwrap_or(0) != 0;
        let container = containers.get(name.str()).and_then(|all| all.first());
        let is_restartable = container.is_some_and(|container| {
            // Its own restart policy or rules take precedence over the Pod's (KEP-753, KEP-5307).
            let own = container.get("restartPolicy").str();
            own == "Always" || (own == "OnFailure" && failed) || !container.get("restartPolicyRules").is_empty()
        });
        if !terminated.is_set() || is_restartable || (policy == "OnFailure" && failed) {
            continue;
        }
        for now in states.get(name.str()).into_iter().flatten() {
            if !now.get("state").get("terminated").is_set() {
                errs.forbidden(now.path("state"), "may not be transitioned to non-terminated state");
            }
        }
    }
}
