//! `Partial`: the metadata of an object of any kind, for loops over all kinds.

use k8s_openapi::{
    ClusterResourceScope,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time},
};
use serde::{Deserialize, Deserializer, Serialize};

/// The metadata that loops over all kinds need: name, uid, revision, generation, owners, finalizers and deletion time. Labels,
/// annotations and managed fields are not kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Partial {
    pub metadata: ObjectMeta,
}

podwright_api::view!(Partial, "meta.k8s.io/v1", "meta.k8s.io", "v1", "PartialObjectMetadata", "", ClusterResourceScope);

#[derive(Deserialize)]
struct Wire {
    metadata: Meta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl<'de> Deserialize<'de> for Partial {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Partial, D::Error> {
        let meta = Wire::deserialize(deserializer)?.metadata;
        let metadata = ObjectMeta {
            name: meta.name,
            namespace: meta.namespace,
            uid: meta.uid,
            resource_version: meta.resource_version,
            generation: meta.generation,
            deletion_timestamp: meta.deletion_timestamp,
            finalizers: meta.finalizers,
            owner_references: meta.owner_references,
            ..ObjectMeta::default()
        };
        Ok(Partial { metadata })
    }
}
