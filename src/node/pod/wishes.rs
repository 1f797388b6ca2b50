//! Handles changes of a Pod's desired state: its start, deletion, eviction, and unsupported requests.

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;

use super::{
    Turn,
    effect::{Effect, ProbeChange, Work},
    intent::{Eviction, Intent, Stop},
    progress::{Busy, Refresh},
};
use crate::{
    plan,
    resize::allocation::Allotment,
    spec::{self, PodExt},
    unsupported,
    volumes::kinds::shows_pod,
};

/// The grace period in seconds of a Pod that is gone from the API: it was force-deleted, and has "a small grace period before being
/// force killed" (<https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination-forced>). The value in its
/// manifest is chosen by its author, and no quota counts the Pod any more.
const FORCED_GRACE: i64 = 2;

impl Turn<'_> {
    pub(super) fn begins(&mut self) {
        let told = self.pod().status.as_ref().and_then(|s| s.start_time.as_ref()).map(|at| at.0);
        let start = told.or(self.state.observed.start_time).unwrap_or(self.now);
        self.state.observed.start_time = Some(start);
        // A start time in the future was reported before the clock was set back: the elapsed time is unknown.
        self.state.observed.active_since = Some(start.min(self.now));
        self.apply_deletion();
        if self.state.intent.is_run() && self.state.is_new() {
            self.warn();
            self.state.traced = true;
            self.effects.push(Effect::TraceStart(self.pod().clone()));
        }
        for part in self.pod().clone().parts() {
            if self.state.observed.container(part.name()).is_running() {
                self.probe(part.name());
            }
        }
    }

    /// Keeps the elapsed active time unchanged.
    pub(super) fn clock_set(&mut self, by: SignedDuration) {
        if let Some(since) = &mut self.state.observed.active_since {
            *since = since.checked_add(by).unwrap_or(self.now);
        }
    }

    /// One Warning for everything the Pod requests and this node does not support.
    fn warn(&mut self) {
        let fields = unsupported::fields(self.pod());
        if !fields.is_empty() {
            let message = format!("Fields that this node does not act upon: {}", fields.join(", "));
            self.warning(None, "UnsupportedFields", message);
        }
        self.effects.push(Effect::WarnOfShortcomings { pod: self.pod().clone(), unless_of: None });
    }

    pub(super) fn wanted(&mut self, pod: Arc<Pod>, allotment: Allotment) {
        let newest = spec::newer(self.pod(), pod.clone());
        if !Arc::ptr_eq(&newest, self.pod()) {
            self.state.report.saw(&newest.status);
            let shown = shows_pod(&newest) && !alike(self.pod(), &newest);
            self.state.wanted.pod = self.state.wanted.allocated.overlay(newest);
            if shown {
                self.resync();
            }
        }
        self.state.wanted.wish = pod;
        self.allot(allotment);
        self.apply_deletion();
    }

    /// Applies the latest desired state: deletion starts, or its grace period is shortened.
    pub(super) fn apply_deletion(&mut self) {
        let (pod, now) = (self.pod(), self.now);
        let deleted = pod.metadata.deletion_timestamp.is_some() || self.state.wanted.gone;
        let terminal = pod.is_terminal();
        let grace = match self.state.wanted.gone && !pod.is_static() {
            true => pod.grace().min(FORCED_GRACE),
            false => pod.grace(),
        };
        let asked = plan::after(now, grace);
        match &mut self.state.intent {
            Intent::Run if deleted => {
                self.end(Stop { deadline: asked, grace, failure: None, remove: true, disruption: false });
            }
            Intent::Run if terminal => {
                self.end(Stop { deadline: now, grace: 0, failure: None, remove: false, disruption: false });
            }
            Intent::Stop(stop) if deleted => {
                if !stop.remove || asked < stop.deadline {
                    stop.deadline = stop.deadline.min(asked);
                    stop.grace = stop.grace.min(grace);
                }
                stop.remove = true;
            }
            _ => {}
        }
    }

    /// Ending takes at most its grace period from now, even if the clock was set back since it began.
    pub(super) fn keep_to_grace(&mut self) {
        if let Intent::Stop(stop) = &mut self.state.intent {
            stop.deadline = stop.deadline.min(plan::after(self.now, stop.grace));
        }
    }

    pub(super) fn end(&mut self, stop: Stop) {
        self.state.intent = Intent::Stop(stop);
        self.probes(ProbeChange::KeepReadinessOnly);
        for container in self.state.pulling() {
            self.state.progress.container_mut(&container).busy = Busy::Idle;
            self.effects.push(Effect::CancelPull(container));
        }
    }

    /// Ends the Pod because of its disk usage, the node's pressure or the machine's shutdown. One that is ending gets no more time; one whose
    /// containers have exited frees its space by itself: it has succeeded, or failed for its own reasons.
    pub(super) fn evict(&mut self, Eviction { grace, failure, disruption, .. }: Eviction) {
        let deadline = plan::after(self.now, grace);
        let known = self.state.inputs();
        let stop = match &self.state.intent {
            Intent::Stop(_) if self.pod().parts().iter().all(|part| known.is_still(part.name())) => return,
            Intent::Stop(stop) if stop.failure.as_ref().is_some_and(|told| told.reason == failure.reason) => return,
            Intent::Stop(stop) => Stop { deadline: stop.deadline.min(deadline), ..stop.clone() },
            Intent::Run => Stop { deadline, grace, failure: None, remove: false, disruption: false },
        };
        self.warning(None, &failure.reason, failure.message.clone());
        // A Pod that failed before keeps its reason.
        let disruption = stop.disruption || disruption && stop.failure.is_none();
        self.end(Stop { failure: stop.failure.or(Some(failure)), disruption, ..stop });
    }

    /// An object the Pod refers to has changed: retries what failed for lack of it, refreshes mounted volumes.
    pub(super) fn resync(&mut self) {
        let now = self.now;
        let progress = &mut self.state.progress;
        progress.volumes.retry(now);
        for container in progress.containers.values_mut() {
            if container.waiting.as_ref().is_some_and(|w| w.reason == "CreateContainerConfigError") {
                container.retry_at = None;
            }
        }
        let volumes = progress.volumes.mounted();
        if volumes.is_empty() || !self.state.intent.is_run() {
            return;
        }
        if progress.refresh != Refresh::Idle {
            progress.refresh = Refresh::Again;
            return;
        }
        progress.refresh = Refresh::Underway;
        self.begin(Work::RefreshVolumes { volumes });
    }
}

/// Whether two versions of a Pod have equal labels and annotations.
fn alike(old: &Pod, new: &Pod) -> bool {
    old.metadata.labels == new.metadata.labels && old.metadata.annotations == new.metadata.annotations
}
