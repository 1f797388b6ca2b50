//! `/pods` and `/runningpods/`: Pod lists, written item by item so that no list is in memory as a whole.

use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::facts::Facts;

/// The pieces of a PodList.
pub fn list<P>(pods: impl IntoIterator<Item = P>, shown: impl Fn(P) -> Value) -> impl Iterator<Item = Bytes> {
    let mut before = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":["#;
    let items = pods.into_iter().map(move |pod| {
        let piece = format!("{before}{}", shown(pod));
        before = ",";
        Bytes::from(piece)
    });
    let mut items = items.peekable();
    let head = items.peek().is_none().then(|| Bytes::from(before));
    head.into_iter().chain(items).chain([Bytes::from_static(b"]}\n")])
}

/// A Pod as a list item, without `kind` and `apiVersion`.
pub fn item(pod: Arc<Pod>) -> Value {
    // A typed object always encodes.
    let mut shown = serde_json::to_value(&*pod).unwrap_or_default();
    if let Some(fields) = shown.as_object_mut() {
        fields.retain(|name, _| !matches!(name.as_str(), "kind" | "apiVersion"));
    }
    shown
}

/// The running Pods, in upstream's form: identity only.
pub fn running(facts: &Facts) -> Vec<Value> {
    let of = |pod: &super::facts::PodFacts| {
        let containers: Vec<Value> =
            pod.containers.iter().map(|it| json!({ "name": it.name, "image": it.image, "resources": {} })).collect();
        json!({
            "metadata": { "name": pod.name, "namespace": pod.namespace, "uid": pod.uid },
            "spec": { "containers": containers },
            "status": {},
        })
    };
    facts.pods.iter().map(of).collect()
}
