//! Custom resources: definitions, the kinds they make, and their objects.

mod convert;
mod costs;
mod definitions;
mod namesakes;
mod objects;
mod served;

use serde_json::{Value, json};

use podwright::api::Status;

use super::Api;

pub const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// A definition of `widgets.example.com` with one version of this schema.
pub fn definition(schema: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

/// The schema of an object whose `spec` has these properties.
pub fn spec(properties: Value) -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}})
}

pub fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

impl Api {
    /// Creates a definition and waits until it is established.
    pub async fn define(&self, definition: Value) {
        let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
        self.create(DEFINITIONS, definition).await.unwrap();
        self.until(&name, "Established", "True").await;
    }

    /// Waits until a definition has a condition.
    pub async fn until(&self, name: &str, condition: &str, status: &str) -> Value {
        let mut last = Value::Null;
        for _ in 0..500 {
            let definition = self.get(DEFINITIONS, name).await.unwrap();
            last = definition.0["status"].clone();
            let conditions = last["conditions"].as_array();
            if let Some(c) = conditions.into_iter().flatten().find(|c| c["type"] == condition && c["status"] == status)
            {
                return c.clone();
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{name} never became {condition}={status}: {last}")
    }
}

/// The causes of a refusal, as `field: message`.
pub fn causes(status: &Status) -> Vec<String> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}
