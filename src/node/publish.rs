//! Tells the server a Pod's status: at once when it changes, one write at a time, the newest one next. Only while a Pod
//! is being made it waits a moment: mostly the next news is that it runs, and then one write tells all.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Value, json, value::RawValue};

use super::{backoff::later, spec::PodExt, unreadable, worker::Done};
use crate::{
    api::{Options, Status},
    client::Client,
};

/// How long to wait before a write is tried again that the server could not take.
const PAUSE: Duration = Duration::from_millis(200);

/// A status that the server has refused so often is not to be had: one refusal may come of what it does not know yet, as that the
/// Pod is this node's.
const REFUSALS: u32 = 5;

/// How long the steps of a Pod's making wait for the next one.
const MAKING: Duration = Duration::from_millis(100);

/// How the Pod stands when its status is to be told.
pub struct Standing {
    /// Nothing is left of the Pod, so its object may go.
    pub removed: bool,
    /// Its source does not know it any more.
    pub gone: bool,
    pub now: Timestamp,
}

/// What of one Pod has been told, and what is being told.
pub struct Publisher {
    /// The status that the server has, as far as known.
    told: Value,
    writing: Option<Value>,
    /// Until when a step of the Pod's making waits.
    held: Option<Timestamp>,
    /// So many times in a row the server took exception to the status.
    refusals: u32,
    deleting: bool,
    deleted: bool,
    /// For a static Pod: the object that shows it.
    mirror: Option<Arc<Pod>>,
    pub volume_tries: u32,
    pub removal_tries: u32,
    pub resize_tries: u32,
}

impl Publisher {
    pub fn new(pod: &Pod) -> Publisher {
        Publisher {
            told: as_value(&pod.status),
            writing: None,
            held: None,
            refusals: 0,
            deleting: false,
            deleted: false,
            mirror: None,
            volume_tries: 0,
            removal_tries: 0,
            resize_tries: 0,
        }
    }

    pub fn is_deleted(&self) -> bool {
        self.deleted
    }

    /// The object that shows a static Pod has been seen. A new one has been told nothing yet.
    pub fn shown_by(&mut self, mirror: Arc<Pod>) {
        if self.mirror.as_ref().is_none_or(|old| old.metadata.uid != mirror.metadata.uid) {
            self.told = as_value(&mirror.status);
        }
        self.mirror = Some(mirror);
    }

    /// The server's object has been seen: what it holds is what has been told.
    pub fn saw(&mut self, status: &Option<PodStatus>) {
        if self.writing.is_none() {
            self.told = as_value(status);
        }
    }

    /// Until when a status waits to be told: `next` is to be asked again then.
    pub fn held_until(&self) -> Option<Timestamp> {
        self.held
    }

    /// The next thing to tell, if any.
    pub fn next(
        &mut self,
        client: Client,
        pod: &Arc<Pod>,
        status: PodStatus,
        Standing { removed, gone, now }: Standing,
    ) -> Option<impl Future<Output = Done> + Send + use<>> {
        let held = self.held.take();
        let is_static = pod.is_static();
        let target = if is_static { self.mirror.clone()? } else { pod.clone() };
        if gone && !is_static || self.writing.is_some() || self.deleting || self.deleted {
            return None;
        }
        let making = is_being_made(pod, &status);
        let status = as_value(&Some(status));
        let over = removed && target.metadata.deletion_timestamp.is_some() && !is_static;
        // A Pod whose status is not taken must not stay for ever.
        let refused = self.refusals >= REFUSALS;
        let change = (status != self.told && !(over && refused)).then(|| status.clone());
        let delete = change.is_none() && over;
        if change.is_none() && !delete {
            return None;
        }
        let due = held.unwrap_or(later(now, MAKING));
        if making && now < due {
            self.held = Some(due);
            return None;
        }
        self.writing = change.clone();
        self.deleting = delete;
        Some(async move {
            match change {
                Some(status) => Done::Written(Box::new(write(&client, &target, status).await)),
                None => Done::Deleted(forget(&client, &target).await),
            }
        })
    }

    /// A write has ended. `pod` takes the newer object, `gone` is set if there is none any more.
    pub fn written(&mut self, result: Result<Pod, Status>, pod: &mut Arc<Pod>, gone: &mut bool) {
        let wrote = self.writing.take();
        self.refusals = if result.as_ref().is_err_and(refuses) { self.refusals.saturating_add(1) } else { 0 };
        match result {
            // Meanwhile another object may have taken its place.
            Ok(new) if pod.is_static() && self.mirror.as_ref().is_some_and(|m| m.metadata.uid != new.metadata.uid) => {}
            Ok(new) if pod.is_static() => {
                self.told = wrote.unwrap_or_default();
                // Times of transition are kept where the next status looks for them.
                Arc::make_mut(pod).status = new.status.clone();
                self.mirror = Some(Arc::new(new));
            }
            // Its spec has changed: that is news of its own, which comes with what the node has decided about it.
            Ok(new) if new.metadata.generation != pod.metadata.generation => self.told = as_value(&new.status),
            Ok(new) => {
                self.told = as_value(&new.status);
                *pod = newer(pod, Arc::new(new));
            }
            Err(status) if status.is_not_found() => {
                self.mirror = None;
                *gone |= !pod.is_static();
            }
            Err(status) => tracing::debug!(pod = %pod.full_name(), %status, "the Pod's status was not written"),
        }
    }

    pub fn deleted(&mut self, result: Result<(), Status>) {
        self.deleting = false;
        match result {
            Ok(()) => self.deleted = true,
            Err(status) if status.is_not_found() || status.is_conflict() => self.deleted = true,
            Err(status) => tracing::warn!(%status, "a Pod that has ended was not deleted"),
        }
    }
}

/// Whether nothing is known yet but that the Pod comes: no container has run, and none waits for a reason of its own.
fn is_being_made(pod: &Pod, status: &PodStatus) -> bool {
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let coming = ["ContainerCreating", "PodInitializing"];
    pod.metadata.deletion_timestamp.is_none()
        && status.phase.as_deref() == Some("Pending")
        && status.reason.is_none()
        && lists.into_iter().flatten().flatten().all(|c| {
            let waiting = c.state.as_ref().and_then(|s| s.waiting.as_ref()).and_then(|w| w.reason.as_deref());
            waiting.is_some_and(|reason| coming.contains(&reason))
                && c.last_state.as_ref().is_none_or(|last| last.terminated.is_none())
        })
}

/// The status as the server would give it back: times in whole seconds, empty fields left out.
fn as_value(status: &Option<PodStatus>) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}

/// The newer of two states of one object.
pub fn newer(old: &Arc<Pod>, new: Arc<Pod>) -> Arc<Pod> {
    if revision(&new) >= revision(old) { new } else { old.clone() }
}

/// `metadata.resourceVersion` as a number; 0 for what no server has seen.
pub fn revision(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// Whether the server takes exception to what is written, rather than being unable to take it.
fn refuses(status: &Status) -> bool {
    matches!(status.code, 400 | 403 | 422)
}

async fn write(client: &Client, pod: &Pod, status: Value) -> Result<Pod, Status> {
    let mut metadata = json!({ "uid": pod.metadata.uid });
    let shared = pod.spec().readiness_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    if shared {
        // Others write conditions too: ours must not undo theirs.
        metadata["resourceVersion"] = json!(pod.metadata.resource_version);
    }
    let patch = json!({ "metadata": metadata, "status": status });
    let (namespace, name) = (Some(pod.namespace()), pod.name());
    let result = client.merge_as::<Pod, Box<RawValue>>(namespace, name, Some("status"), patch).await;
    match result.map(|object| unreadable::read(pod, object.get().as_bytes())) {
        Err(status) if status.is_conflict() || status.code == 422 => {
            let fresh: Pod = match client.get(namespace, name).await {
                Ok(fresh) => fresh,
                Err(why) => {
                    tokio::time::sleep(PAUSE).await;
                    return Err(if status.is_conflict() { why } else { status });
                }
            };
            if fresh.metadata.uid == pod.metadata.uid {
                if !status.is_conflict() {
                    tracing::error!(%status, pod = %pod.full_name(), "the server refuses the Pod's status");
                    tokio::time::sleep(PAUSE * 10).await;
                }
                return Ok(fresh);
            }
            Err(Status::not_found("pods", "", name))
        }
        Err(status) if !status.is_not_found() => {
            tokio::time::sleep(if refuses(&status) { PAUSE * 10 } else { PAUSE }).await;
            Err(status)
        }
        other => other,
    }
}

async fn forget(client: &Client, pod: &Pod) -> Result<(), Status> {
    let options = Options { grace_period_seconds: Some(0), ..Options::default() };
    let result = client.delete::<Pod>(Some(pod.namespace()), pod.name(), pod.metadata.uid.as_deref(), options).await;
    if result.as_ref().is_err_and(|s| !s.is_not_found() && !s.is_conflict()) {
        tokio::time::sleep(PAUSE).await;
    }
    result
}
