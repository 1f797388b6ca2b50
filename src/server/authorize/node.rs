//! What a node's agent may do: upstream's Node authorizer. (`admission::node_restriction` restricts what it may write.)

use std::sync::Arc;

use super::graph::Graph;
use super::rule::Rule;
use super::{
    attributes::{Attributes, Decision},
    defaults,
};
use crate::cache::Cache;
use podwright_api::persistent_volume::local;
use podwright_api::selector::{FieldSelector, LabelSelector};
use podwright_api::{Object, User, kinds};

pub(crate) const LEASES: &str = "kube-node-lease";

/// The Node authorizer.
pub(crate) struct NodeAuthorizer {
    cache: Arc<Cache>,
    graph: Graph,
    /// What every node may do, regardless of its Pods.
    rules: Vec<Rule>,
}

/// The node whose agent a user is.
pub(crate) fn node_of(user: &User) -> Option<&str> {
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
            ("", "persistentvolumes") if asked.verb != "get" => self.own_volumes(node, asked),
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
            "persistentvolumes" => self.is_claimed(node, asked.name) || self.keeps(node, asked.name),
            "volumeattachments" => self.is_attached(node, asked.name),
            resource => self.graph.is_needed(node, resource, asked.namespace, asked.name),
        };
        if related { Decision::Allow } else { unrelated(node) }
    }

    /// Whether a Pod of the node uses a claim that is bound to the volume.
    fn is_claimed(&self, node: &str, volume: &str) -> bool {
        let Some(volume) = self.stored("persistentvolumes", volume) else { return false };
        let claim = &volume.0["spec"]["claimRef"];
        let (namespace, name) = (claim["namespace"].as_str().unwrap_or(""), claim["name"].as_str().unwrap_or(""));
        self.graph.is_needed(node, "persistentvolumeclaims", namespace, name)
    }

    /// The volumes whose directories are on the node: it watches them, and confirms that the data of deleted ones is gone, which
    /// NodeRestriction checks. (Upstream has provisioners for that, with rights of their own.)
    fn own_volumes(&self, node: &str, asked: &Attributes<'_>) -> Decision {
        let no = |why: &str| Decision::NoOpinion(why.to_owned());
        match (asked.verb, asked.subresource) {
            ("list" | "watch", "") => {
                let selector = LabelSelector::parse(asked.label_selector);
                match selector.is_ok_and(|selector| selector.exact(local::NODE) == Some(node)) {
                    true => Decision::Allow,
                    false => Decision::NoOpinion(format!(
                        "can only list/watch persistentvolumes with the label selector {}={node}",
                        local::NODE
                    )),
                }
            }
            ("update" | "patch", "") if self.keeps(node, asked.name) => Decision::Allow,
            ("update" | "patch", "") => unrelated(node),
            _ => no("can only get, list, watch and patch persistentvolumes"),
        }
    }

    /// Whether a volume is a directory on the node.
    fn keeps(&self, node: &str, volume: &str) -> bool {
        self.stored("persistentvolumes", volume).is_some_and(|volume| kept_by(&volume, node))
    }

    fn is_attached(&self, node: &str, attachment: &str) -> bool {
        let attachment = self.stored("volumeattachments.storage.k8s.io", attachment);
        attachment.is_some_and(|attachment| attachment.0["spec"]["nodeName"] == node)
    }

    fn stored(&self, resource: &str, name: &str) -> Option<Object> {
        let kind = kinds::lookup(resource)?;
        let item = self.cache.resource(kind).get(&kind.key(None, name))?;
        Object::from_slice(&item.bytes).ok()
    }

    fn pod(&self, node: &str, asked: &Attributes<'_>) -> Decision {
        let no = |why: &str| Decision::NoOpinion(why.to_owned());
        match (asked.subresource, asked.verb) {
            // Of the trace API a node may read only which trace its Pod's start belongs to.
            ("" | "trace", "get") => self.needed(node, asked),
            ("", "list" | "watch") => match selects(asked, "spec.nodeName", node) {
                true => Decision::Allow,
                false => no("can only list/watch pods with spec.nodeName field selector"),
            },
            // NodeRestriction checks what is created and deleted.
            ("", "create" | "delete") | ("eviction", "create") => Decision::Allow,
            ("status", "update" | "patch") => self.needed(node, asked),
            ("", _) => no("can only get, list, watch, create, or delete pods"),
            _ => no("can only update status and create evictions of pods"),
        }
    }
}

/// Whether a volume is the built-in provisioner's and is on this node.
pub(crate) fn kept_by(volume: &Object, node: &str) -> bool {
    let volume = serde_json::from_value(volume.0.clone());
    volume.is_ok_and(|volume| local::is_ours(&volume) && local::node(&volume) == Some(node))
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

/// Its own Node. `connect` is how an agent gets its sessions, `usage` reports its metrics.
fn own_node(node: &str, asked: &Attributes<'_>) -> Decision {
    let other = || format!("node '{node}' cannot {} '{}', only its own Node object", asked.verb, asked.name);
    match (asked.subresource, asked.verb) {
        ("", "create") => Decision::Allow,
        ("", "update" | "patch" | "get" | "connect") | ("status", "get" | "update" | "patch") | ("usage", "update") => {
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
