//! The total resources of an untyped PodSpec in exact quantities, for limits and quotas.
//! <https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers>

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
};

use serde_json::{Map, Value};

use super::Quantity;

/// Amounts by resource.
pub type Amounts = BTreeMap<String, Quantity>;

/// The amounts in a map of quantities; invalid ones are dropped.
pub fn quantities(map: &Value) -> Amounts {
    let entries = map.as_object().into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), Quantity::from_json(value)?))).collect()
}

/// The requests of all containers together, or of an init container beside the sidecars before it, whichever is more; or the
/// Pod-level requests.
pub fn requests(spec: &Value) -> Amounts {
    total(spec, "requests")
}

/// The same for the limits. Containers without a limit add nothing.
pub fn limits(spec: &Value) -> Amounts {
    total(spec, "limits")
}

/// A Pod's spec with what its containers occupy: their requests, or more while they still have, or are allocated, more. Requests
/// that its node has found infeasible do not count; pending ones do. Borrowed if the spec is unchanged.
pub fn held(pod: &Value) -> Cow<'_, Value> {
    let spec = &pod["spec"];
    let list = |of: &'static str| pod["status"][of].as_array().into_iter().flatten();
    let statuses = || list("containerStatuses").chain(list("initContainerStatuses"));
    if statuses().all(|status| status["resources"].is_null() && status["allocatedResources"].is_null()) {
        return Cow::Borrowed(spec);
    }
    let generation = pod["metadata"]["generation"].as_i64();
    let ends = !pod["metadata"]["deletionTimestamp"].is_null();
    let infeasible = list("conditions").any(|c| {
        let judged = ends || c["observedGeneration"].as_i64() >= generation;
        judged && c["type"] == "PodResizePending" && c["reason"] == "Infeasible"
    });
    let mut known = HashMap::new();
    for status in statuses() {
        known.entry(&status["name"]).or_insert(status);
    }
    let mut spec = spec.clone();
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let name = container.get("name").unwrap_or(&Value::Null);
            let Some(status) = known.get(name) else { continue };
            for (field, told) in [
                ("requests", vec![&status["resources"]["requests"], &status["allocatedResources"]]),
                ("limits", vec![&status["resources"]["limits"]]),
            ] {
                let told: Vec<&Value> = told.into_iter().filter(|told| told.is_object()).collect();
                let asked = &container["resources"][field];
                if told.iter().all(|told| *told == asked) {
                    continue;
                }
                let asked = (!infeasible).then_some(asked);
                let mut most = Amounts::new();
                told.into_iter().chain(asked).for_each(|amounts| raise(&mut most, &quantities(amounts)));
                container["resources"][field] =
                    most.iter().map(|(name, amount)| (name.clone(), Value::from(amount.to_string()))).collect();
            }
        }
    }
    Cow::Owned(spec)
}

/// Adds the Pod's overhead: to requests, and to existing limits.
pub fn with_overhead(mut amounts: Amounts, spec: &Value, to_all: bool) -> Amounts {
    for (name, overhead) in quantities(&spec["overhead"]) {
        if to_all || amounts.get(&name).is_some_and(|amount| !amount.is_zero()) {
            *amounts.entry(name).or_default() += overhead;
        }
    }
    amounts
}

fn total(spec: &Value, field: &str) -> Amounts {
    let mut all = spec.as_object().map(|spec| of_containers(spec, field)).unwrap_or_default();
    all.extend(quantities(&spec["resources"][field]));
    all
}

/// The `requests` or `limits` of a PodSpec's containers, ignoring Pod-level ones.
pub fn of_containers(spec: &Map<String, Value>, field: &str) -> Amounts {
    let list = |name: &str| spec.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let (mut running, mut sidecars, mut peak) = (Amounts::new(), Amounts::new(), Amounts::new());
    for container in list("containers") {
        add(&mut running, &quantities(&container["resources"][field]));
    }
    for container in list("initContainers") {
        let own = quantities(&container["resources"][field]);
        if container["restartPolicy"] == "Always" {
            add(&mut running, &own);
            add(&mut sidecars, &own);
        } else {
            // For resources that it does not contain, the maximum is at the end, when all sidecars run.
            let beside = |name: &String| sidecars.get(name).copied().unwrap_or_default();
            let now = own.into_iter().map(|(name, amount)| (name.clone(), amount + beside(&name))).collect();
            raise(&mut peak, &now);
        }
    }
    raise(&mut running, &peak);
    running
}

fn add(to: &mut Amounts, amounts: &Amounts) {
    for (name, amount) in amounts {
        *to.entry(name.clone()).or_default() += *amount;
    }
}

fn raise(to: &mut Amounts, amounts: &Amounts) {
    for (name, amount) in amounts {
        let mine = to.entry(name.clone()).or_default();
        if *mine < *amount {
            *mine = *amount;
        }
    }
}
