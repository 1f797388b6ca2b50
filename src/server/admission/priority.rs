//! Priority: a Pod's number from its class. The classes are the two that every cluster has.

use serde_json::Value;

use crate::api::{Object, Status};
use crate::server::call::Call;

const CLASSES: [(&str, i64); 2] = [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

pub(super) fn admit(call: &Call, pod: &mut Object) -> Result<(), Status> {
    let class = pod.0["spec"]["priorityClassName"].as_str().unwrap_or("").to_owned();
    let priority = match CLASSES.iter().find(|(name, _)| *name == class) {
        Some((_, priority)) => *priority,
        None if class.is_empty() => 0,
        None => return Err(call.forbidden(format!("no PriorityClass with name {class} was found"))),
    };
    let given = pod.0["spec"]["priority"].as_i64();
    if given.is_some_and(|given| given != priority) {
        let why = "the integer value of priority must not be provided in pod spec; priority admission controller \
                   computes the value from the given PriorityClass name";
        return Err(call.forbidden(why));
    }
    pod.0["spec"]["priority"] = Value::from(priority);
    if pod.0["spec"]["preemptionPolicy"].is_null() {
        pod.0["spec"]["preemptionPolicy"] = "PreemptLowerPriority".into();
    }
    Ok(())
}
