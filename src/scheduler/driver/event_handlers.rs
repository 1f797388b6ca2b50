//! Handles changes of the cluster, and wakes the waiting Pods that they may help.

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{ReplicaSet, StatefulSet},
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service},
    policy::v1::PodDisruptionBudget,
    storage::v1::StorageClass,
};
use tokio::time::Instant;

use super::Scheduler;
use crate::{
    decide,
    framework::{ClusterEvent, QueueingHint},
    pod::{PodInfo, is_finished, node_name},
    queue,
};
use podwright_api::selector::LabelSelector;
use podwright_client::Delta;

impl Scheduler {
    pub(super) fn catch_up(&mut self) {
        while let Some(news) = self.changes.known() {
            self.hear(news);
        }
        while let Some(Ok(written)) = self.writes.try_join_next() {
            self.written(written);
        }
        self.room_given_up();
        self.look_at_pending();
        self.queue.wake(Instant::now());
    }

    /// Room that is no longer reserved for nominated Pods may fit others.
    pub(super) fn room_given_up(&mut self) {
        for (pod, node) in self.cluster.nominations.take_given_up() {
            let (uid, priority) = (pod.uid.clone(), pod.priority);
            let left_out = |other: &PodInfo| other.priority <= priority && other.uid != uid;
            self.wake(&[ClusterEvent::PodRemoved(pod)], Some(&node), left_out);
        }
    }

    pub(super) fn class_changed(&mut self, Delta { key, old, new, .. }: Delta<StorageClass>) {
        self.cluster.storage.set_class(&key.name, new.clone());
        if let Some(new) = new {
            self.on_changes(&[ClusterEvent::Class(old, new)], None);
        }
    }

    pub(super) fn volume_changed(&mut self, Delta { key, old, new, .. }: Delta<PersistentVolume>) {
        self.cluster.storage.set_volume(&key.name, new.clone());
        if let Some(new) = new {
            self.on_changes(&[ClusterEvent::Volume(old, new)], None);
        }
    }

    pub(super) fn claim_changed(&mut self, Delta { key, new, .. }: Delta<PersistentVolumeClaim>) {
        let there = new.is_some();
        self.cluster.storage.set_claim(&key, new);
        if there {
            self.on_changes(&[ClusterEvent::Claim(key)], None);
        }
    }

    pub(super) fn namespace_changed(&mut self, Delta { key, new, .. }: Delta<Namespace>) {
        if self.cluster.set_namespace(&key.name, new.as_deref()) {
            self.on_changes(&[ClusterEvent::Namespace], None);
        }
    }

    pub(super) fn service_changed(&mut self, Delta { key, new, .. }: Delta<Service>) {
        self.cluster.workloads.set_service(&key, new.as_deref());
    }

    pub(super) fn replica_set_changed(&mut self, Delta { old, new, .. }: Delta<ReplicaSet>) {
        if let Some(uid) = old.as_ref().and_then(|old| old.metadata.uid.as_deref()) {
            self.cluster.workloads.set_owner(uid, None);
        }
        if let Some(new) = new {
            let selector = new.spec.as_ref().and_then(|spec| LabelSelector::of(&spec.selector));
            self.cluster.workloads.set_owner(new.metadata.uid.as_deref().unwrap_or_default(), selector);
        }
    }

    pub(super) fn stateful_set_changed(&mut self, Delta { old, new, .. }: Delta<StatefulSet>) {
        if let Some(uid) = old.as_ref().and_then(|old| old.metadata.uid.as_deref()) {
            self.cluster.workloads.set_owner(uid, None);
        }
        if let Some(new) = new {
            let selector = new.spec.as_ref().and_then(|spec| LabelSelector::of(&spec.selector));
            self.cluster.workloads.set_owner(new.metadata.uid.as_deref().unwrap_or_default(), selector);
        }
    }

    pub(super) fn budget_changed(&mut self, Delta { key, new, .. }: Delta<PodDisruptionBudget>) {
        self.cluster.workloads.set_budget(&key, new.as_deref());
    }

    pub(super) fn node_changed(&mut self, delta: Delta<Node>) {
        let Some(node) = delta.new else {
            self.cluster.remove_node(&delta.key.name);
            let expected: Vec<_> = self.cluster.nominations.on(&delta.key.name).cloned().collect();
            expected.iter().for_each(|pod| self.displace(pod));
            return self.on_changes(&[ClusterEvent::NodeRemoved], None);
        };
        let changes = match &delta.old {
            None => vec![ClusterEvent::NodeAdded],
            Some(old) => queue::node_changes(old, &node),
        };
        self.cluster.set_node(node);
        self.on_changes(&changes, Some(&delta.key.name));
    }

    pub(super) fn pod_changed(&mut self, Delta { key, old, new, .. }: Delta<Pod>) {
        // The Pod known under this name may be gone, finished, or another one.
        if let Some(old) = old
            && new.as_ref().is_none_or(|new| is_finished(new) || new.metadata.uid != old.metadata.uid)
        {
            self.queue.remove(&key);
            let uid = old.metadata.uid.as_deref().unwrap_or_default();
            self.cluster.nominations.remove(uid);
            self.stop_waiting(uid);
            self.leaves(uid);
            let pod = self.cluster.pod(uid).cloned();
            let node = self.cluster.remove_pod(uid);
            if let (Some(pod), Some(node)) = (pod, node) {
                self.on_changes(&[ClusterEvent::PodRemoved(pod)], Some(&node));
            }
        }
        let Some(pod) = new.filter(|pod| !is_finished(pod)) else { return };
        if node_name(&pod).is_some() || pod.metadata.deletion_timestamp.is_some() {
            self.stop_waiting(pod.metadata.uid.as_deref().unwrap_or_default());
        }
        if pod.metadata.deletion_timestamp.is_some() {
            self.leaves(pod.metadata.uid.as_deref().unwrap_or_default());
        }
        if let Some(node) = node_name(&pod).map(str::to_owned) {
            self.queue.remove(&key);
            self.pod_is_on(PodInfo::of(pod), &node);
            return;
        }
        let pod = PodInfo::of(pod);
        if self.profile(&pod).is_none() || pod.is_terminating() {
            self.queue.remove(&key);
            self.cluster.nominations.remove(&pod.uid);
        } else if let Some((_, why)) = self.profile(&pod).and_then(|profile| profile.pre_enqueue(&pod)) {
            self.condition(&pod, "SchedulingGated", &why, None);
        } else {
            self.pod_waits(pod);
        }
    }

    /// A Pod is on a node, new or updated.
    fn pod_is_on(&mut self, pod: Arc<PodInfo>, node: &str) {
        let before = self.cluster.pod(&pod.uid).cloned();
        let freed = self.cluster.set_pod(pod.clone(), node);
        let changed = |before: &Arc<PodInfo>| {
            before.pod.metadata.labels != pod.pod.metadata.labels || before.is_terminating() != pod.is_terminating()
        };
        match before {
            None => self.on_changes(&[ClusterEvent::PodAdded(pod)], Some(node)),
            Some(before) => {
                if let Some(freed) = freed {
                    self.on_changes(&[ClusterEvent::PodRemoved(before.clone())], Some(&freed));
                }
                if changed(&before) {
                    self.on_changes(&[ClusterEvent::PodChanged(before, pod)], Some(node));
                }
            }
        }
    }

    fn pod_waits(&mut self, pod: Arc<PodInfo>) {
        // Its binding is written, but not observed yet: this event is outdated.
        if self.cluster.is_assumed(&pod.uid) && !self.queue.contains(&pod) {
            return;
        }
        if !self.queue.contains(&pod)
            && let Some(node) = pod.nominated()
        {
            // It was nominated before this scheduler started.
            self.cluster.nominations.set(pod.clone(), node);
        }
        self.cluster.nominations.renew(&pod);
        self.queue.add(pod.clone());
        // Its condition may have been refused because of this concurrent change.
        self.explain(&pod.key, None);
    }

    /// Wakes the Pods that changes may help; `node` is where they happened.
    pub(super) fn on_changes(&mut self, changes: &[ClusterEvent], node: Option<&str>) {
        if let Some(node) = node.filter(|_| changes.iter().any(ClusterEvent::may_end_hopes)) {
            self.cluster.nominations.on(node).for_each(|pod| self.queue.reconsider(pod));
        }
        self.wake(changes, node, |_| true);
    }

    /// The same, restricted to Pods that `concerned` accepts.
    fn wake(&mut self, changes: &[ClusterEvent], node: Option<&str>, concerned: impl Fn(&PodInfo) -> bool) {
        let slot = node.and_then(|node| self.cluster.node(node)).map(|node| node.slot);
        let profile = |pod: &PodInfo| self.config.profile(pod.scheduler()).filter(|_| concerned(pod));
        self.queue.on_changes(
            changes,
            |pod, plugin, change| {
                profile(pod).map_or(QueueingHint::No, |profile| profile.queueing_hint(plugin, pod, change))
            },
            |pod| match (profile(pod), slot) {
                (Some(profile), Some(slot)) => decide::may_fit(pod, &mut self.cluster, profile, slot).map_err(Some),
                _ => Err(None),
            },
        );
    }
}
