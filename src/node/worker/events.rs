//! What a worker makes of its events: wishes, exits, verdicts of probes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::ActionResult;
use super::{PodEvent, Worker};
use crate::{
    plan,
    pod_state::{Busy, Exit, Image, Intent, SandboxState, Step, Stop, Unhealthy},
    probes::{self, Kind},
    publish,
    spec::PodExt,
    storage::Eviction,
    volumes::kinds::shows_pod,
};

/// What an evicted Pod gets between SIGTERM and SIGKILL, seconds: upstream's `immediateEvictionGracePeriodSeconds`.
const EVICTION_GRACE: i64 = 1;

impl Worker {
    pub(super) fn note(&mut self, event: PodEvent) {
        match event {
            PodEvent::Wanted(pod, allotment) => {
                let newest = publish::newer(&self.pod, pod.clone());
                if !Arc::ptr_eq(&newest, &self.pod) {
                    self.publisher.saw(&newest.status);
                    let shown = shows_pod(&newest) && !alike(&self.pod, &newest);
                    self.pod = self.allocated.overlay(newest);
                    if shown {
                        self.resync();
                    }
                }
                self.wish = pod;
                self.allot(allotment);
                self.apply_deletion();
            }
            PodEvent::Mirror(mirror) => self.publisher.shown_by(mirror),
            PodEvent::Gone => {
                self.gone = true;
                self.apply_deletion();
            }
            PodEvent::Exited { container, id, exit } => self.exited(&container, &id, exit),
            PodEvent::SandboxGone { attempt } => {
                if attempt == self.seen.sandbox.attempt && self.seen.sandbox.state == SandboxState::Ready {
                    self.seen.lose_sandbox(self.shared.env.now());
                    self.probes.clear();
                }
            }
            PodEvent::Resync => self.resync(),
            PodEvent::Evict(eviction) => self.evict(eviction),
            PodEvent::Probe { container, id, kind, verdict } => self.probed(&container, &id, kind, verdict),
            PodEvent::Done(done) => self.done(done),
            PodEvent::Broken(why) => self.broken = Some(why),
        }
    }

    /// Ends the Pod at once for what it has on disk, or for what the node lacks; one that ends already gets no more time.
    pub(super) fn evict(&mut self, Eviction { failure, disruption, .. }: Eviction) {
        let deadline = plan::after(self.now(), EVICTION_GRACE);
        let stop = match &self.seen.intent {
            _ if plan::ended(&self.pod.parts(), &self.seen) => return,
            Intent::Stop(stop) if stop.failure.as_ref().is_some_and(|told| told.reason == failure.reason) => return,
            Intent::Stop(stop) => Stop { deadline: stop.deadline.min(deadline), ..stop.clone() },
            Intent::Run => Stop { deadline, grace: EVICTION_GRACE, failure: None, remove: false },
        };
        self.warning(None, &failure.reason, failure.message.clone());
        self.seen.disrupted |= disruption && stop.failure.is_none();
        // One that failed before keeps its reason.
        self.end(Stop { failure: stop.failure.or(Some(failure)), ..stop });
    }

    /// Something that the Pod refers to has changed: what failed for want of it is due, what is mounted is refreshed.
    pub(super) fn resync(&mut self) {
        let now = self.now();
        if let Step::Failed { retry_at, .. } = &mut self.seen.volumes {
            *retry_at = now;
        }
        for container in self.seen.containers.values_mut() {
            if container.waiting.as_ref().is_some_and(|w| w.reason == "CreateContainerConfigError") {
                container.retry_at = None;
            }
        }
        if self.seen.volumes == Step::Done && self.seen.intent == Intent::Run {
            if std::mem::replace(&mut self.refreshing, true) {
                self.refresh_again = true;
                return;
            }
            let (shared, pod) = (self.shared.clone(), self.pod.clone());
            self.spawn(async move { ActionResult::Volumes(shared.executor.refresh_volumes(&pod).await) });
        }
    }

    pub(super) fn exited(&mut self, container: &str, id: &str, exit: Exit) {
        let seen = self.seen.container_mut(container);
        let Some(attempt) = seen.attempt.as_mut().filter(|a| a.id == id) else {
            if seen.busy == Busy::Starting {
                self.early.insert(id.to_owned(), exit);
            }
            return;
        };
        if attempt.exit.is_some() {
            return;
        }
        attempt.exit = Some(exit);
        seen.started = false;
        seen.ready = false;
        seen.unhealthy = None;
        // By its next start the image may have been removed, or its name stand for another one.
        seen.image = Image::Unknown;
        if !matches!(seen.busy, Busy::Stopping { .. }) {
            seen.busy = Busy::Idle;
        }
        self.probes.stop(container, false);
    }

    pub(super) fn probe(&mut self, container: &str) {
        let Some(part) = self.pod.part(container) else { return };
        let seen = self.seen.container_mut(container);
        let Some(attempt) = seen.attempt.clone() else { return };
        let has = |kind| probes::spec(&part.container, kind).is_some();
        if !has(Kind::Startup) {
            seen.started = true;
        }
        if !has(Kind::Readiness) {
            seen.ready = true;
        }
        let target = probes::Target {
            shared: self.shared.clone(),
            pod: self.pod.clone(),
            container: part.container.clone().into_owned(),
            id: attempt.id,
            ips: match self.pod.host_network() {
                true => self.shared.host.addresses.clone(),
                false => self.seen.sandbox.ips.clone(),
            },
            started_at: attempt.started_at.unwrap_or(self.shared.env.now()),
        };
        self.probes.start(target, self.seen.container(container).started, self.me.clone());
    }

    fn probed(&mut self, container: &str, id: &str, kind: Kind, verdict: probes::Verdict) {
        let seen = self.seen.container_mut(container);
        if seen.attempt.as_ref().is_none_or(|a| a.id != id || a.exit.is_some()) {
            return;
        }
        match (kind, verdict) {
            (Kind::Startup, probes::Verdict::Good) => {
                seen.started = true;
                self.probes.started(container);
            }
            (Kind::Readiness, verdict) => seen.ready = verdict == probes::Verdict::Good,
            (Kind::Startup | Kind::Liveness, probes::Verdict::Bad) if self.seen.intent == Intent::Run => {
                let Some(part) = self.pod.part(container) else { return };
                let grace = probes::spec(&part.container, kind).and_then(|p| p.termination_grace_period_seconds);
                let why = format!("failed {} probe", kind.word());
                self.seen.container_mut(container).unhealthy = Some(Unhealthy { why, grace });
            }
            _ => {}
        }
    }
}

/// Whether two versions of a Pod have the same labels and annotations.
fn alike(old: &Pod, new: &Pod) -> bool {
    old.metadata.labels == new.metadata.labels && old.metadata.annotations == new.metadata.annotations
}
