//! Tells the server a Pod's status: at once when it changes, one write at a time, the newest one next. Only while a Pod
//! is being made it waits a moment: mostly the next news is that it runs, and then one write tells all.
//!
//! What was written is compared with the newest object each time that changes: whatever somebody else has made of it is put right
//! again, each time a little later while he goes on.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Value, json, value::RawValue};

use super::{backoff::later, conditions, spec::PodExt, undecodable, worker::ActionResult};
use podwright_api::{Options, Status};
use podwright_client::Client;

/// How long to wait before a write is tried again that the server could not take.
const PAUSE: Duration = Duration::from_millis(200);

/// A status that the server has refused so often is not to be had: one refusal may come of what it does not know yet, as that the
/// Pod is this node's.
const REFUSALS: u32 = 5;

/// How long the steps of a Pod's making wait for the next one.
const MAKING: Duration = Duration::from_millis(100);

/// Somebody else changes what was told: it is told again at once, then this much later, each time twice as much ..
const RIVALRY: Duration = Duration::from_millis(200);
/// .. and so much at most. After as much time without one it begins anew.
const LONGEST_RIVALRY: Duration = Duration::from_secs(60);

/// How the Pod stands when its status is to be told.
pub struct Standing {
    /// Nothing is left of the Pod, so its object may go.
    pub removed: bool,
    /// Its source does not know it any more.
    pub gone: bool,
    pub now: Timestamp,
}

/// A status that the server took.
struct AcceptedStatus {
    status: Value,
    at: Timestamp,
    rivals: u32,
}

impl AcceptedStatus {
    /// When it may be told again.
    fn due(&self) -> Timestamp {
        let pause = match self.rivals {
            0 => Duration::ZERO,
            rivals => LONGEST_RIVALRY.min(RIVALRY.saturating_mul(1 << (rivals - 1).min(16))),
        };
        later(self.at, pause)
    }
}

/// What of one Pod has been told, and what is being told.
pub struct Publisher {
    /// The status that the server has, as far as known.
    told: Value,
    writing: Option<Value>,
    /// Until when a step of the Pod's making waits.
    held: Option<Timestamp>,
    /// The last status that the server took, when, and how often in a row it was told again because somebody had changed it.
    taken: Option<AcceptedStatus>,
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
            taken: None,
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

    /// The object that shows a static Pod has been seen: what it holds is what has been told. A new one has been told nothing.
    pub fn shown_by(&mut self, mirror: Arc<Pod>) {
        match self.mirror.as_ref().filter(|old| old.metadata.uid == mirror.metadata.uid) {
            // Our own write, or what was before it.
            Some(old) if revision(&mirror) <= revision(old) => return,
            Some(old) if mirror.status == old.status || self.writing.is_some() => {}
            _ => self.told = as_value(&mirror.status),
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
        mut status: PodStatus,
        Standing { removed, gone, now }: Standing,
    ) -> Option<impl Future<Output = ActionResult> + Send + use<>> {
        let held = self.held.take();
        let is_static = pod.is_static();
        let target = if is_static { self.mirror.clone()? } else { pod.clone() };
        if gone && !is_static || self.writing.is_some() || self.deleting || self.deleted {
            return None;
        }
        if is_static {
            // What others have noted with its mirror.
            let noted = target.status.as_ref().and_then(|shown| shown.conditions.as_deref()).unwrap_or_default();
            conditions::adopt(status.conditions.get_or_insert_default(), noted);
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
        let due = match making {
            true => held.unwrap_or(later(now, MAKING)),
            false => change.as_ref().and_then(|status| self.contested(status, now)).unwrap_or(now),
        };
        if now < due {
            self.held = Some(due);
            return None;
        }
        if let Some(status) = &change {
            let rivals = self.rivals(status, now).map_or(0, |rivals| rivals.saturating_add(1));
            self.taken = Some(AcceptedStatus { status: timeless(status), at: now, rivals });
        }
        self.writing = change.clone();
        self.deleting = delete;
        // What somebody else has added goes.
        let added = self.told.as_object().into_iter().flatten().map(|(field, _)| field.clone());
        let gone: Vec<String> = added.filter(|field| status.get(field).is_none()).collect();
        Some(async move {
            match change {
                Some(mut status) => {
                    gone.into_iter().for_each(|field| status[field] = Value::Null);
                    ActionResult::Written(Box::new(write(&client, &target, status).await))
                }
                None => ActionResult::Deleted(forget(&client, &target).await),
            }
        })
    }

    /// How often in a row this very status was told again, if it is the one that was told last.
    fn rivals(&self, status: &Value, now: Timestamp) -> Option<u32> {
        let taken = self.taken.as_ref().filter(|taken| now < later(taken.at, 2 * LONGEST_RIVALRY))?;
        (taken.status == timeless(status)).then_some(taken.rivals)
    }

    /// Until when a status waits that somebody else has changed.
    fn contested(&self, status: &Value, now: Timestamp) -> Option<Timestamp> {
        self.rivals(status, now)?;
        self.taken.as_ref().map(AcceptedStatus::due)
    }

    /// A write has ended. `pod` takes the newer object, `gone` is set if there is none any more.
    pub fn written(&mut self, result: Result<Pod, Status>, pod: &mut Arc<Pod>, gone: &mut bool) {
        let wrote = self.writing.take();
        // Somebody else was faster: what was to be told was not taken.
        if shares_conditions(pod) && result.as_ref().is_ok_and(|new| Some(as_value(&new.status)) != wrote) {
            self.taken = None;
        }
        self.refusals = if result.as_ref().is_err_and(refuses) { self.refusals.saturating_add(1) } else { 0 };
        match result {
            // Meanwhile another object may have taken its place.
            Ok(new) if pod.is_static() && self.mirror.as_ref().is_some_and(|m| m.metadata.uid != new.metadata.uid) => {}
            // Or somebody else has written it, and the watch was faster.
            Ok(new) if pod.is_static() && self.mirror.as_ref().is_some_and(|m| revision(m) > revision(&new)) => {
                self.told = as_value(&self.mirror.as_ref().and_then(|mirror| mirror.status.clone()));
                Arc::make_mut(pod).status = new.status;
            }
            Ok(new) if pod.is_static() => {
                self.told = wrote.unwrap_or_default();
                // Times of transition are kept where the next status looks for them.
                Arc::make_mut(pod).status = new.status.clone();
                self.mirror = Some(Arc::new(new));
            }
            // Its spec has changed: that is news of its own, which comes with what the node has decided about it.
            Ok(new) if new.metadata.generation != pod.metadata.generation && revision(&new) > revision(pod) => {
                self.told = as_value(&new.status);
            }
            Ok(new) => {
                *pod = newer(pod, Arc::new(new));
                self.told = as_value(&pod.status);
            }
            Err(status) if status.is_not_found() => {
                self.mirror = None;
                *gone |= !pod.is_static();
            }
            Err(status) => {
                tracing::debug!(pod = %pod.full_name(), %status, "the Pod's status was not written");
                // What the watch has brought meanwhile.
                let shown = if pod.is_static() { self.mirror.as_ref() } else { Some(&*pod) };
                self.told = as_value(&shown.and_then(|shown| shown.status.clone()));
                self.taken = None;
            }
        }
    }

    pub fn deleted(&mut self, result: Result<(), Status>) {
        self.deleting = false;
        match result {
            Ok(()) => self.deleted = true,
            Err(status) if status.is_not_found() || status.is_conflict() => self.deleted = true,
            Err(status) => tracing::warn!(%status, "failed to delete a terminated Pod"),
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

/// A status without the times of its conditions: they are others each time that one has turned.
fn timeless(status: &Value) -> Value {
    let mut status = status.clone();
    for condition in status["conditions"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.shift_remove("lastTransitionTime");
    }
    status
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

/// Whether others are to write conditions too.
fn shares_conditions(pod: &Pod) -> bool {
    pod.spec().readiness_gates.as_ref().is_some_and(|gates| !gates.is_empty())
}

async fn write(client: &Client, pod: &Pod, status: Value) -> Result<Pod, Status> {
    let mut metadata = json!({ "uid": pod.metadata.uid });
    if shares_conditions(pod) {
        // Ours must not undo theirs.
        metadata["resourceVersion"] = json!(pod.metadata.resource_version);
    }
    let patch = json!({ "metadata": metadata, "status": status });
    let (namespace, name) = (Some(pod.namespace()), pod.name());
    let result = client.merge_as::<Pod, Box<RawValue>>(namespace, name, Some("status"), patch).await;
    match result.map(|object| undecodable::read(pod, object.get().as_bytes())) {
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
                    tracing::error!(%status, pod = %pod.full_name(), "the server rejected the Pod's status");
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
