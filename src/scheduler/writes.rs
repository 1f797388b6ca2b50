//! The scheduler's writes: bindings, conditions, and the deletion of preempted Pods.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde_json::{Value, json};

use super::{plugins::PREEMPTED, pod::PodInfo};
use podwright_api::{Options, Request, Status, Verb, request::PatchType, spans::Link};
use podwright_client::{Client, Key};

/// The result of a write.
pub enum Written {
    Bound(Arc<PodInfo>, String, Result<(), Status>),
    /// A preempted Pod, by its uid.
    Preempted {
        by: Arc<PodInfo>,
        victim: String,
        outcome: Result<(), Status>,
    },
    /// The prerequisite writes of a binding.
    Before(Arc<PodInfo>, Result<(), Status>),
    Other,
}

/// Writes what a Pod needs before it is bound, one after the other.
pub async fn before(client: &Client, writes: Vec<Request>) -> Result<(), Status> {
    for write in writes {
        client.call(write).await?;
    }
    Ok(())
}

/// Writes the binding, within a traced attempt; `note` is for the Pod's trace.
pub async fn bind(
    client: &Client,
    pod: &PodInfo,
    node: &str,
    note: String,
    part_of: Option<Link>,
) -> Result<(), Status> {
    let key = &pod.key;
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": { "name": key.name, "namespace": key.namespace, "uid": pod.uid },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    let options = Options { note: Some(note), ..Options::default() };
    let binding = request(Verb::Create, key, "binding", binding, options);
    client.call(Request { part_of, ..binding }).await.map(drop)
}

/// Merges `patch` into a Pod's status; `note` is for the Pod's trace.
pub async fn status(client: &Client, key: &Key, patch: Value, note: Option<String>) -> Result<(), Status> {
    let options = Options { patch_type: Some(PatchType::Merge), note, ..Options::default() };
    client.call(request(Verb::Patch, key, "status", patch, options)).await.map(drop)
}

fn request(verb: Verb, pod: &Key, subresource: &str, body: Value, options: Options) -> Request {
    Request {
        verb,
        resource: "pods".into(),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        subresource: Some(subresource.into()),
        body: Some(body),
        options,
        ..Request::default()
    }
}

/// A Pod's conditions with `new` replacing the one of its type, keeping its time if the status is the same.
fn with_condition(pod: &Pod, mut new: PodCondition) -> Vec<PodCondition> {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let old = conditions.iter().find(|c| c.type_ == new.type_ && c.status == new.status);
    if let Some(since) = old.and_then(|old| old.last_transition_time.clone()) {
        new.last_transition_time = Some(since);
    }
    let mut all: Vec<PodCondition> = conditions.iter().filter(|c| c.type_ != new.type_).cloned().collect();
    all.push(new);
    all
}

/// The status patch with the reason for having no node, and the nominated node; `None` if the status has it already. Refused if the
/// Pod has changed meanwhile: it may have a node by now, or unknown conditions.
pub fn unscheduled(pod: &Pod, reason: &str, message: &str, nominated: Option<&str>, now: Timestamp) -> Option<Value> {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let told = conditions.iter().any(|c| {
        c.type_ == "PodScheduled"
            && c.status == "False"
            && c.reason.as_deref() == Some(reason)
            && c.message.as_deref() == Some(message)
    });
    let before = status.and_then(|s| s.nominated_node_name.as_deref()).filter(|name| !name.is_empty());
    if told && before == nominated {
        return None;
    }
    let new = PodCondition {
        type_: "PodScheduled".into(),
        status: "False".into(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(now)),
        observed_generation: pod.metadata.generation,
        ..PodCondition::default()
    };
    let mut status = json!({ "conditions": with_condition(pod, new) });
    if before != nominated {
        status["nominatedNodeName"] = json!(nominated);
    }
    Some(json!({
        "metadata": { "uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version },
        "status": status,
    }))
}

/// The unconditional status patch that clears a Pod's nomination.
pub fn displaced(pod: &Pod) -> Value {
    json!({ "metadata": { "uid": pod.metadata.uid }, "status": { "nominatedNodeName": null } })
}

/// Deletes a preempted Pod gracefully, after setting its condition.
pub async fn preempt(client: &Client, victim: &Pod, scheduler: &str, now: Timestamp) -> Result<(), Status> {
    let key = Key::of(victim);
    let uid = victim.metadata.uid.as_deref();
    let mut seen = victim.clone();
    // Other writers may update its status concurrently, as its node does all the time.
    for _ in 0..5 {
        let condition = PodCondition {
            type_: "DisruptionTarget".into(),
            status: "True".into(),
            reason: Some(PREEMPTED.to_owned()),
            message: Some(format!("{scheduler}: preempting to accommodate a higher priority pod")),
            last_transition_time: Some(Time(now)),
            observed_generation: seen.metadata.generation,
            ..PodCondition::default()
        };
        let patch = json!({
            "metadata": { "uid": uid, "resourceVersion": seen.metadata.resource_version },
            "status": { "conditions": with_condition(&seen, condition) },
        });
        match client.merge::<Pod>(key.namespace(), &key.name, Some("status"), patch).await {
            Ok(_) => break,
            Err(status) if status.is_conflict() => {
                seen = client.get::<Pod>(key.namespace(), &key.name).await?;
                if seen.metadata.uid.as_deref() != uid {
                    return Ok(());
                }
            }
            Err(status) if status.is_not_found() => return Ok(()),
            Err(status) => return Err(status),
        }
    }
    match client.delete::<Pod>(key.namespace(), &key.name, uid, Options::default()).await {
        Err(status) if !status.is_not_found() && !status.is_conflict() => Err(status),
        _ => Ok(()),
    }
}
