//! What a node's agent may do, and what it may write: upstream's Node authorizer and NodeRestriction.

use std::sync::Arc;

use serde_json::Value;

use super::graph::Graph;
use super::rule::Rule;
use super::{Attributes, Decision, defaults};
use crate::api::selector::FieldSelector;
use crate::api::{Object, Status, User, Verb, kinds};
use crate::server::Server;
use crate::server::cache::Cache;
use crate::server::call::Call;

const LEASES: &str = "kube-node-lease";
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The Node authorizer.
pub(in crate::server) struct NodeAuthorizer {
    cache: Arc<Cache>,
    graph: Graph,
    /// What every node may do, whatever its Pods.
    rules: Vec<Rule>,
}

/// The node whose agent a user is.
pub(in crate::server) fn node_of(user: &User) -> Option<&str> {
    user.name.strip_prefix("system:node:").filter(|_| user.is_in("system:nodes"))
}

impl NodeAuthorizer {
    pub fn new(cache: &Arc<Cache>) -> NodeAuthorizer {
        NodeAuthorizer { cache: cache.clone(), graph: Graph::new(cache), rules: defaults::node_rules() }
    }

    pub fn decide(&self, asked: &Attributes<'_>) -> Decision {
        let no = |why: &str| Decision::NoOpinion(why.to_owned());
        let Some(node) = node_of(asked.user) else { return no("") };
        if node.is_empty() {
            return Decision::NoOpinion(format!("unknown node for user {:?}", asked.user.name));
        }
        match (asked.group, asked.resource) {
            ("", "secrets" | "configmaps") => match asked.verb {
                _ if !asked.subresource.is_empty() => no("cannot read subresource"),
                "get" | "list" | "watch" if asked.namespace.is_empty() => {
                    no("can only read namespaced object of this type")
                }
                "get" | "list" | "watch" => self.needed(node, asked),
                _ => no("can only read resources of this type"),
            },
            ("", "persistentvolumeclaims") if asked.subresource == "status" => match asked.verb {
                "update" | "patch" => self.needed(node, asked),
                _ => no("can only get/update/patch this type"),
            },
            ("", "persistentvolumeclaims" | "persistentvolumes")
            | ("resource.k8s.io", "resourceclaims")
            | ("storage.k8s.io", "volumeattachments") => match (asked.verb, asked.subresource) {
                ("get", "") => self.needed(node, asked),
                ("get", _) => no("cannot get subresource"),
                _ => no("can only get individual resources of this type"),
            },
            ("", "serviceaccounts") => match (asked.verb, asked.subresource) {
                ("create", "token") => self.needed(node, asked),
                ("create", _) => no("can only create token subresource of serviceaccount"),
                _ => no("can only create tokens for individual service accounts"),
            },
            ("coordination.k8s.io", "leases") => lease(node, asked),
            ("storage.k8s.io", "csinodes") => match asked.verb {
                _ if !asked.subresource.is_empty() => no("cannot authorize CSINode subresources"),
                "create" => Decision::Allow,
                "get" | "update" | "patch" | "delete" if asked.name == node => Decision::Allow,
                "get" | "update" | "patch" | "delete" => {
                    no("can only access CSINode with the same name as the requesting node")
                }
                _ => no("can only get, create, update, patch, or delete a CSINode"),
            },
            ("", "nodes") => own_node(node, asked),
            ("", "pods") => self.pod(node, asked),
            _ if self.rules.iter().any(|rule| rule.allows(asked)) => Decision::Allow,
            _ => no(""),
        }
    }

    /// Allows what a Pod of the node refers to.
    fn needed(&self, node: &str, asked: &Attributes<'_>) -> Decision {
        if asked.name.is_empty() {
            return Decision::NoOpinion("No Object name found".to_owned());
        }
        let related = match asked.resource {
            "persistentvolumes" => self.is_claimed(node, asked.name),
            "volumeattachments" => self.is_attached(node, asked.name),
            resource => self.graph.is_needed(node, resource, asked.namespace, asked.name),
        };
        if related { Decision::Allow } else { unrelated(node) }
    }

    /// Whether a Pod of the node has a claim that is bound to the volume.
    fn is_claimed(&self, node: &str, volume: &str) -> bool {
        let Some(volume) = self.stored("persistentvolumes", volume) else { return false };
        let claim = &volume.0["spec"]["claimRef"];
        let (namespace, name) = (claim["namespace"].as_str().unwrap_or(""), claim["name"].as_str().unwrap_or(""));
        self.graph.is_needed(node, "persistentvolumeclaims", namespace, name)
    }

    fn is_attached(&self, node: &str, attachment: &str) -> bool {
        let attachment = self.stored("volumeattachments.storage.k8s.io", attachment);
        attachment.is_some_and(|attachment| attachment.0["spec"]["nodeName"] == node)
    }

    fn stored(&self, resource: &str, name: &str) -> Option<Object> {
        let kind = kinds::lookup(resource)?;
        let item = self.cache.shelf(kind).get(&kind.key(None, name))?;
        Object::from_slice(&item.bytes).ok()
    }

    fn pod(&self, node: &str, asked: &Attributes<'_>) -> Decision {
        let no = |why: &str| Decision::NoOpinion(why.to_owned());
        match (asked.subresource, asked.verb) {
            ("", "get") => self.needed(node, asked),
            ("", "list" | "watch") => match selects(asked, "spec.nodeName", node) {
                true => Decision::Allow,
                false => no("can only list/watch pods with spec.nodeName field selector"),
            },
            // What is created and deleted is looked at in `restrict`.
            ("", "create" | "delete") | ("eviction", "create") => Decision::Allow,
            ("status", "update" | "patch") => self.needed(node, asked),
            ("", _) => no("can only get, list, watch, create, or delete pods"),
            _ => no("can only update status and create evictions of pods"),
        }
    }
}

fn unrelated(node: &str) -> Decision {
    Decision::NoOpinion(format!("no relationship found between node '{node}' and this object"))
}

/// Whether a list or watch is restricted to objects whose field has this value.
fn selects(asked: &Attributes<'_>, field: &str, value: &str) -> bool {
    FieldSelector::parse(asked.field_selector).is_ok_and(|selector| selector.exact(field) == Some(value))
}

fn lease(node: &str, asked: &Attributes<'_>) -> Decision {
    let no = |why: &str| Decision::NoOpinion(why.to_owned());
    match asked.verb {
        "get" | "create" | "update" | "patch" | "delete" => {}
        _ => return no("can only get, create, update, patch, or delete a node lease"),
    }
    if asked.namespace != LEASES {
        return Decision::NoOpinion(format!("can only access leases in the {LEASES:?} system namespace"));
    }
    if asked.verb != "create" && asked.name != node {
        return no("can only access node lease with the same name as the requesting node");
    }
    Decision::Allow
}

/// Its own Node. `connect` is how an agent gets its sessions.
fn own_node(node: &str, asked: &Attributes<'_>) -> Decision {
    let other = || format!("node '{node}' cannot {} '{}', only its own Node object", asked.verb, asked.name);
    match (asked.subresource, asked.verb) {
        ("", "create") => Decision::Allow,
        ("", "update" | "patch" | "get" | "connect") | ("status", "get" | "update" | "patch") => {
            match asked.name == node {
                true => Decision::Allow,
                false => Decision::NoOpinion(other()),
            }
        }
        ("", "list" | "watch") if asked.name == node || selects(asked, "metadata.name", node) => Decision::Allow,
        ("", "list" | "watch") => Decision::NoOpinion(format!("node '{node}' can only read its own Node object")),
        _ => Decision::NoOpinion(String::new()),
    }
}

/// Refuses what a node may not write whatever it was granted; upstream's NodeRestriction.
pub(super) fn restrict(server: &Server, call: &Call) -> Result<(), Status> {
    let Some(node) = node_of(&call.user) else { return Ok(()) };
    let refuse = |why: String| Err(call.forbidden(why));
    let sub = call.subresource.as_deref().unwrap_or("");
    let name = call.name.as_deref().unwrap_or("");
    let body = call.body.as_ref().unwrap_or(&Value::Null);
    match (call.kind.kind, sub, call.verb) {
        ("Node", "", Verb::Create) if name != node => {
            refuse(format!("node {node:?} is not allowed to create node {name:?}"))
        }
        ("Node", _, Verb::Delete | Verb::DeleteCollection) => {
            refuse(format!("node {node:?} is not allowed to delete node {name:?}"))
        }
        ("Node", ..) if name != node => refuse(format!("node {node:?} is not allowed to modify node {name:?}")),
        ("Lease", _, Verb::Create) if name != node || call.namespace.as_deref() != Some(LEASES) => {
            refuse(format!("node {node:?} is not allowed to access lease {name:?} in namespace {:?}", call.within()))
        }
        ("CSINode", ..) if name != node => refuse(format!("can only access CSINode {node:?}")),
        ("Pod", "", Verb::Create) => mirror(call, node, body),
        ("Pod", "", Verb::Delete) | ("Pod", "status" | "eviction", _) => {
            match server.authorizer.node.graph.is_needed(node, "pods", call.within(), name) {
                true => Ok(()),
                false => refuse(format!("node {node:?} can only delete, evict and report pods that it runs")),
            }
        }
        ("Pod", ..) => refuse(format!("node {node:?} is not allowed to modify pods beyond their status")),
        ("ServiceAccount", "token", _) => token(server, call, node, &body["spec"]["boundObjectRef"]),
        _ => Ok(()),
    }
}

/// A node may create the pictures of its static Pods, which refer to nothing that it could then read.
fn mirror(call: &Call, node: &str, pod: &Value) -> Result<(), Status> {
    let refuse = |why: String| Err(call.forbidden(why));
    if pod["metadata"]["annotations"][MIRROR].as_str().is_none_or(str::is_empty) {
        return refuse(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"));
    }
    if pod["spec"]["nodeName"] != node {
        return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    if pod["spec"]["serviceAccountName"].as_str().is_some_and(|name| !name.is_empty()) {
        return refuse(format!("node {node:?} can not create pods that reference a service account"));
    }
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
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
fn token(server: &Server, call: &Call, node: &str, bound_to: &Value) -> Result<(), Status> {
    let refuse = |why: &str| Err(call.forbidden(why));
    if bound_to["kind"] != "Pod" {
        return refuse("node requested token not bound to a pod");
    }
    if bound_to["uid"].as_str().is_none_or(str::is_empty) {
        return refuse("node requested token with a pod binding without a uid");
    }
    let pod = bound_to["name"].as_str().unwrap_or("");
    match server.authorizer.node.graph.is_needed(node, "pods", call.within(), pod) {
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
pub(super) fn restrict_labels(call: &Call, new: &Object, old: Option<&Object>) -> Result<(), Status> {
    let Some(node) = node_of(&call.user) else { return Ok(()) };
    if call.kind.kind != "Node" {
        return Ok(());
    }
    let labels = |object: &Object| object.labels().cloned().unwrap_or_default();
    let (new_labels, old_labels) = (labels(new), old.map(labels).unwrap_or_default());
    let keys = new_labels.keys().chain(old_labels.keys());
    let changed = keys.filter(|key| new_labels.get(*key) != old_labels.get(*key));
    let mut forbidden: Vec<&str> = changed.filter(|key| is_reserved(key)).map(String::as_str).collect();
    forbidden.sort_unstable();
    forbidden.dedup();
    if !forbidden.is_empty() {
        let list = forbidden.join(", ");
        return Err(call.forbidden(format!("is not allowed to modify labels: {list}")));
    }
    let Some(old) = old else { return Ok(()) };
    if new.at("spec.taints") != old.at("spec.taints") {
        return Err(call.forbidden(format!("node {node:?} is not allowed to modify taints")));
    }
    Ok(())
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
