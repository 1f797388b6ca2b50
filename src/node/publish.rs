//! The calls by which a Pod's status reaches the server, and its object goes: each once; `pod::Report` says what and when.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json, value::RawValue};

use super::{pod::report::shares_conditions, spec::PodExt, undecodable};
use podwright_api::{Options, Status};
use podwright_client::Client;

/// Writes a status; the Pod as the server has it then.
///
/// # Errors
///
/// The server has not taken it, or has not answered: it may have.
pub async fn write(client: &Client, pod: &Pod, status: Value) -> Result<Pod, Status> {
    let mut metadata = json!({ "uid": pod.metadata.uid });
    if shares_conditions(pod) {
        // Ours must not undo theirs.
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
/// It is gone, or the server does not give it.
pub async fn read(client: &Client, pod: &Pod) -> Result<Pod, Status> {
    client.get(Some(pod.namespace()), pod.name()).await
}

/// Deletes the object of a Pod that has ended.
///
/// # Errors
///
/// It is gone, is another one's by now, or the server does not delete it.
pub async fn delete(client: &Client, pod: &Pod) -> Result<(), Status> {
    let options = Options { grace_period_seconds: Some(0), ..Options::default() };
    client.delete::<Pod>(Some(pod.namespace()), pod.name(), pod.metadata.uid.as_deref(), options).await
}
