//! `Definition`: the parts of a CustomResourceDefinition that loops over all kinds need.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Partial;
use podwright_api::status::qualified;

/// The accepted names of a definition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Wire")]
pub struct Definition {
    pub metadata: ObjectMeta,
    pub group: String,
    pub plural: String,
    pub kind: String,
    pub namespaced: bool,
    /// Whether its objects are served.
    pub established: bool,
    /// Whether any version has a scale subresource.
    pub scales: bool,
    pub served: Vec<Version>,
}

/// A served version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Version {
    pub name: String,
    /// `openAPIV3Schema`
    pub schema: Value,
}

impl Definition {
    /// The resource's unambiguous name in requests, for any version: `widgets.example.com/`.
    pub fn resource(&self) -> String {
        format!("{}/", qualified(&self.plural, &self.group))
    }
}

podwright_api::view!(Definition, of CustomResourceDefinition);

#[derive(Deserialize)]
struct Wire {
    #[serde(flatten)]
    partial: Partial,
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Spec {
    group: String,
    scope: String,
    versions: Vec<WireVersion>,
}

#[derive(Deserialize)]
struct WireVersion {
    #[serde(default)]
    name: String,
    served: bool,
    #[serde(default)]
    schema: Schema,
    #[serde(default)]
    subresources: Subresources,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Subresources {
    scale: Option<serde::de::IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Schema {
    #[serde(rename = "openAPIV3Schema")]
    open_api: Value,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    accepted_names: Names,
    conditions: Vec<Condition>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Names {
    plural: String,
    kind: String,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    of: String,
    status: String,
}

impl From<Wire> for Definition {
    fn from(wire: Wire) -> Definition {
        let served = wire.spec.versions.into_iter().filter(|version| version.served);
        let served: Vec<WireVersion> = served.collect();
        let scales = served.iter().any(|version| version.subresources.scale.is_some());
        let served: Vec<Version> =
            served.into_iter().map(|version| Version { name: version.name, schema: version.schema.open_api }).collect();
        let established = wire.status.conditions.iter().any(|c| c.of == "Established" && c.status == "True");
        Definition {
            metadata: wire.partial.metadata,
            group: wire.spec.group,
            plural: wire.status.accepted_names.plural,
            kind: wire.status.accepted_names.kind,
            namespaced: wire.spec.scope == "Namespaced",
            established: established && !served.is_empty(),
            scales,
            served,
        }
    }
}
