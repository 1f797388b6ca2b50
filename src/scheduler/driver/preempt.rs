//! Making room for a Pod: its victims' deletions, and nothing else for it until those are seen.

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

/// The Pods whose victims are not all seen to leave, by uid. Until then they are not tried again: they would find nobody
/// leaving, and cost more Pods their place (upstream's `IsPodRunningPreemption`).
#[derive(Default)]
pub(super) struct Preempting(BTreeMap<String, Room>);

struct Room {
    pod: Arc<PodInfo>,
    victims: BTreeSet<String>,
    /// One of them was not deleted.
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
    /// Makes room for a Pod on a node; it waits there for its victims to be gone.
    pub(super) fn preempt(&mut self, pod: &Arc<PodInfo>, node: &str, victims: Vec<(Key, String)>) {
        // Less important ones for which room was being made there have to look again elsewhere.
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

    /// A Pod does not get the room that was being made for it: it looks elsewhere.
    pub(super) fn displace(&mut self, pod: &Arc<PodInfo>) {
        self.cluster.nominations.remove(&pod.uid);
        self.patch_status(&pod.key, writes::displaced(&pod.pod), None);
        self.queue.reconsider(pod);
    }

    /// Nobody's leaving will wake the one that it was to leave for.
    pub(super) fn not_preempted(&mut self, by: &PodInfo, victim: &str) {
        let rooms = self.preempting.failed(by, victim);
        self.let_go(rooms);
    }

    /// A Pod is being deleted, or gone.
    pub(super) fn leaves(&mut self, uid: &str) {
        let rooms = self.preempting.leaves(uid);
        self.let_go(rooms);
    }

    fn let_go(&mut self, rooms: Vec<Room>) {
        rooms.iter().for_each(|room| self.queue.let_go(&room.pod, room.failed));
    }
}
