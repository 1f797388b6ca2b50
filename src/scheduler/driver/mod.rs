//! The task that owns cluster and queue: takes in what changed, has Pods decided, and sends off what comes of it.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    apps::v1::{ReplicaSet, StatefulSet},
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service},
    policy::v1::PodDisruptionBudget,
    storage::v1::StorageClass,
};
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

mod bind;
mod preempt;

use super::{
    cluster::Cluster,
    config::Config,
    decide::{self, Decision},
    framework::{Change, Nomination},
    pod::{PodInfo, is_finished, node_name},
    profile::Profile,
    queue::{self, Queue},
    writes::{self, Written},
};
use crate::{
    api::{Env, selector::LabelSelector},
    client::{Client, Delta, Informers, Key, Recorder, reference},
};
use bind::Pending;
use preempt::Preempting;

/// So many bindings and conditions may be on their way at once: enough to fill the store's group commits.
const MOST_WRITES: usize = 256;
/// After so many decisions in a row others get their turn.
const TURNS: usize = 16;

type Changes<K> = mpsc::UnboundedReceiver<Delta<K>>;

pub struct Scheduler {
    client: Client,
    env: Env,
    config: Arc<Config>,
    /// One for each profile, by its name: an event says which scheduler it is of.
    recorders: BTreeMap<String, Recorder>,
    cluster: Cluster,
    queue: Queue,
    nodes: Changes<Node>,
    pods: Changes<Pod>,
    namespaces: Changes<Namespace>,
    services: Changes<Service>,
    replica_sets: Changes<ReplicaSet>,
    stateful_sets: Changes<StatefulSet>,
    budgets: Changes<PodDisruptionBudget>,
    claims: Changes<PersistentVolumeClaim>,
    volumes: Changes<PersistentVolume>,
    classes: Changes<StorageClass>,
    /// Pods whose node is kept for them until what they wait for is there, by uid.
    pending: BTreeMap<String, Pending>,
    preempting: Preempting,
    /// Bindings and conditions on their way.
    writes: JoinSet<Written>,
}

impl Scheduler {
    pub fn new(client: Client, env: Env, informers: &Informers, config: Arc<Config>) -> Scheduler {
        let recorder = |name: &String| Recorder::new(client.clone(), env.clone(), name, None);
        let recorders = config.profiles.iter().map(|profile| (profile.name.clone(), recorder(&profile.name))).collect();
        Scheduler {
            recorders,
            client,
            env,
            cluster: Cluster::default(),
            queue: Queue::new(config.initial_backoff, config.max_backoff),
            nodes: informers.nodes.subscribe(),
            pods: informers.pods.subscribe(),
            namespaces: informers.namespaces.subscribe(),
            services: informers.services.subscribe(),
            replica_sets: informers.replica_sets.subscribe(),
            stateful_sets: informers.stateful_sets.subscribe(),
            budgets: informers.pod_disruption_budgets.subscribe(),
            claims: informers.persistent_volume_claims.subscribe(),
            volumes: informers.persistent_volumes.subscribe(),
            classes: informers.storage_classes.subscribe(),
            pending: BTreeMap::new(),
            preempting: Preempting::default(),
            writes: JoinSet::new(),
            config,
        }
    }

    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            // What is known goes first, all of it: a decision on old news is a wasted one, or a wrong one.
            self.catch_up();
            let mut turns = 0;
            while turns < TURNS && self.writes.len() < MOST_WRITES && self.queue.has_next() {
                self.schedule_one();
                turns += 1;
            }
            if turns > 0 && !shutdown.is_cancelled() {
                tokio::task::yield_now().await;
                continue;
            }
            let wake = self.queue.next_wake().into_iter().chain(self.next_end_of_patience()).min();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(delta) = self.namespaces.recv() => self.namespace_changed(delta),
                Some(delta) = self.services.recv() => self.service_changed(delta),
                Some(delta) = self.replica_sets.recv() => self.replica_set_changed(delta),
                Some(delta) = self.stateful_sets.recv() => self.stateful_set_changed(delta),
                Some(delta) = self.budgets.recv() => self.budget_changed(delta),
                Some(delta) = self.classes.recv() => self.class_changed(delta),
                Some(delta) = self.volumes.recv() => self.volume_changed(delta),
                Some(delta) = self.claims.recv() => self.claim_changed(delta),
                Some(delta) = self.nodes.recv() => self.node_changed(delta),
                Some(delta) = self.pods.recv() => self.pod_changed(delta),
                Some(Ok(written)) = self.writes.join_next() => self.written(written),
                () = wait_until(wake) => {}
                else => break,
            }
        }
        while let Some(written) = self.writes.join_next().await {
            written.into_iter().for_each(|written| self.written(written));
        }
    }

    fn catch_up(&mut self) {
        // What Pods are judged by comes before them.
        while let Ok(delta) = self.namespaces.try_recv() {
            self.namespace_changed(delta);
        }
        while let Ok(delta) = self.services.try_recv() {
            self.service_changed(delta);
        }
        while let Ok(delta) = self.replica_sets.try_recv() {
            self.replica_set_changed(delta);
        }
        while let Ok(delta) = self.stateful_sets.try_recv() {
            self.stateful_set_changed(delta);
        }
        while let Ok(delta) = self.budgets.try_recv() {
            self.budget_changed(delta);
        }
        while let Ok(delta) = self.classes.try_recv() {
            self.class_changed(delta);
        }
        while let Ok(delta) = self.volumes.try_recv() {
            self.volume_changed(delta);
        }
        while let Ok(delta) = self.claims.try_recv() {
            self.claim_changed(delta);
        }
        while let Ok(delta) = self.nodes.try_recv() {
            self.node_changed(delta);
        }
        while let Ok(delta) = self.pods.try_recv() {
            self.pod_changed(delta);
        }
        while let Some(Ok(written)) = self.writes.try_join_next() {
            self.written(written);
        }
        self.room_given_up();
        self.look_at_pending();
        self.queue.wake(Instant::now());
    }

    /// What is no longer kept free for Pods may do for others that had to leave it to them.
    fn room_given_up(&mut self) {
        for (pod, node) in self.cluster.nominations.take_given_up() {
            let (uid, priority) = (pod.uid.clone(), pod.priority);
            let left_out = |other: &PodInfo| other.priority <= priority && other.uid != uid;
            self.wake(&[Change::PodRemoved(pod)], Some(&node), left_out);
        }
    }

    fn class_changed(&mut self, Delta { key, old, new, .. }: Delta<StorageClass>) {
        self.cluster.storage.set_class(&key.name, new.clone());
        if let Some(new) = new {
            self.on_changes(&[Change::Class(old, new)], None);
        }
    }

    fn volume_changed(&mut self, Delta { key, old, new, .. }: Delta<PersistentVolume>) {
        self.cluster.storage.set_volume(&key.name, new.clone());
        if let Some(new) = new {
            self.on_changes(&[Change::Volume(old, new)], None);
        }
    }

    fn claim_changed(&mut self, Delta { key, new, .. }: Delta<PersistentVolumeClaim>) {
        let there = new.is_some();
        self.cluster.storage.set_claim(&key, new);
        if there {
            self.on_changes(&[Change::Claim(key)], None);
        }
    }

    fn namespace_changed(&mut self, Delta { key, new, .. }: Delta<Namespace>) {
        if self.cluster.set_namespace(&key.name, new.as_deref()) {
            self.on_changes(&[Change::Namespace], None);
        }
    }

    fn service_changed(&mut self, Delta { key, new, .. }: Delta<Service>) {
        self.cluster.workloads.set_service(&key, new.as_deref());
    }

    fn replica_set_changed(&mut self, Delta { old, new, .. }: Delta<ReplicaSet>) {
        if let Some(uid) = old.as_ref().and_then(|old| old.metadata.uid.as_deref()) {
            self.cluster.workloads.set_owner(uid, None);
        }
        if let Some(new) = new {
            let selector = new.spec.as_ref().and_then(|spec| LabelSelector::of(&spec.selector));
            self.cluster.workloads.set_owner(new.metadata.uid.as_deref().unwrap_or_default(), selector);
        }
    }

    fn stateful_set_changed(&mut self, Delta { old, new, .. }: Delta<StatefulSet>) {
        if let Some(uid) = old.as_ref().and_then(|old| old.metadata.uid.as_deref()) {
            self.cluster.workloads.set_owner(uid, None);
        }
        if let Some(new) = new {
            let selector = new.spec.as_ref().and_then(|spec| LabelSelector::of(&spec.selector));
            self.cluster.workloads.set_owner(new.metadata.uid.as_deref().unwrap_or_default(), selector);
        }
    }

    fn budget_changed(&mut self, Delta { key, new, .. }: Delta<PodDisruptionBudget>) {
        self.cluster.workloads.set_budget(&key, new.as_deref());
    }

    fn node_changed(&mut self, delta: Delta<Node>) {
        let Some(node) = delta.new else {
            self.cluster.remove_node(&delta.key.name);
            let expected: Vec<_> = self.cluster.nominations.on(&delta.key.name).cloned().collect();
            expected.iter().for_each(|pod| self.displace(pod));
            return self.on_changes(&[Change::NodeRemoved], None);
        };
        let changes = match &delta.old {
            None => vec![Change::NodeAdded],
            Some(old) => queue::node_changes(old, &node),
        };
        self.cluster.set_node(node);
        self.on_changes(&changes, Some(&delta.key.name));
    }

    fn pod_changed(&mut self, Delta { key, old, new, .. }: Delta<Pod>) {
        // Whoever was known under this name may be gone, finished, or another Pod.
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
                self.on_changes(&[Change::PodRemoved(pod)], Some(&node));
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
            self.condition(&pod, "SchedulingGated", &why);
        } else {
            self.pod_waits(pod);
        }
    }

    /// A Pod has a node, or is its newer form there.
    fn pod_is_on(&mut self, pod: Arc<PodInfo>, node: &str) {
        let before = self.cluster.pod(&pod.uid).cloned();
        let freed = self.cluster.set_pod(pod.clone(), node);
        let changed = |before: &Arc<PodInfo>| {
            before.pod.metadata.labels != pod.pod.metadata.labels || before.is_terminating() != pod.is_terminating()
        };
        match before {
            None => self.on_changes(&[Change::PodAdded(pod)], Some(node)),
            Some(before) => {
                if let Some(freed) = freed {
                    self.on_changes(&[Change::PodRemoved(before.clone())], Some(&freed));
                }
                if changed(&before) {
                    self.on_changes(&[Change::PodChanged(before, pod)], Some(node));
                }
            }
        }
    }

    fn pod_waits(&mut self, pod: Arc<PodInfo>) {
        // Its binding is written, though not seen yet: this is old news.
        if self.cluster.is_assumed(&pod.uid) && !self.queue.contains(&pod) {
            return;
        }
        if !self.queue.contains(&pod)
            && let Some(node) = pod.nominated()
        {
            // Room was being made for it before this scheduler started.
            self.cluster.nominations.set(pod.clone(), node);
        }
        self.cluster.nominations.renew(&pod);
        self.queue.add(pod.clone());
        // Its condition may have been refused because somebody else changed the Pod.
        self.explain(&pod.key);
    }

    fn profile(&self, pod: &PodInfo) -> Option<&Profile> {
        self.config.profile(pod.scheduler())
    }

    /// Wakes the Pods that changes may help; `node` is where they happened.
    fn on_changes(&mut self, changes: &[Change], node: Option<&str>) {
        if let Some(node) = node.filter(|_| changes.iter().any(Change::may_end_hopes)) {
            self.cluster.nominations.on(node).for_each(|pod| self.queue.reconsider(pod));
        }
        self.wake(changes, node, |_| true);
    }

    /// Likewise, of those that `concerned` names.
    fn wake(&mut self, changes: &[Change], node: Option<&str>, concerned: impl Fn(&PodInfo) -> bool) {
        let node = node.and_then(|node| self.cluster.node(node));
        let (config, cluster) = (&self.config, &self.cluster);
        let profile = |pod: &PodInfo| config.profile(pod.scheduler()).filter(|_| concerned(pod));
        self.queue.on_changes(
            changes,
            |pod, plugin, change| {
                profile(pod).map_or(super::framework::Wakes::No, |profile| profile.wakes(plugin, pod, change))
            },
            |pod| match (profile(pod), node) {
                (Some(profile), Some(node)) => decide::may_fit(pod, cluster, profile, node).map_err(Some),
                _ => Err(None),
            },
        );
    }

    fn schedule_one(&mut self) {
        let Some(pod) = self.queue.pop() else { return };
        let config = self.config.clone();
        let Some(profile) = config.profile(pod.scheduler()) else {
            // Pods of other schedulers are not put in line.
            return self.queue.done(&pod);
        };
        let start = Instant::now();
        match decide::decide(&pod, &mut self.cluster, profile, &self.env) {
            Decision::Bind(choice) => {
                self.cluster.assume(pod.clone(), &choice.node);
                let mut note = format!("{choice}, in {} us", start.elapsed().as_micros());
                choice.verdicts.iter().for_each(|verdict| note.extend(["; ", verdict.as_str()]));
                match profile.reserve(&pod, &choice.node, &mut self.cluster) {
                    Ok(None) => self.bind(pod, choice.node, note),
                    Ok(Some(before)) => self.prepare(pod, choice.node, note, before),
                    Err(why) => self.not_bound(pod, why),
                }
            }
            Decision::Unschedulable { message, plugins, nomination } => {
                self.warn(&pod, &message);
                match nomination {
                    Nomination::Keep => {}
                    Nomination::Clear => self.cluster.nominations.remove(&pod.uid),
                    Nomination::Preempt { node, victims } => self.preempt(&pod, &node, victims),
                }
                self.queue.park(&pod, plugins, &message);
                self.explain(&pod.key);
            }
        }
    }

    /// Tells about a Pod, as the scheduler that the Pod `by` asks for.
    fn tell(&self, by: &PodInfo, about: &PodInfo, reason: &str, message: String) {
        if let Some(recorder) = self.recorders.get(by.scheduler()) {
            recorder.normal(reference(&*about.pod), reason, message);
        }
    }

    /// Likewise, of a Pod that has no node.
    fn warn(&self, pod: &PodInfo, message: &str) {
        if let Some(recorder) = self.recorders.get(pod.scheduler()) {
            recorder.warning(reference(&*pod.pod), "FailedScheduling", cut(message));
        }
    }

    /// Tells in its status why a Pod in the queue has no node.
    fn explain(&mut self, key: &Key) {
        if let Some((pod, reason, message)) = self.queue.why(key) {
            self.condition(&pod, reason, &message);
        }
    }

    /// Tells in the Pod's status why it has no node, and on which one room is being made for it; unless it says so already.
    fn condition(&mut self, pod: &Arc<PodInfo>, reason: &str, message: &str) {
        let nominated = self.cluster.nominations.of(&pod.uid);
        if let Some(patch) = writes::unscheduled(&pod.pod, reason, message, nominated, self.env.now()) {
            self.patch_status(&pod.key, patch);
        }
    }

    fn patch_status(&mut self, key: &Key, patch: Value) {
        let (client, key) = (self.client.clone(), key.clone());
        self.writes.spawn(async move {
            if let Err(status) = client.merge::<Pod>(key.namespace(), &key.name, Some("status"), patch).await {
                tracing::debug!(%key, %status, "the Pod's status was not written");
            }
            Written::Other
        });
    }
}

/// A message as an event may have it: upstream cuts off what goes beyond the limit of a note.
fn cut(message: &str) -> String {
    const LIMIT: usize = 1024;
    const MORE: &str = " ...";
    if message.len() <= LIMIT {
        return message.to_owned();
    }
    // The beginning of a text is a boundary.
    let end = (0..=LIMIT - MORE.len()).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
    format!("{}{MORE}", &message[..end])
}

async fn wait_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
