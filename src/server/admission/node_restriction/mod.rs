//! NodeRestriction: what a node's agent may not write, whatever RBAC grants it, and what only nodes may write.
//!
//! The Node authorizer (`authorize::node`) says which objects a node may write at all, this plugin what may be in them: [`pod`]
//! mirror Pods and reports of Pods, [`node`] its own Node, [`token`] tokens for its Pods; the rest is here. It runs twice: on what
//! was sent, and on the result of webhooks.
//! <https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction>

use serde_json::Value;

use super::{operation::Operation, review::Review};
use crate::authorize::node::{LEASES, kept_by, node_of};
use podwright_api::persistent_volume::local;
use podwright_api::validation::same;
use podwright_api::{Object, Status};

mod node;
mod pod;
mod token;

pub(super) fn concerns(review: &Review<'_>) -> bool {
    review.operation != Operation::Connect && (node_of(&review.call.user).is_some() || is_new_pod(review))
}

/// Only nodes may create mirror Pods, so others' new Pods are checked for being mirrors.
fn is_new_pod(review: &Review<'_>) -> bool {
    review.is("Pod", Operation::Create) && review.call.kind.group.is_empty()
}

pub(super) fn mutate(review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
    validate(review, object)
}

pub(super) fn validate(review: &Review<'_>, object: &Object) -> Result<(), Status> {
    let (user, kind) = (&review.call.user, review.call.kind);
    let refuse = |why: String| Err(review.forbidden(object, why));
    let Some(node) = node_of(user) else { return pod::of_others(review, object) };
    if node.is_empty() {
        return refuse(format!("could not determine node from user {:?}", user.name));
    }
    finalizers(review, node, object)?;
    match (kind.group, kind.built_in(), review.subresource()) {
        ("", "Pod", "") => pod::itself(review, node, object),
        ("", "Pod", "status") => pod::status(review, node, object),
        ("", "Pod", "eviction") => pod::eviction(review, node, object),
        ("", "Pod", other) => {
            refuse(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))
        }
        ("", "Node", _) => node::itself(review, node, object),
        ("", "PersistentVolumeClaim", "status") => claim_status(review, node, object),
        ("", "PersistentVolumeClaim", _) => refuse("may only update PVC status".into()),
        ("", "PersistentVolume", _) => volume(review, node, object),
        ("", "ServiceAccount", "token") => token::request(review, node, object),
        ("coordination.k8s.io", "Lease", _) if review.namespace() != LEASES => {
            refuse(format!("can only access leases in the {LEASES:?} system namespace"))
        }
        ("coordination.k8s.io", "Lease", _) if name_of(review, object) != node => {
            refuse("can only access node lease with the same name as the requesting node".into())
        }
        ("storage.k8s.io", "CSINode", _) if name_of(review, object) != node => {
            refuse("can only access CSINode with the same name as the requesting node".into())
        }
        ("resource.k8s.io", "ResourceSlice", _) => slice(review, node, object),
        ("" | "events.k8s.io", "Event", _) => event(review, node, object),
        _ => Ok(()),
    }
}

/// Nothing that a node writes may have finalizers that block its deletion: neither its Node, nor a mirror Pod, which would block
/// its namespace too. (Upstream allows it.)
fn finalizers(review: &Review<'_>, node: &str, new: &Object) -> Result<(), Status> {
    let keeps_metadata = !review.subresource().is_empty() && review.call.kind.built_in() != "Node";
    let is_volume = review.is_about("PersistentVolume");
    if keeps_metadata || is_volume || !matches!(review.operation, Operation::Create | Operation::Update) {
        return Ok(());
    }
    let of = |object: &Object| object.0["metadata"]["finalizers"].clone();
    match same(&of(new), &review.old.map(of).unwrap_or_default()) {
        true => Ok(()),
        false => Err(review.forbidden(new, format!("node {node:?} is not allowed to modify finalizers"))),
    }
}

/// The name in the request, or else the object's (on create).
fn name_of<'a>(review: &'a Review<'_>, object: &'a Object) -> &'a str {
    match review.call.name() {
        "" => object.name(),
        name => name,
    }
}

/// A node reports how far a volume's expansion has got, and nothing else of a claim.
fn claim_status(review: &Review<'_>, node: &str, new: &Object) -> Result<(), Status> {
    const REPORTED: [&str; 4] = ["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"];
    let Some(old) = review.old.filter(|_| review.operation == Operation::Update) else {
        return Err(review.forbidden(new, format!("unexpected operation {:?}", review.operation.as_str())));
    };
    let rest = |claim: &Object| -> Value {
        let mut rest = claim.clone();
        ["resourceVersion", "managedFields"].iter().for_each(|field| rest.set_meta(field, None));
        if let Some(status) = rest.0["status"].as_object_mut() {
            REPORTED.iter().for_each(|field| drop(status.shift_remove(*field)));
        }
        rest.0
    };
    match same(&rest(new), &rest(old)) {
        true => Ok(()),
        false => {
            let why = "is not allowed to update fields other than status.capacity and status.conditions";
            Err(review.forbidden(new, format!("node {node:?} {why}")))
        }
    }
}

/// A node that holds a volume confirms that the data of a deleted one is gone by removing its finalizer; it writes nothing else of
/// volumes.
fn volume(review: &Review<'_>, node: &str, new: &Object) -> Result<(), Status> {
    let refuse = |why: &str| Err(review.forbidden(new, format!("node {node:?} {why}")));
    let old = review.old.filter(|_| review.operation == Operation::Update && review.subresource().is_empty());
    let Some(old) = old else { return refuse("is not allowed to write persistentvolumes") };
    if !kept_by(old, node) {
        return refuse("does not keep this persistentvolume");
    }
    if !old.is_terminating() {
        return refuse("can only update persistentvolumes that are being deleted");
    }
    let without = |volume: &Object, finalizer: Option<&str>| -> Value {
        let mut rest = volume.clone();
        ["resourceVersion", "managedFields"].iter().for_each(|field| rest.set_meta(field, None));
        let left: Vec<Value> =
            volume.finalizers().into_iter().filter(|name| Some(*name) != finalizer).map(Value::from).collect();
        rest.set_meta("finalizers", Value::Array(left));
        rest.0
    };
    match same(&without(new, None), &without(old, Some(local::FINALIZER))) {
        true => Ok(()),
        false => refuse(&format!("is not allowed to change anything but the finalizer {}", local::FINALIZER)),
    }
}

/// A node makes Events as itself, and changes its own: whoever may write one reads it, too. (Upstream lets it write all.)
fn event(review: &Review<'_>, node: &str, object: &Object) -> Result<(), Status> {
    let said_by = |event: &Object| {
        let of_old = ["source", "deprecatedSource"].iter().map(|source| &event.0[*source]["host"]);
        let hosts = of_old.chain([&event.0["reportingInstance"]]).filter_map(Value::as_str);
        let mut hosts = hosts.filter(|host| !host.is_empty()).peekable();
        hosts.peek().is_some() && hosts.all(|host| host == node)
    };
    match said_by(object) && review.old.is_none_or(said_by) {
        true => Ok(()),
        false => Err(review.forbidden(object, format!("node {node:?} can only write events that it reports itself"))),
    }
}

/// A node publishes ResourceSlices of its own devices only.
fn slice(review: &Review<'_>, node: &str, object: &Object) -> Result<(), Status> {
    let verb = match review.operation {
        Operation::Create => "create",
        Operation::Delete => "delete",
        _ => "update",
    };
    let of_node = |slice: &Object| slice.0["spec"]["nodeName"] == node;
    match of_node(object) && review.old.is_none_or(of_node) {
        true => Ok(()),
        false => {
            let why = format!("can only {verb} ResourceSlice with the same NodeName as the requesting node");
            Err(review.forbidden(object, why))
        }
    }
}
