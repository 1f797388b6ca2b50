//! Which resize requests a node grants to its Pods, and when.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::Pods;
use crate::{
    pod::event::PodEvent,
    resize::{
        self,
        allocation::{Allocation, Allotment},
    },
    spec::PodExt,
};

impl Pods {
    /// The other Pods that use resources of this node, with their allocations. Remains of a Pod deleted without grace do not count:
    /// the scheduler has reassigned its place (upstream's `GetActivePods` drops it too).
    pub(super) fn others(&self, uid: &str) -> Vec<Arc<Pod>> {
        let others = self.workers.values().filter(|w| w.pod.uid() != uid && !w.gone && !w.pod.is_terminal());
        others.map(|w| w.allotment.allocated.overlay(w.pod.clone())).collect()
    }

    /// Sends a worker its Pod's desired state and allotment. Returns whether the allocation changed.
    pub(super) fn grant(&mut self, uid: &str) -> bool {
        let Some(worker) = self.workers.get(uid) else { return false };
        let (pod, known) = (worker.pod.clone(), &worker.allotment);
        let generation = pod.metadata.generation;
        let ends = pod.is_terminal() || pod.metadata.deletion_timestamp.is_some();
        let judged = match known.allocated.satisfies(&pod) {
            _ if ends => None,
            true => Some(Err(None)),
            false => Some(resize::judge(&pod, &self.others(uid), &self.allocatable).map_err(Some)),
        };
        let (allotment, granted) = match judged {
            None => (known.clone(), false),
            Some(Ok(())) => (Allotment { allocated: Allocation::of(&pod), pending: None, generation }, true),
            Some(Err(pending)) => (Allotment { allocated: known.allocated.clone(), pending, generation }, false),
        };
        let Some(worker) = self.workers.get_mut(uid) else { return false };
        worker.allotment = allotment.clone();
        worker.inbox.send(PodEvent::Wanted(pod, allotment)).ok();
        granted
    }

    /// Judges pending requests again, in order, as long as one makes room for others.
    pub(super) fn grant_pending(&mut self) {
        loop {
            let deferred = |w: &&super::Handle| w.allotment.pending.as_ref().is_some_and(|p| p.reason == "Deferred");
            let mut waiting: Vec<Arc<Pod>> = self.workers.values().filter(deferred).map(|w| w.pod.clone()).collect();
            waiting.sort_by_cached_key(|pod| {
                let allocated = self.workers.get(pod.uid()).map(|w| w.allotment.allocated.overlay(pod.clone()));
                resize::precedence(pod, &allocated.unwrap_or_default())
            });
            let mut granted = false;
            for pod in waiting {
                granted |= self.grant(pod.uid());
            }
            if !granted {
                return;
            }
        }
    }
}
