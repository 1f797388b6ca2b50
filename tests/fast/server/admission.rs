//! Admission, through the whole pipeline: what it adds to a write, and what it refuses.

mod asked;
mod blocking;
mod classes;
pub mod hook;
mod limits;
mod owned;
mod params;
mod pod_security;
mod policies;
mod priority;
mod quotas;
mod taints;
pub mod webhooks;

use podwright::api::{Object, Options, Request, Response, Status, Verb};
use serde_json::{Value, json};

use super::{Api, object_of, pod, request};

impl Api {
    /// A create, with its warnings.
    async fn create_warned(&self, resource: &str, object: Value) -> (Result<Object, Status>, Vec<String>) {
        told(self.0.handle(request(Verb::Create, resource, "", Some(object), Options::default())).await)
    }

    async fn namespace(&self, name: &str, labels: Value) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        self.create("namespaces", namespace).await.unwrap();
    }
}

fn told(answer: Result<Response, Status>) -> (Result<Object, Status>, Vec<String>) {
    match answer {
        Ok(response) => {
            let warnings = response.warnings.clone();
            (Ok(object_of(response)), warnings)
        }
        Err(status) => {
            let warnings = status.warnings.clone();
            (Err(status), warnings)
        }
    }
}

/// The same request in another namespace.
fn within(namespace: &str, mut request: Request) -> Request {
    request.namespace = Some(namespace.to_owned());
    request
}

/// `object` with `value` at a JSON pointer.
fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let mut at = &mut object;
    for key in pointer.trim_start_matches('/').split('/') {
        at = match key.parse::<usize>() {
            Ok(index) if at.is_array() => &mut at[index],
            _ => &mut at[key],
        };
    }
    *at = value;
    object
}
