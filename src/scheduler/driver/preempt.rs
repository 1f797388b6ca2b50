//! Preemption: deletes a Pod's victims, and retries it only when their deletion is observed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::Scheduler;
use crate::{
    metrics::METRICS,
    pod::PodInfo,
    writes::{self, Written},
};
use podwright_client::Key;

/// Preempting Pods whose victims are not all observed to terminate, by uid. Until then they are not retried: they would choose
/// further victims (upstream's `IsPodRunningPreemption`).
#[derive(Default)]
pub(super) struct Preempting(BTreeMap<String, Room>);

struct Room {
    pod: Arc<PodInfo>,
    victims: BTreeSet<String>,
    /// One of the deletions failed.
    failed: bool,
}

impl Preempting {
    fn begin(&mut self, pod: &Arc<PodInfo>, victim: &str) {
        let room = || Room { pod: pod.clone(), victims: BTreeSet::new(), failed: false };
        self.0.entry(pod.uid.clone()).or_insert_with(room).victims.insert(victim.to_owned());
    }

    fn failed(&mut self, pod: &PodInfo, victim: &str) -> Vec<Room> {
        if let Some(room) = self.0.get_mut(&pod.uid) {
            room.failed |= room.victims.remove(victim);
        }
        self.complete()
    }

    fn leaves(&mut self, victim: &str) -> Vec<Room> {
        for room in self.0.values_mut() {
            room.victims.remove(victim);
        }
        self.complete()
    }

    fn complete(&mut self) -> Vec<Room> {
        let over = self.0.iter().filter(|(_, room)| room.victims.is_empty());
        let over: Vec<String> = over.map(|(uid, _)| uid.clone()).collect();
        over.iter().filter_map(|uid| self.0.remove(uid)).collect()
    }
}

impl Scheduler {
    /// Makes room for a Pod on a node; it is nominated there while its victims terminate.
    pub(super) fn preempt(&mut self, pod: &Arc<PodInfo>, node: &str, victims: Vec<(Key, String)>) {
        // Lower-priority Pods that were nominated there must look elsewhere.
        let lesser = self.cluster.nominations.on(node).filter(|other| other.priority < pod.priority);
        let lesser: Vec<Arc<PodInfo>> = lesser.cloned().collect();
        lesser.iter().for_each(|other| self.displace(other));
        self.cluster.nominations.set(pod.clone(), node);
        METRICS.preempted(victims.len());
        for (key, uid) in victims {
            let Some(victim) = self.cluster.pod(&uid).cloned() else { continue };
            if victim.is_terminating() {
                continue;
            }
            let message = format!("Preempted by pod {} on node {node}", pod.uid);
            self.tell(pod, &victim, "Preempted", message);
            self.queue.hold(pod);
            self.preempting.begin(pod, &uid);
            let (client, now, pod) = (self.client.clone(), self.env.now(), pod.clone());
            self.writes.spawn(async move {
                let outcome = writes::preempt(&client, &victim.pod, pod.scheduler(), now).await;
                if let Err(status) = &outcome {
                    tracing::warn!(%key, %status, "failed to preempt a Pod");
                }
                Written::Preempted { by: pod, victim: uid, outcome }
            });
        }
    }

    /// A Pod loses its nomination: it looks elsewhere.
    pub(super) fn displace(&mut self, pod: &Arc<PodInfo>) {
        self.cluster.nominations.remove(&pod.uid);
        self.patch_status(&pod.key, writes::displaced(&pod.pod), None);
        self.queue.reconsider(pod);
    }

    /// A victim was not deleted, so its termination will not wake the preemptor.
    pub(super) fn not_preempted(&mut self, by: &PodInfo, victim: &str) {
        let rooms = self.preempting.failed(by, victim);
        self.let_go(rooms);
    }

    /// A Pod is terminating, or gone.
    pub(super) fn leaves(&mut self, uid: &str) {
        let rooms = self.preempting.leaves(uid);
        self.let_go(rooms);
    }

    fn let_go(&mut self, rooms: Vec<Room>) {
        rooms.iter().for_each(|room| self.queue.let_go(&room.pod, room.failed));
    }
}
