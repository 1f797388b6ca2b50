//! RuntimeClass: a Pod's class must exist; it sets the Pod's overhead and where it can run.
//! <https://kubernetes.io/docs/concepts/containers/runtime-class/>

use serde_json::{Value, json};

use super::{operation::Operation, review::Review};
use podwright_api::validation::same;
use podwright_api::{Object, Status};

const CLASSES: &str = "runtimeclasses";

pub(super) fn concerns(review: &Review<'_>) -> bool {
    review.is("Pod", Operation::Create)
}

/// The Pod's class; `None` if it names none.
fn class(review: &Review<'_>, pod: &Object) -> Result<Option<Object>, Status> {
    let Some(name) = pod.at("spec.runtimeClassName").and_then(Value::as_str).filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let missing = || review.forbidden(pod, format!("pod rejected: RuntimeClass \"{name}\" not found"));
    review.get(CLASSES, None, name).map(Some).ok_or_else(missing)
}

pub(super) fn mutate(review: &Review<'_>, pod: &mut Object) -> Result<(), Status> {
    let Some(class) = class(review, pod)? else { return Ok(()) };
    if let Some(overhead) = class.at("overhead.podFixed") {
        if pod.at("spec.overhead").is_some_and(|given| !same(given, overhead)) {
            let why = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
            return Err(review.forbidden(pod, why));
        }
        pod.0["spec"]["overhead"] = overhead.clone();
    }
    let Some(scheduling) = class.at("scheduling") else { return Ok(()) };
    for (key, value) in scheduling["nodeSelector"].as_object().into_iter().flatten() {
        let given = &pod.0["spec"]["nodeSelector"][key];
        if !given.is_null() && given != value {
            let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
            let (wanted, given) = (text(value), text(given));
            let why = format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {given}"
            );
            return Err(review.forbidden(pod, why));
        }
        pod.0["spec"]["nodeSelector"][key.as_str()] = value.clone();
    }
    let tolerations = scheduling["tolerations"].as_array().cloned().unwrap_or_default();
    if !tolerations.is_empty() && !pod.0["spec"]["tolerations"].is_array() {
        pod.0["spec"]["tolerations"] = json!([]);
    }
    if let Some(list) = pod.0.pointer_mut("/spec/tolerations").and_then(Value::as_array_mut) {
        for toleration in tolerations {
            if !list.contains(&toleration) {
                list.push(toleration);
            }
        }
    }
    Ok(())
}

pub(super) fn validate(review: &Review<'_>, pod: &Object) -> Result<(), Status> {
    let defined = class(review, pod)?.and_then(|class| class.at("overhead.podFixed").cloned());
    match (pod.at("spec.overhead"), defined) {
        (Some(_), None) => {
            let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
            Err(review.forbidden(pod, why))
        }
        (given, Some(defined)) if !given.is_some_and(|given| same(given, &defined)) => {
            let why = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
            Err(review.forbidden(pod, why))
        }
        _ => Ok(()),
    }
}
