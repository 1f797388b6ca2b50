//! NodeRestriction: what a node's agent may not write, whatever it was granted.
//! <https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction>

use serde_json::Value;

use super::{Operation, Review};
use crate::api::{Object, Status};
use crate::server::authorize::node::{LEASES, node_of};

const MIRROR: &str = "kubernetes.io/config.mirror";

pub(super) fn concerns(review: &Review<'_>) -> bool {
    review.operation != Operation::Connect && node_of(&review.call.user).is_some()
}

/// Before the object is looked at in any other way.
pub(super) fn may_write(review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
    may(review, object)
}

pub(super) fn may_delete(review: &Review<'_>, object: &Object) -> Result<(), Status> {
    if review.operation == Operation::Delete { may(review, object) } else { Ok(()) }
}

fn may(review: &Review<'_>, object: &Object) -> Result<(), Status> {
    let Some(node) = node_of(&review.call.user) else { return Ok(()) };
    let refuse = |why: String| Err(review.forbidden(object, why));
    let runs = |pod: &str| review.server.authorizer.node.runs(node, review.namespace(), pod);
    let name = match review.call.name() {
        "" => object.name(),
        name => name,
    };
    match (review.call.kind.kind, review.subresource(), review.operation) {
        ("Node", "", Operation::Create) if name != node => {
            refuse(format!("node {node:?} is not allowed to create node {name:?}"))
        }
        ("Node", _, Operation::Delete) => refuse(format!("node {node:?} is not allowed to delete node {name:?}")),
        ("Node", ..) if name != node => refuse(format!("node {node:?} is not allowed to modify node {name:?}")),
        ("Node", ..) => labels_and_taints(review, node, object),
        ("Lease", _, Operation::Create) if name != node || review.namespace() != LEASES => {
            let namespace = review.namespace();
            refuse(format!("node {node:?} is not allowed to access lease {name:?} in namespace {namespace:?}"))
        }
        ("CSINode", ..) if name != node => refuse(format!("can only access CSINode {node:?}")),
        ("Pod", "", Operation::Create) => mirror(review, node, object),
        ("Pod", "", Operation::Delete) | ("Pod", "status" | "eviction", _) => match runs(name) {
            true => Ok(()),
            false => refuse(format!("node {node:?} can only delete, evict and report pods that it runs")),
        },
        ("Pod", other, _) if !other.is_empty() => {
            refuse(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))
        }
        ("Pod", ..) => refuse(format!("node {node:?} is not allowed to modify pods beyond their status")),
        ("ServiceAccount", "token", _) => token(review, node, object),
        _ => Ok(()),
    }
}

/// A node may create the pictures of its static Pods, which refer to nothing that it could then read.
fn mirror(review: &Review<'_>, node: &str, pod: &Object) -> Result<(), Status> {
    let refuse = |why: String| Err(review.forbidden(pod, why));
    if pod.annotation(MIRROR).is_none_or(str::is_empty) {
        return refuse(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"));
    }
    let spec = &pod.0["spec"];
    if spec["nodeName"] != node {
        return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    if spec["serviceAccountName"].as_str().is_some_and(|name| !name.is_empty()) {
        return refuse(format!("node {node:?} can not create pods that reference a service account"));
    }
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    for (field, what) in
        [("secret", "secrets"), ("configMap", "configmaps"), ("persistentVolumeClaim", "persistentvolumeclaims")]
    {
        if volumes.clone().any(|volume| !volume[field].is_null()) {
            return refuse(format!("node {node:?} can not create pods that reference {what}"));
        }
    }
    Ok(())
}

/// A node gets tokens for its own Pods alone.
fn token(review: &Review<'_>, node: &str, request: &Object) -> Result<(), Status> {
    let refuse = |why: &str| Err(review.forbidden(request, why));
    let bound_to = &request.0["spec"]["boundObjectRef"];
    if bound_to["kind"] != "Pod" {
        return refuse("node requested token not bound to a pod");
    }
    if bound_to["uid"].as_str().is_none_or(str::is_empty) {
        return refuse("node requested token with a pod binding without a uid");
    }
    let pod = bound_to["name"].as_str().unwrap_or("");
    match review.server.authorizer.node.runs(node, review.namespace(), pod) {
        true => Ok(()),
        false => refuse("node requested token bound to a pod scheduled on a different node"),
    }
}

/// The labels that a node may set on itself below `kubernetes.io` and `k8s.io`.
const OWN_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.kubernetes.io/region",
    "failure-domain.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Refuses labels and taints by which a node would draw Pods to itself.
fn labels_and_taints(review: &Review<'_>, node: &str, new: &Object) -> Result<(), Status> {
    let refuse = |why: String| Err(review.forbidden(new, why));
    let labels = |object: &Object| object.labels().cloned().unwrap_or_default();
    let (new_labels, old_labels) = (labels(new), review.old.map(labels).unwrap_or_default());
    let keys = new_labels.keys().chain(old_labels.keys());
    let changed = keys.filter(|key| new_labels.get(*key) != old_labels.get(*key));
    let mut forbidden: Vec<&str> = changed.filter(|key| is_reserved(key)).map(String::as_str).collect();
    forbidden.sort_unstable();
    forbidden.dedup();
    if !forbidden.is_empty() {
        let list = forbidden.join(", ");
        return refuse(format!("is not allowed to modify labels: {list}"));
    }
    let taints = |object: &Object| object.at("spec.taints").cloned().unwrap_or(Value::Null);
    match review.old {
        Some(old) if taints(new) != taints(old) => refuse(format!("node {node:?} is not allowed to modify taints")),
        _ => Ok(()),
    }
}

fn is_reserved(label: &str) -> bool {
    let Some((prefix, _)) = label.split_once('/') else { return false };
    let below = |domain: &str| prefix == domain || prefix.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    if below("node-restriction.kubernetes.io") {
        return true;
    }
    let open = below("kubelet.kubernetes.io") || below("node.kubernetes.io") || OWN_LABELS.contains(&label);
    !open && (below("kubernetes.io") || below("k8s.io"))
}
