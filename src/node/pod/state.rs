//! Everything known about and intended for one Pod.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{
    intent::Intent,
    observed::{Exit, Observed, SandboxState},
    report::Report,
    step::Step,
    volumes::PodVolumes,
    wanted::Wanted,
};
use crate::{
    backoff::Backoff,
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
    /// What has been reported of its status.
    pub report: Report,
    pub(super) retries: Retries,
    /// The node's part of its status.
    pub(super) host: Host,
    /// Startup durations, for the metrics.
    pub(super) startup: Startup,
    /// Whether its startup is traced.
    pub(super) traced: bool,
    /// Exits of attempts whose start has not been reported yet, by id.
    pub(super) early: BTreeMap<String, Exit>,
}

/// Failure counts and back-offs.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries {
    pub removal: u32,
    pub release: u32,
    pub stop: u32,
    pub resize: u32,
    /// By image name.
    pub pulls: BTreeMap<String, Backoff>,
}

impl PodState {
    /// A Pod when its worker starts.
    pub fn new(
        wish: Arc<Pod>,
        allotment: &Allotment,
        intent: Intent,
        mut observed: Observed,
        host: Host,
        now: Timestamp,
    ) -> PodState {
        let allocated = allotment.allocated.clone();
        let pod = allocated.overlay(wish.clone());
        observed.resize = carried_over(&pod, allotment, &observed);
        PodState {
            report: Report::new(&pod),
            startup: Startup::new(&pod, &observed, now),
            wanted: Wanted { pod, wish, allocated, gone: false },
            intent,
            observed,
            retries: Retries::default(),
            host,
            traced: false,
            early: BTreeMap::new(),
        }
    }

    /// Nothing of the Pod runs any more, and its volumes are released.
    pub fn has_ended(&self) -> bool {
        plan::ended(&self.wanted.pod.parts(), &self.intent, &self.observed)
            && self.observed.volumes == PodVolumes::Absent
    }

    /// Nothing of it remains, here or on the server: its worker may end.
    pub fn is_over(&self) -> bool {
        self.observed.removal == Step::Done && (self.report.is_deleted() || self.wanted.gone)
    }

    /// When it should be gone; `None`: it stays, or is gone.
    pub fn leaves(&self) -> Option<Timestamp> {
        let stop = self.intent.stop().filter(|stop| stop.remove && self.observed.removal != Step::Done);
        stop.map(|stop| stop.deadline)
    }

    /// Whether this agent starts it, rather than recovers it.
    pub(super) fn is_new(&self) -> bool {
        self.observed.sandbox.state == SandboxState::None
    }

    /// The containers whose images are being pulled.
    pub(super) fn pulling(&self) -> BTreeSet<String> {
        let pulling = self.observed.containers.iter().filter(|(_, known)| known.busy == super::Busy::Pulling);
        pulling.map(|(name, _)| name.clone()).collect()
    }
}
