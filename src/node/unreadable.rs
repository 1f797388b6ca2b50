//! Pods that this agent cannot read: what of them can be read counts, and the rest stays as it was last read. Pure.

use k8s_openapi::api::core::v1::Pod;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// `last` with the metadata, the spec and the status of `object`, as far as each can be read.
pub fn overlay(last: &Pod, object: &[u8]) -> Pod {
    let object: Value = serde_json::from_slice(object).unwrap_or_default();
    let metadata = part(&object, "metadata").unwrap_or_else(|| last.metadata.clone());
    let spec = part(&object, "spec").or_else(|| last.spec.clone());
    let status = part(&object, "status").or_else(|| last.status.clone());
    Pod { metadata, spec, status }
}

/// A Pod as the server sent it; where it cannot be read, [`overlay`].
pub fn read(last: &Pod, object: &[u8]) -> Pod {
    serde_json::from_slice(object).unwrap_or_else(|_| overlay(last, object))
}

fn part<T: DeserializeOwned>(object: &Value, name: &str) -> Option<T> {
    object.get(name).and_then(|part| T::deserialize(part).ok())
}
