//! Everything known about and intended for one Pod.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{
    inputs::Inputs,
    intent::Intent,
    observed::{Exit, Observed, SandboxState},
    progress::{Busy, Progress},
    report::Report,
    step::Step,
    volumes::PodVolumes,
    wanted::Wanted,
};
use crate::{
    plan,
    resize::{allocation::Allotment, carried_over},
    spec::PodExt,
    startup::Startup,
    status::Host,
};

/// The state that [`next`](super::next) advances.
#[derive(Clone, Debug)]
pub struct PodState {
    pub wanted: Wanted,
    pub intent: Intent,
    pub observed: Observed,
    pub progress: Progress,
    /// What has been reported of its status.
    pub report: Report,
    /// The node's part of its status.
    pub(super) host: Host,
    /// Startup durations, for the metrics.
    pub(super) startup: Startup,
    /// Whether its startup is traced.
    pub(super) traced: bool,
    /// Exits of attempts whose start has not been reported yet, by id.
    pub(super) early: BTreeMap<String, Exit>,
}

impl PodState {
    /// A Pod when its worker starts.
    pub fn new(
        wish: Arc<Pod>,
        allotment: &Allotment,
        (intent, observed, mut progress): (Intent, Observed, Progress),
        host: Host,
        now: Timestamp,
    ) -> PodState {
        let allocated = allotment.allocated.clone();
        let pod = allocated.overlay(wish.clone());
        progress.resize = carried_over(&pod, allotment, &observed, &progress.resize);
        PodState {
            report: Report::new(&pod),
            startup: Startup::new(&pod, &observed, now),
            wanted: Wanted { pod, wish, allocated, gone: false },
            intent,
            observed,
            progress,
            host,
            traced: false,
            early: BTreeMap::new(),
        }
    }

    /// What its plan and its status are computed from.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs { intent: &self.intent, seen: &self.observed, progress: &self.progress }
    }

    /// Nothing of the Pod runs any more, and its volumes are released.
    pub fn has_ended(&self) -> bool {
        plan::ended(&self.wanted.pod.parts(), self.inputs()) && self.progress.volumes == PodVolumes::Absent
    }

    /// Nothing of it remains, here or on the server: its worker may end.
    pub fn is_over(&self) -> bool {
        self.progress.removal == Step::Done && (self.report.is_deleted() || self.wanted.gone)
    }

    /// When it should be gone; `None`: it stays, or is gone.
    pub fn leaves(&self) -> Option<Timestamp> {
        let stop = self.intent.stop().filter(|stop| stop.remove && self.progress.removal != Step::Done);
        stop.map(|stop| stop.deadline)
    }

    /// Whether this agent starts it, rather than recovers it.
    pub(super) fn is_new(&self) -> bool {
        self.inputs().sandbox_is(SandboxState::None)
    }

    /// The containers whose images are being pulled.
    pub(super) fn pulling(&self) -> BTreeSet<String> {
        let pulling = self.progress.containers.iter().filter(|(_, progress)| progress.busy == Busy::Pulling);
        pulling.map(|(name, _)| name.clone()).collect()
    }

    /// The sandbox is lost, and its containers with it.
    pub(super) fn lose_sandbox(&mut self, now: Timestamp) {
        for (name, container) in &self.observed.containers {
            let progress = self.progress.containers.get_mut(name).filter(|_| container.is_running());
            // It runs, so its hook is still in progress: the result no longer matters.
            if let Some(progress) = progress.filter(|progress| progress.busy == Busy::Starting) {
                progress.busy = Busy::Idle;
            }
        }
        self.observed.lose_sandbox(now);
    }

    /// A new sandbox is about to be created.
    pub(super) fn renew_sandbox(&mut self) {
        self.observed.renew_sandbox();
        self.progress.sandbox = Default::default();
    }
}
