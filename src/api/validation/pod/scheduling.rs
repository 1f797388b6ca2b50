//! Scheduling: affinity, tolerations, spreading, gates.

use std::collections::HashSet;

use serde_json::Value;

use super::super::{At, Errors, names, selectors};
use selectors::{MAX_OF_ALL, label_selector, lookups};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// The most terms on other Pods. Upstream has no limit; but each is compared with every Pod of the cluster and evaluated for every
/// node, and one object has room for thousands.
const MAX_POD_TERMS: usize = 100;
/// The most requirements on nodes, and their values: as many as a large cluster has nodes.
const MAX_REQUIREMENTS: usize = 1000;
const MAX_VALUES: usize = 5000;

pub fn affinity(affinity: &At<'_>, errs: &mut Errors) {
    node_affinity(&affinity.get("nodeAffinity"), errs);
    let lists = ["podAffinity", "podAntiAffinity"].into_iter().flat_map(|field| {
        let at = affinity.get(field);
        [REQUIRED, PREFERRED].map(|list| at.get(list).len())
    });
    let terms: usize = lists.sum();
    if terms > MAX_POD_TERMS {
        errs.too_many(&affinity.path, terms, MAX_POD_TERMS);
    }
    let mut asked = 0;
    for field in ["podAffinity", "podAntiAffinity"] {
        let at = affinity.get(field);
        for term in at.get(REQUIRED).items() {
            asked += pod_term(&term, errs);
        }
        for preferred in at.get(PREFERRED).items() {
            weight(&preferred, errs);
            asked += pod_term(&preferred.get("podAffinityTerm"), errs);
        }
    }
    of_all(affinity, asked, errs);
}

fn weight(preferred: &At<'_>, errs: &mut Errors) {
    let n = preferred.get("weight").int().unwrap_or(0);
    if !(1..=100).contains(&n) {
        errs.invalid(preferred.path("weight"), n, "must be in the range 1-100");
    }
}

fn node_affinity(at: &At<'_>, errs: &mut Errors) {
    let required = at.get(REQUIRED);
    if required.is_set() {
        let terms = required.get("nodeSelectorTerms");
        if terms.is_empty() {
            errs.required(&terms.path, "must have at least one node selector term");
        }
        node_requirements(&terms, terms.items(), errs);
        for term in terms.items() {
            node_term(&term, errs);
        }
    }
    let preferred = at.get(PREFERRED);
    node_requirements(&preferred, preferred.items().map(|it| it.get("preference")), errs);
    for preferred in at.get(PREFERRED).items() {
        weight(&preferred, errs);
        node_term(&preferred.get("preference"), errs);
    }
}

/// The requirements of all terms together.
fn node_requirements<'a>(at: &At<'_>, terms: impl Iterator<Item = At<'a>>, errs: &mut Errors) {
    let (mut all, mut values) = (0, 0);
    for requirements in terms.flat_map(|term| ["matchExpressions", "matchFields"].map(|list| term.get(list))) {
        all += requirements.len();
        values += requirements.items().map(|it| it.get("values").len()).sum::<usize>();
    }
    if all > MAX_REQUIREMENTS {
        errs.too_many_of(&at.path, all, MAX_REQUIREMENTS, "requirements in all terms");
    }
    if values > MAX_VALUES {
        errs.too_many_of(&at.path, values, MAX_VALUES, "values in all terms");
    }
}

fn node_term(term: &At<'_>, errs: &mut Errors) {
    for it in term.get("matchExpressions").items() {
        let values = it.get("values");
        match it.get("operator").str() {
            "In" | "NotIn" if values.is_empty() => {
                errs.required(&values.path, "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errs.forbidden(&values.path, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
            }
            "Gt" | "Lt" if values.len() != 1 => {
                errs.required(&values.path, "must be specified single value when `operator` is 'Lt' or 'Gt'");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => errs.invalid(it.path("operator"), other, "not a valid selector operator"),
        }
        label_key(&it.get("key"), errs);
    }
    for it in term.get("matchFields").items() {
        match it.get("operator").str() {
            "In" | "NotIn" if it.get("values").len() != 1 => {
                let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errs.required(it.path("values"), why);
            }
            "In" | "NotIn" => {}
            other => errs.invalid(it.path("operator"), other, "not a valid selector operator"),
        }
        if it.get("key").str() != "metadata.name" {
            errs.invalid(it.path("key"), it.get("key").str(), "not a valid field selector key");
        }
    }
}

fn label_key(at: &At<'_>, errs: &mut Errors) {
    errs.invalid_each(&at.path, at.str(), names::qualified_name(at.str()));
}

/// The total cost of all selectors per Pod is limited as well.
fn of_all(at: &At<'_>, lookups: usize, errs: &mut Errors) {
    if lookups > MAX_OF_ALL {
        errs.too_many_of(&at.path, lookups, MAX_OF_ALL, "requirements and values in all selectors, and namespaces");
    }
}

/// Returns its cost per Pod. Namespaces cost as much as values do: each Pod's is looked up among them, and they are kept as often.
fn pod_term(term: &At<'_>, errs: &mut Errors) -> usize {
    let selectors = [term.get("labelSelector"), term.get("namespaceSelector")];
    selectors.iter().for_each(|selector| label_selector(selector, errs));
    for namespace in term.get("namespaces").items() {
        errs.invalid_each(&namespace.path, namespace.str(), names::dns1123_label(namespace.str()));
    }
    topology_key(&term.get("topologyKey"), errs);
    // Each key becomes a requirement, even duplicates.
    let keys = ["matchLabelKeys", "mismatchLabelKeys"].map(|list| term.get(list).len());
    selectors.iter().map(lookups).sum::<usize>() + keys.iter().sum::<usize>() + term.get("namespaces").len()
}

fn topology_key(at: &At<'_>, errs: &mut Errors) {
    if at.is_empty() {
        errs.required(&at.path, "can not be empty");
    } else {
        label_key(at, errs);
    }
}

pub fn tolerations(all: &At<'_>, errs: &mut Errors) {
    for one in all.items() {
        toleration(&one, errs);
    }
}

pub fn toleration(at: &At<'_>, errs: &mut Errors) {
    let (key, operator, value, effect) = (at.get("key"), at.get("operator"), at.get("value"), at.get("effect"));
    if !key.is_empty() {
        label_key(&key, errs);
    } else if operator.str() != "Exists" {
        let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errs.invalid(&operator.path, operator.str(), why);
    }
    if at.get("tolerationSeconds").is_set() && effect.str() != "NoExecute" {
        let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errs.invalid(&effect.path, effect.str(), why);
    }
    match operator.str() {
        "" | "Equal" => errs.invalid_each(&operator.path, value.str(), names::label_value(value.str())),
        "Exists" if !value.is_empty() => {
            errs.invalid_value(&operator.path, at.value, "value must be empty when `operator` is 'Exists'");
        }
        "Exists" => {}
        other => errs.not_supported(&operator.path, other, &["Equal", "Exists"]),
    }
    if !effect.is_empty() {
        taint_effect(&effect, errs);
    }
}

pub fn taint_effect(at: &At<'_>, errs: &mut Errors) {
    errs.one_of(at, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
}

/// Scheduling and readiness gates: names, each once.
pub fn gates(spec: &At<'_>, errs: &mut Errors) {
    for gate in spec.get("readinessGates").items() {
        let name = gate.get("conditionType");
        errs.invalid_each(&name.path, name.str(), names::qualified_name(name.str()));
    }
    let mut seen: HashSet<&Value> = HashSet::new();
    for gate in spec.get("schedulingGates").items() {
        let name = gate.get("name");
        errs.invalid_each(&gate.path, name.str(), names::qualified_name(name.str()));
        if seen.contains(&name.value) {
            errs.duplicate(&gate.path, name.str());
        } else {
            seen.insert(name.value);
        }
    }
    if !spec.get("schedulingGates").is_empty() && !spec.get("nodeName").is_empty() {
        errs.forbidden(spec.path("nodeName"), "cannot be set until all schedulingGates have been cleared");
    }
}

pub fn topology_spread(constraints: &At<'_>, errs: &mut Errors) {
    let lookups = |it: At<'_>| lookups(&it.get("labelSelector")) + it.get("matchLabelKeys").len();
    of_all(constraints, constraints.items().map(lookups).sum(), errs);
    let mut seen: HashSet<(&str, &str)> = HashSet::new();
    for it in constraints.items() {
        let (skew, key, when) = (it.get("maxSkew"), it.get("topologyKey"), it.get("whenUnsatisfiable"));
        if let n @ ..=0 = skew.int().unwrap_or(0) {
            errs.invalid(&skew.path, n, "must be greater than zero");
        }
        topology_key(&key, errs);
        errs.one_of(&when, &["DoNotSchedule", "ScheduleAnyway"]);
        if seen.contains(&(key.str(), when.str())) {
            let both = format!("{{{}, {}}}", key.str(), when.str());
            errs.duplicate(it.path("{topologyKey, whenUnsatisfiable}"), both);
        }
        seen.insert((key.str(), when.str()));
        let domains = it.get("minDomains");
        if let Some(n) = domains.int() {
            if n <= 0 {
                errs.invalid(&domains.path, n, "must be greater than zero");
            }
            if when.str() != "DoNotSchedule" {
                let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}", when.str());
                errs.invalid(&domains.path, n, why);
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            let at = it.get(field);
            if at.is_set() {
                errs.one_of(&at, &["Honor", "Ignore"]);
            }
        }
        label_selector(&it.get("labelSelector"), errs);
        for (i, key) in it.get("matchLabelKeys").items().enumerate() {
            errs.invalid_each(&it.path(&format!("matchLabelKeys[{i}]")), key.str(), names::qualified_name(key.str()));
        }
    }
}
