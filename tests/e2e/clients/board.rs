//! A custom resource: a Board requests copies of a text, which a controller creates as ConfigMaps.

use std::borrow::Cow;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Resource,
    core::{NamespaceResourceScope, ObjectMeta, TypeMeta},
    runtime::{conditions, wait::await_condition},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::object;

pub const GROUP: &str = "boards.example.com";

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Board {
    #[serde(flatten)]
    pub types: TypeMeta,
    pub metadata: ObjectMeta,
    pub spec: BoardSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<BoardStatus>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct BoardSpec {
    pub copies: u32,
    pub text: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BoardStatus {
    #[serde(default)]
    pub copies: u32,
    #[serde(default)]
    pub observed_generation: i64,
}

impl Resource for Board {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;
    fn kind(_: &()) -> Cow<'_, str> {
        "Board".into()
    }
    fn group(_: &()) -> Cow<'_, str> {
        GROUP.into()
    }
    fn version(_: &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural(_: &()) -> Cow<'_, str> {
        "boards".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Board {
    pub fn new(name: &str, copies: u32, text: &str) -> Board {
        Board {
            types: TypeMeta::resource::<Board>(),
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            spec: BoardSpec { copies, text: text.into() },
            status: None,
        }
    }
}

/// Defines boards; they are served when this returns.
pub async fn define(client: &Client) {
    let definition: CustomResourceDefinition = object(json!({
        "metadata": {"name": format!("boards.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "boards", "singular": "board", "kind": "Board", "shortNames": ["bo"]},
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.copies", "statusReplicasPath": ".status.copies"},
                },
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "required": ["spec"],
                    "properties": {
                        "spec": {
                            "type": "object",
                            "required": ["text"],
                            "properties": {
                                "copies": {"type": "integer", "minimum": 0, "maximum": 100, "default": 1},
                                "text": {"type": "string"},
                                "marks": {
                                    "type": "array",
                                    "x-kubernetes-list-type": "map",
                                    "x-kubernetes-list-map-keys": ["name"],
                                    "items": {
                                        "type": "object",
                                        "required": ["name"],
                                        "properties": {"name": {"type": "string"}, "color": {"type": "string"}},
                                    },
                                },
                            },
                        },
                        "status": {
                            "type": "object",
                            "properties": {
                                "copies": {"type": "integer"},
                                "observedGeneration": {"type": "integer"},
                            },
                        },
                    },
                }},
            }],
        },
    }));
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let made = definitions.create(&Default::default(), &definition).await.unwrap();
    let name = made.metadata.name.unwrap();
    await_condition(definitions, &name, conditions::is_crd_established()).await.unwrap();
}
