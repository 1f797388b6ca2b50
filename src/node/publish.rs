//! Single API calls that write a Pod's status and delete its object; `pod::Report` decides what and when.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json, value::RawValue};

use super::{pod::report::shares_conditions, spec::PodExt, undecodable};
use podwright_api::{Options, Status};
use podwright_client::Client;

/// Writes a status; returns the Pod as the server then has it.
///
/// # Errors
///
/// The server rejected it, or did not respond: it may have been applied.
pub async fn write(client: &Client, pod: &Pod, status: Value) -> Result<Pod, Status> {
    let mut metadata = json!({ "uid": pod.metadata.uid });
    if shares_conditions(pod) {
        // Our write must not undo others' changes.
        metadata["resourceVersion"] = json!(pod.metadata.resource_version);
    }
    let patch = json!({ "metadata": metadata, "status": status });
    let (namespace, name) = (Some(pod.namespace()), pod.name());
    let object = client.merge_as::<Pod, Box<RawValue>>(namespace, name, Some("status"), patch).await?;
    Ok(undecodable::read(pod, object.get().as_bytes()))
}

/// The Pod as the server has it.
///
/// # Errors
///
/// It is gone, or the server does not return it.
pub async fn read(client: &Client, pod: &Pod) -> Result<Pod, Status> {
    client.get(Some(pod.namespace()), pod.name()).await
}

/// Deletes the object of a Pod that has ended.
///
/// # Errors
///
/// It is gone, was replaced, or the server does not delete it.
pub async fn delete(client: &Client, pod: &Pod) -> Result<(), Status> {
    let options = Options { grace_period_seconds: Some(0), ..Options::default() };
    client.delete::<Pod>(Some(pod.namespace()), pod.name(), pod.metadata.uid.as_deref(), options).await
}
