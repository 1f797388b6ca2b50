//! LimitRanger: a namespace's LimitRanges fill in what containers leave out, and bound what Pods and claims ask for.
//! <https://kubernetes.io/docs/concepts/policy/limit-range/>

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{operation::Operation, review::Review};
use podwright_api::pod_totals::{self, Amounts};
use podwright_api::{Object, Quantity, Status};

/// Records what was filled in.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Whether LimitRanges apply to this write.
pub(super) fn concerns(review: &Review<'_>) -> bool {
    match review.operation {
        Operation::Create => review.is_about("Pod") || review.is_about("PersistentVolumeClaim"),
        Operation::Update => review.is_about("PersistentVolumeClaim") || is_resize(review),
        Operation::Delete | Operation::Connect => false,
    }
}

/// Resize is the only update that changes the resources of a Pod's containers.
fn is_resize(review: &Review<'_>) -> bool {
    review.call.kind.built_in() == "Pod" && review.operation == Operation::Update && review.subresource() == "resize"
}

fn ranges(review: &Review<'_>) -> Vec<Object> {
    review.list("limitranges", Some(review.namespace()))
}

/// The items of a range with the given type.
fn limits<'a>(range: &'a Object, of_type: &'static str) -> impl Iterator<Item = &'a Value> {
    range.0["spec"]["limits"].as_array().into_iter().flatten().filter(move |limit| limit["type"] == of_type)
}

pub(super) fn mutate(review: &Review<'_>, pod: &mut Object) -> Result<(), Status> {
    let is_new = review.is_about("Pod") && review.operation == Operation::Create;
    if !is_new && !is_resize(review) {
        return Ok(());
    }
    for range in ranges(review) {
        let mut defaults = [Map::new(), Map::new()];
        for limit in limits(&range, "Container") {
            for (into, field) in defaults.iter_mut().zip(["defaultRequest", "default"]) {
                into.extend(limit[field].as_object().into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
            }
        }
        if !is_new {
            // Nothing else may be resized.
            defaults.iter_mut().for_each(|all| all.retain(|resource, _| matches!(resource.as_str(), "cpu" | "memory")));
        }
        fill(pod, &defaults, |container| is_new || container["restartPolicy"] == "Always");
    }
    Ok(())
}

/// Fills the default requests and limits into every container, and those init containers that need them, and notes it in an
/// annotation.
fn fill(pod: &mut Object, defaults: &[Map<String, Value>; 2], has: impl Fn(&Value) -> bool) {
    let mut told: Vec<String> = Vec::new();
    for (list, called) in [("containers", "container"), ("initContainers", "init container")] {
        let all = pod.0["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in all.into_iter().flatten().filter(|container| list == "containers" || has(container)) {
            let name = container["name"].as_str().unwrap_or("").to_owned();
            for (defaults, field) in defaults.iter().zip(["requests", "limits"]) {
                let missing = |resource: &str| container["resources"][field].get(resource).is_none();
                let mut set: Vec<&String> = defaults.keys().filter(|resource| missing(resource)).collect();
                if set.is_empty() {
                    continue;
                }
                set.sort();
                let names: Vec<&str> = set.iter().map(|resource| resource.as_str()).collect();
                told.push(format!("{} {} for {called} {name}", names.join(", "), field.trim_end_matches('s')));
                if !container["resources"][field].is_object() {
                    container["resources"][field] = json!({});
                }
                for resource in names {
                    container["resources"][field][resource] = defaults[resource].clone();
                }
            }
        }
    }
    if !told.is_empty() {
        let text = format!("LimitRanger plugin set: {}", told.join("; "));
        pod.0["metadata"]["annotations"][ANNOTATION] = text.into();
    }
}

pub(super) fn validate(review: &Review<'_>, object: &Object) -> Result<(), Status> {
    if review.operation == Operation::Update && object.is_terminating() {
        return Ok(());
    }
    for range in ranges(review) {
        let mut errors = Vec::new();
        match review.call.kind.built_in() {
            "Pod" => pod(&range, object, &mut errors),
            _ => claim(&range, object, &mut errors),
        }
        let mut seen = HashSet::new();
        errors.retain(|error| seen.insert(error.clone()));
        match errors.as_slice() {
            [] => {}
            [one] => return Err(review.forbidden(object, one)),
            all => return Err(review.forbidden(object, format!("[{}]", all.join(", ")))),
        }
    }
    Ok(())
}

fn pod(range: &Object, pod: &Object, errors: &mut Vec<String>) {
    let spec = &pod.0["spec"];
    let containers =
        || ["containers", "initContainers"].into_iter().flat_map(|list| spec[list].as_array().into_iter().flatten());
    for limit in limits(range, "Container") {
        for container in containers() {
            let of = |field: &str| pod_totals::quantities(&container["resources"][field]);
            Asked { of: "Container", requests: of("requests"), limits: Some(of("limits")) }.check(limit, errors);
        }
    }
    for limit in limits(range, "Pod") {
        let (requests, limits) = (pod_totals::requests(spec), pod_totals::limits(spec));
        Asked { of: "Pod", requests, limits: Some(limits) }.check(limit, errors);
    }
}

fn claim(range: &Object, claim: &Object, errors: &mut Vec<String>) {
    for limit in limits(range, "PersistentVolumeClaim") {
        let requests = pod_totals::quantities(&claim.0["spec"]["resources"]["requests"]);
        Asked { of: "PersistentVolumeClaim", requests, limits: None }.check(limit, errors);
    }
}

/// What something requests, checked against one item of a range.
struct Asked {
    of: &'static str,
    requests: Amounts,
    /// `None`: it has no limits.
    limits: Option<Amounts>,
}

impl Asked {
    fn check(&self, limit: &Value, errors: &mut Vec<String>) {
        type Rule = fn(&Asked, &str, &Quantity) -> Result<(), String>;
        const RULES: &[(&str, Rule)] =
            &[("min", Asked::minimum), ("max", Asked::maximum), ("maxLimitRequestRatio", Asked::ratio)];
        for (field, rule) in RULES {
            for (resource, bound) in pod_totals::quantities(&limit[field]) {
                errors.extend(rule(self, &resource, &bound).err());
            }
        }
    }

    fn limit(&self, resource: &str) -> Option<&Quantity> {
        self.limits.as_ref()?.get(resource)
    }

    fn minimum(&self, resource: &str, bound: &Quantity) -> Result<(), String> {
        let rule = format!("minimum {resource} usage per {} is {bound}", self.of);
        match (self.requests.get(resource), self.limit(resource)) {
            (None, _) => Err(format!("{rule}.  No request is specified")),
            (Some(request), _) if request < bound => Err(format!("{rule}, but request is {request}")),
            (_, Some(limit)) if limit < bound => Err(format!("{rule}, but limit is {limit}")),
            _ => Ok(()),
        }
    }

    fn maximum(&self, resource: &str, bound: &Quantity) -> Result<(), String> {
        let rule = format!("maximum {resource} usage per {} is {bound}", self.of);
        match (self.requests.get(resource), self.limit(resource)) {
            (None, _) if self.limits.is_none() => Err(format!("{rule}.  No request is specified")),
            (_, None) if self.limits.is_some() => Err(format!("{rule}.  No limit is specified")),
            (_, Some(limit)) if limit > bound => Err(format!("{rule}, but limit is {limit}")),
            (Some(request), _) if request > bound => Err(format!("{rule}, but request is {request}")),
            _ => Ok(()),
        }
    }

    fn ratio(&self, resource: &str, bound: &Quantity) -> Result<(), String> {
        if self.limits.is_none() {
            return Ok(());
        }
        let rule = format!("{resource} max limit to request ratio per {} is {bound}", self.of);
        let given = |amount: Option<&Quantity>| amount.filter(|amount| !amount.is_zero()).map(Quantity::approximately);
        let Some(request) = given(self.requests.get(resource)) else {
            return Err(format!("{rule}, but no request is specified or request is 0"));
        };
        let Some(limit) = given(self.limit(resource)) else {
            return Err(format!("{rule}, but no limit is specified or limit is 0"));
        };
        let ratio = limit / request;
        match ratio > bound.approximately() {
            true => Err(format!("{rule}, but provided ratio is {ratio:.6}")),
            false => Ok(()),
        }
    }
}
