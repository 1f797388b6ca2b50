//! Pods that this agent cannot decode: what of them can be read counts, and the rest stays as it was last read. Pure.

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

/// A Pod's parts, not read yet.
#[derive(Default, Deserialize)]
struct Parts<'a> {
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
}

/// `last` with the metadata, the spec and the status of `object`, as far as each can be read.
pub fn overlay(last: &Pod, object: &[u8]) -> Pod {
    let parts: Parts<'_> = serde_json::from_slice(object).unwrap_or_default();
    let metadata = part(parts.metadata).unwrap_or_else(|| last.metadata.clone());
    let spec = part(parts.spec).or_else(|| last.spec.clone());
    let status = part(parts.status).or_else(|| last.status.clone());
    Pod { metadata, spec, status }
}

/// A Pod as the server sent it; where it cannot be read, [`overlay`].
pub fn read(last: &Pod, object: &[u8]) -> Pod {
    serde_json::from_slice(object).unwrap_or_else(|_| overlay(last, object))
}

fn part<T: DeserializeOwned>(text: Option<&RawValue>) -> Option<T> {
    serde_json::from_slice(text?.get().as_bytes()).ok()
}
