//! Common properties of a Pod: its QoS class, its resources, the tolerations that admission adds.

use serde_json::{Map, Value, json};

use super::quantity::Quantity;

/// The resources that determine a Pod's QoS class.
pub const COUNTED: [&str; 2] = ["cpu", "memory"];

/// `Guaranteed`, `Burstable` or `BestEffort`, for a PodSpec. <https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/>
pub fn qos_class(spec: &Value) -> &'static str {
    let amount = |map: &Value, name: &str| Quantity::from_json(&map[name]).filter(|q| !q.is_zero());
    let containers = || {
        let list = |field: &str| spec[field].as_array().map(Vec::as_slice).unwrap_or_default().iter();
        list("initContainers").chain(list("containers"))
    };
    // Pod-level resources take precedence over those of its containers, if they include any of these.
    let whole = &spec["resources"];
    let of: Vec<&Value> =
        if COUNTED.iter().any(|name| !whole["requests"][name].is_null() || !whole["limits"][name].is_null()) {
            vec![whole]
        } else {
            containers().map(|c| &c["resources"]).collect()
        };
    let (mut any, mut guaranteed) = (false, true);
    for resources in &of {
        for name in COUNTED {
            let (request, limit) = (amount(&resources["requests"], name), amount(&resources["limits"], name));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request.is_none_or(|r| Some(r) == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// How many seconds a Pod stays by default on a node with one of these taints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TolerationSeconds {
    pub not_ready: i64,
    pub unreachable: i64,
}

impl Default for TolerationSeconds {
    fn default() -> TolerationSeconds {
        TolerationSeconds { not_ready: 300, unreachable: 300 }
    }
}

/// The two tolerations that admission adds to every Pod without tolerations for these taints: a grace period on a node that is not
/// ready or not reachable.
pub fn add_default_tolerations(spec: &mut Map<String, Value>, seconds: TolerationSeconds) {
    let list = spec.entry("tolerations").or_insert_with(|| json!([]));
    let Some(list) = list.as_array_mut() else { return };
    for (key, seconds) in
        [("node.kubernetes.io/not-ready", seconds.not_ready), ("node.kubernetes.io/unreachable", seconds.unreachable)]
    {
        let tolerates = |t: &Value| {
            let effect = t["effect"].as_str().unwrap_or("");
            let its_key = t["key"].as_str().unwrap_or("");
            (its_key == key || its_key.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        };
        if !list.iter().any(tolerates) {
            list.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}));
        }
    }
}
