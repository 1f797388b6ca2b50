//! When a Pod's status is sent to the server: at once when it changes, one write at a time, always the latest. Only while a Pod is
//! being created it is held briefly: usually the next change is that it runs, and one write reports everything. Flapping readiness
//! is rate-limited: see [`flapping`](super::flapping).
//!
//! What was written is compared with each new version of the object: changes by others are reverted, with increasing delay while
//! they continue.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use podwright_api::Status;
use serde_json::Value;

use super::{effect::Work, flapping::Flapping, wanted::Wanted};
use crate::{
    backoff::{later, pause},
    conditions,
    spec::{PodExt, newer, revision},
};

/// Delay before retrying a write that the server could not accept.
const PAUSE: Duration = Duration::from_millis(200);
/// Delay after one that it rejected.
const LONG_PAUSE: Duration = Duration::from_secs(2);

/// After this many rejections the status is given up; a single one may be due to a lagging server, for example about the Pod's
/// assignment to this node.
const REFUSALS: u32 = 5;

/// How long a status is held while the Pod is being created.
const MAKING: Duration = Duration::from_millis(100);

/// If others change the status, it is reported again at once, then after this delay, doubling each time ..
const RIVALRY: Duration = Duration::from_millis(200);
/// .. up to this. After as long without a change it starts over.
const LONGEST_RIVALRY: Duration = Duration::from_secs(60);

/// The Pod's situation when reporting its status.
pub struct Standing {
    /// Nothing of the Pod is left, so its object may be deleted.
    pub removed: bool,
    /// It is gone from its source.
    pub gone: bool,
    pub now: Timestamp,
}

/// A status that the server accepted.
#[derive(Clone, Debug)]
struct AcceptedStatus {
    status: Value,
    at: Timestamp,
    rivals: u32,
}

impl AcceptedStatus {
    /// When it may be reported again.
    fn due(&self) -> Timestamp {
        let pause = match self.rivals {
            0 => Duration::ZERO,
            rivals => LONGEST_RIVALRY.min(RIVALRY.saturating_mul(1 << (rivals - 1).min(16))),
        };
        later(self.at, pause)
    }
}

/// A write in progress.
#[derive(Clone, Debug)]
struct Writing {
    target: Arc<Pod>,
    status: Value,
    /// Why the server did not accept it: its version is being read.
    refused: Option<Status>,
}

/// What has been, and is being, reported of a Pod.
#[derive(Clone, Debug)]
pub struct Report {
    /// The status on the server, as far as known.
    told: Value,
    writing: Option<Writing>,
    /// Until when a status is held during creation, or after a change by others.
    held: Option<Timestamp>,
    /// Until when nothing is reported because the last write failed.
    paused: Option<Timestamp>,
    /// The last accepted status, when, and how many times in a row it was repeated because of changes by others.
    taken: Option<AcceptedStatus>,
    flapping: Flapping,
    /// How many times in a row the server rejected the status.
    refusals: u32,
    deleting: bool,
    deleted: bool,
    /// For a static Pod: its mirror object.
    mirror: Option<Arc<Pod>>,
}

impl Report {
    pub fn new(pod: &Pod) -> Report {
        Report {
            told: as_value(&pod.status),
            writing: None,
            held: None,
            paused: None,
            taken: None,
            flapping: Flapping::default(),
            refusals: 0,
            deleting: false,
            deleted: false,
            mirror: None,
        }
    }

    pub fn is_deleted(&self) -> bool {
        self.deleted
    }

    /// Nothing waits to be written, nor is being written.
    pub fn is_complete(&self) -> bool {
        self.writing.is_none() && self.held.is_none() && self.paused.is_none() && !self.deleting
    }

    /// A mirror object was seen: its contents count as reported. For a new one nothing has been reported.
    pub fn shown_by(&mut self, mirror: Arc<Pod>) {
        match self.mirror.as_ref().filter(|old| old.metadata.uid == mirror.metadata.uid) {
            // Our own write, or an older version.
            Some(old) if revision(&mirror) <= revision(old) => return,
            Some(old) if mirror.status == old.status || self.writing.is_some() => {}
            _ => self.told = as_value(&mirror.status),
        }
        self.mirror = Some(mirror);
    }

    /// The server's object was seen: its contents count as reported.
    pub fn saw(&mut self, status: &Option<PodStatus>) {
        if self.writing.is_none() {
            self.told = as_value(status);
        }
    }

    /// Until when a status is held: call `next` again then.
    pub fn held_until(&self) -> Option<Timestamp> {
        self.held
    }

    /// The next report, if any.
    pub fn next(
        &mut self,
        pod: &Arc<Pod>,
        mut status: PodStatus,
        Standing { removed, gone, now }: Standing,
    ) -> Option<Work> {
        let held = self.held.take();
        let is_static = pod.is_static();
        let target = if is_static { self.mirror.clone()? } else { pod.clone() };
        if gone && !is_static || self.writing.is_some() || self.deleting || self.deleted {
            return None;
        }
        if let Some(until) = pause(self.paused, LONG_PAUSE, now) {
            self.held = Some(until);
            return None;
        }
        if is_static {
            // Conditions that others set on its mirror.
            let noted = target.status.as_ref().and_then(|shown| shown.conditions.as_deref()).unwrap_or_default();
            conditions::adopt(status.conditions.get_or_insert_default(), noted);
        }
        let making = is_being_made(pod, &status);
        let mut status = as_value(&Some(status));
        let over = removed && target.metadata.deletion_timestamp.is_some() && !is_static;
        // A Pod whose status is rejected must not stay forever.
        let refused = self.refusals >= REFUSALS;
        if status == self.told || over && refused {
            self.deleting = over;
            return over.then_some(Work::DeleteObject { target });
        }
        let due = match making {
            true => held.unwrap_or(Timestamp::MAX).min(later(now, MAKING)),
            false => {
                let waits = [self.contested(&status, now), self.flapping.waits(&self.told, &status, now)];
                waits.into_iter().flatten().max().unwrap_or(now)
            }
        };
        if now < due {
            self.held = Some(due);
            return None;
        }
        self.flapping.tells(&self.told, &status, now);
        let rivals = self.rivals(&status, now).map_or(0, |rivals| rivals.saturating_add(1));
        self.taken = Some(AcceptedStatus { status: timeless(&status), at: now, rivals });
        self.writing = Some(Writing { target: target.clone(), status: status.clone(), refused: None });
        // Fields added by others are removed.
        for (field, _) in self.told.as_object().into_iter().flatten() {
            if status.get(field).is_none() {
                status[field] = Value::Null;
            }
        }
        Some(Work::WriteStatus { target, status })
    }

    /// How many times in a row this status was repeated, if it was the last one reported.
    fn rivals(&self, status: &Value, now: Timestamp) -> Option<u32> {
        let taken = self.taken.as_ref().filter(|taken| now < later(taken.at, 2 * LONGEST_RIVALRY))?;
        (taken.status == timeless(status)).then_some(taken.rivals)
    }

    /// Until when a status changed by others is held.
    fn contested(&self, status: &Value, now: Timestamp) -> Option<Timestamp> {
        self.rivals(status, now)?;
        pause(self.taken.as_ref().map(AcceptedStatus::due), LONGEST_RIVALRY, now)
    }

    /// A write ended. If the server has another version or rejects it, its object is read first.
    pub fn written(&mut self, result: Result<Pod, Status>, wanted: &mut Wanted, now: Timestamp) -> Option<Work> {
        if let (Err(status), Some(writing)) = (&result, &mut self.writing)
            && (status.is_conflict() || status.code == 422)
        {
            writing.refused = Some(status.clone());
            return Some(Work::ReadStatus { target: writing.target.clone() });
        }
        self.wrote(result, wanted, now);
        None
    }

    /// The server's object after a write it did not accept.
    pub fn read(&mut self, result: Result<Pod, Status>, wanted: &mut Wanted, now: Timestamp) {
        let Some(Writing { target, refused: Some(why), .. }) = &self.writing else { return };
        let result = match result {
            Ok(fresh) if fresh.metadata.uid == target.metadata.uid => {
                if !why.is_conflict() {
                    self.paused = Some(later(now, LONG_PAUSE));
                }
                Ok(fresh)
            }
            Ok(_) => Err(Status::not_found("pods", "", target.name())),
            Err(unread) if why.is_conflict() => Err(unread),
            Err(_) => Err(why.clone()),
        };
        self.wrote(result, wanted, now);
    }

    /// A write completed. `wanted` gets the newer object, or that it is gone.
    fn wrote(&mut self, result: Result<Pod, Status>, wanted: &mut Wanted, now: Timestamp) {
        let wrote = self.writing.take().map(|writing| writing.status);
        let pod = &mut wanted.pod;
        // Another writer was faster: the status was not accepted.
        if shares_conditions(pod) && result.as_ref().is_ok_and(|new| Some(as_value(&new.status)) != wrote) {
            self.taken = None;
        }
        self.refusals = if result.as_ref().is_err_and(refuses) { self.refusals.saturating_add(1) } else { 0 };
        match result {
            // Another object may have replaced it meanwhile.
            Ok(new) if pod.is_static() && self.mirror.as_ref().is_some_and(|m| m.metadata.uid != new.metadata.uid) => {}
            // Or another client has written it, and the watch was faster.
            Ok(new) if pod.is_static() && self.mirror.as_ref().is_some_and(|m| revision(m) > revision(&new)) => {
                self.told = as_value(&self.mirror.as_ref().and_then(|mirror| mirror.status.clone()));
                Arc::make_mut(pod).status = new.status;
            }
            Ok(new) if pod.is_static() => {
                self.told = wrote.unwrap_or_default();
                // Transition times are kept where the next status looks for them.
                Arc::make_mut(pod).status = new.status.clone();
                self.mirror = Some(Arc::new(new));
            }
            // Its spec has changed: that arrives as an event of its own, with the node's decision about it.
            Ok(new) if new.metadata.generation != pod.metadata.generation && revision(&new) > revision(pod) => {
                self.told = as_value(&new.status);
            }
            Ok(new) => {
                *pod = newer(pod, Arc::new(new));
                self.told = as_value(&pod.status);
            }
            Err(status) if status.is_not_found() => {
                self.mirror = None;
                wanted.gone |= !pod.is_static();
            }
            Err(status) => {
                self.paused = Some(later(now, if refuses(&status) { LONG_PAUSE } else { PAUSE }));
                // What the watch has delivered meanwhile.
                let shown = if pod.is_static() { self.mirror.as_ref() } else { Some(&*pod) };
                self.told = as_value(&shown.and_then(|shown| shown.status.clone()));
                self.taken = None;
            }
        }
        wanted.pod = wanted.allocated.overlay(wanted.pod.clone());
    }

    pub fn deleted(&mut self, result: &Result<(), Status>, now: Timestamp) {
        self.deleting = false;
        match result {
            Err(status) if !status.is_not_found() && !status.is_conflict() => {
                self.paused = Some(later(now, PAUSE));
            }
            _ => self.deleted = true,
        }
    }
}

/// Whether the Pod is only being created: no container has run, and none waits for a reason of its own.
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

/// The status as the server would return it: times in whole seconds, empty fields left out.
fn as_value(status: &Option<PodStatus>) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}

/// A status without the times of its conditions, which change with each transition.
fn timeless(status: &Value) -> Value {
    let mut status = status.clone();
    for condition in status["conditions"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.shift_remove("lastTransitionTime");
    }
    status
}

/// Whether the server rejects the content, rather than being unable to accept writes.
fn refuses(status: &Status) -> bool {
    matches!(status.code, 400 | 403 | 422)
}

/// Whether others may set conditions too.
pub fn shares_conditions(pod: &Pod) -> bool {
    pod.spec().readiness_gates.as_ref().is_some_and(|gates| !gates.is_empty())
}
