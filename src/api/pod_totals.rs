//! What a Pod asks for as a whole, of an untyped PodSpec, resource by resource in exact quantities: for limits and quotas.
//! <https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers>

use std::collections::BTreeMap;

use serde_json::Value;

use super::Quantity;

/// Amounts by resource.
pub type Amounts = BTreeMap<String, Quantity>;

/// The amounts of a map of quantities; what is none is left out.
pub fn quantities(map: &Value) -> Amounts {
    let entries = map.as_object().into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), Quantity::from_json(value)?))).collect()
}

/// What all containers request together, or an init container beside the sidecars before it, whichever is more; where the
/// Pod requests something as a whole, that.
pub fn requests(spec: &Value) -> Amounts {
    total(spec, "requests")
}

/// The same of the limits. Containers without a limit add nothing.
pub fn limits(spec: &Value) -> Amounts {
    total(spec, "limits")
}

/// With what running the Pod itself costs: added to requests, and to such limits as there are.
pub fn with_overhead(mut amounts: Amounts, spec: &Value, to_all: bool) -> Amounts {
    for (name, overhead) in quantities(&spec["overhead"]) {
        if to_all || amounts.get(&name).is_some_and(|amount| !amount.is_zero()) {
            *amounts.entry(name).or_default() += overhead;
        }
    }
    amounts
}

fn total(spec: &Value, field: &str) -> Amounts {
    let list = |name: &str| spec[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let (mut running, mut sidecars, mut peak) = (Amounts::new(), Amounts::new(), Amounts::new());
    for container in list("containers") {
        add(&mut running, &quantities(&container["resources"][field]));
    }
    for container in list("initContainers") {
        let own = quantities(&container["resources"][field]);
        if container["restartPolicy"] == "Always" {
            add(&mut running, &own);
            add(&mut sidecars, &own);
            raise(&mut peak, &sidecars);
        } else {
            let mut now = sidecars.clone();
            add(&mut now, &own);
            raise(&mut peak, &now);
        }
    }
    raise(&mut running, &peak);
    running.extend(quantities(&spec["resources"][field]));
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
