//! Which object an owner reference names, and where it is: only an object that matches all of the reference is an owner, whatever
//! its uid.
//!
//! Upstream's garbage collector looks an owner up by kind, namespace and name, and treats one with another uid as absent; until it
//! has done so, any reference with the uid keeps the owner waiting. So writers of references could block deletions of others'
//! objects: here only complete references do.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// An object as owner references name it.
#[derive(Clone, Debug, PartialEq)]
pub struct Coordinates {
    pub group: String,
    pub kind: String,
    /// `None`: it is cluster-scoped, and may own objects in any namespace.
    pub namespace: Option<String>,
    pub name: String,
    pub uid: String,
}

impl Coordinates {
    /// Whether it owns an object with this metadata.
    pub fn owns(&self, dependent: &ObjectMeta) -> bool {
        self.references(dependent).next().is_some()
    }

    /// Whether its deletion has to wait for such an object.
    pub fn waits_for(&self, dependent: &ObjectMeta) -> bool {
        self.references(dependent).any(|owner| owner.block_owner_deletion == Some(true))
    }

    /// Whether an object's reference names it. Any version does: all have the same objects.
    pub fn is_named(&self, owner: &OwnerReference, dependent: &ObjectMeta) -> bool {
        (owner.uid == self.uid && owner.name == self.name && owner.kind == self.kind)
            && group(&owner.api_version) == self.group
            && (self.namespace.is_none() || self.namespace == dependent.namespace)
    }

    fn references<'a>(&self, dependent: &'a ObjectMeta) -> impl Iterator<Item = &'a OwnerReference> {
        let all = dependent.owner_references.iter().flatten();
        all.filter(|owner| self.is_named(owner, dependent))
    }
}

/// The group of an `apiVersion`.
pub fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_what_is_the_same_in_all_is_meant() {
        let own = Coordinates {
            group: "apps".into(),
            kind: "Deployment".into(),
            namespace: Some("a".into()),
            name: "web".into(),
            uid: "u".into(),
        };
        let of_cluster = Coordinates { namespace: None, ..own.clone() };
        let meta = |namespace: Value, changed: Value| -> ObjectMeta {
            let mut owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u",
                "blockOwnerDeletion": true});
            // The invariant: both are objects, and these are metadata.
            owner.as_object_mut().expect("an object").extend(changed.as_object().expect("an object").clone());
            serde_json::from_value(json!({"namespace": namespace, "ownerReferences": [owner]})).expect("metadata")
        };
        for (namespace, changed, expected) in [
            (json!("a"), json!({}), (true, true)),
            (json!("a"), json!({"apiVersion": "apps/v1beta2"}), (true, true)),
            (json!("a"), json!({"blockOwnerDeletion": null}), (true, false)),
            (json!("a"), json!({"apiVersion": "v1"}), (false, false)),
            (json!("a"), json!({"kind": "ReplicaSet"}), (false, false)),
            (json!("a"), json!({"name": "other"}), (false, false)),
            (json!("a"), json!({"uid": "other"}), (false, false)),
            (json!("b"), json!({}), (false, false)),
            (Value::Null, json!({}), (false, false)),
        ] {
            let dependent = meta(namespace.clone(), changed.clone());
            assert_eq!((own.owns(&dependent), own.waits_for(&dependent)), expected, "{namespace} {changed}");
            let same_place = meta(json!("a"), changed.clone());
            let is_it = own.owns(&same_place);
            assert_eq!(of_cluster.owns(&dependent), is_it, "{changed}: what is of the cluster owns everywhere");
        }
    }
}
