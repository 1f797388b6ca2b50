//! `network.podwright.io/v1` NamespaceIdentity: the labels by which NetworkPolicies select a Namespace, and nothing else of it.
//!
//! As with [`crate::pod_identity`]: nodes need no more of other tenants' Namespaces.

use std::collections::BTreeMap;

use k8s_openapi::{ClusterResourceScope, Metadata, Resource, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};

use super::pod_identity::GROUP;
use super::schema::Defined;

/// What NetworkPolicies go by of a Namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NamespaceIdentity {
    /// Name and labels alone, and the revision.
    pub metadata: ObjectMeta,
}

impl NamespaceIdentity {
    /// Of a Namespace as it is stored.
    pub fn of_stored(namespace: &[u8]) -> Option<NamespaceIdentity> {
        let Seen { metadata: Named { name, labels } } = serde_json::from_slice(namespace).ok()?;
        Some(NamespaceIdentity { metadata: ObjectMeta { name: Some(name), labels, ..ObjectMeta::default() } })
    }
}

#[derive(Deserialize)]
struct Seen {
    metadata: Named,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    labels: Option<BTreeMap<String, String>>,
}

impl Resource for NamespaceIdentity {
    const API_VERSION: &'static str = "network.podwright.io/v1";
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = "NamespaceIdentity";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "namespaceidentities";
    type Scope = ClusterResourceScope;
}

impl Metadata for NamespaceIdentity {
    type Ty = ObjectMeta;
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Defined for NamespaceIdentity {
    const NAME: &'static str = "io.podwright.network.v1.NamespaceIdentity";
}
