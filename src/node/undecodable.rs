//! Pods that this agent cannot decode: the readable parts are used, the rest stays as last read. Pure.

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

/// The undecoded parts of a Pod.
#[derive(Default, Deserialize)]
struct Parts<'a> {
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
}

/// `last` updated with the metadata, spec and status of `object`, as far as each can be decoded.
pub fn overlay(last: &Pod, object: &[u8]) -> Pod {
    let parts: Parts<'_> = serde_json::from_slice(object).unwrap_or_default();
    let metadata = part(parts.metadata).unwrap_or_else(|| last.metadata.clone());
    let spec = part(parts.spec).or_else(|| last.spec.clone());
    let status = part(parts.status).or_else(|| last.status.clone());
    Pod { metadata, spec, status }
}

/// Decodes a Pod from the server, or falls back to [`overlay`].
pub fn read(last: &Pod, object: &[u8]) -> Pod {
    serde_json::from_slice(object).unwrap_or_else(|_| overlay(last, object))
}

fn part<T: DeserializeOwned>(text: Option<&RawValue>) -> Option<T> {
    serde_json::from_slice(text?.get().as_bytes()).ok()
}
