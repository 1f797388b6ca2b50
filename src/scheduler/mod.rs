//! The scheduler: gives every Pod without a node the best one.
//!
//! ```text
//!   informers --> Cluster (nodes, what is on them) ----\
//!       \-------> Queue (active, backoff, parked) --pod--> framework::decide (pure) --> bind, or park with the reasons
//! ```
//!
//! One task owns cluster and queue and takes one Pod at a time; what it has decided counts at once (the Pod is *assumed*
//! on its node), the binding is written beside it. The rules are rows of [`plugins::PLUGINS`], a file each.

pub mod bench;
pub mod cluster;
pub mod framework;
pub mod plugins;
pub mod pod;
pub mod queue;

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{Node, Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{Env, Options, Request, Status, Verb},
    client::{Client, Delta, Informers, Key, Recorder, reference},
};
use cluster::Cluster;
use framework::Decision;
pub use pod::NAME;
use pod::{PodInfo, is_finished, is_gated, is_ours, node_name};
use queue::{Change, Queue};

/// So many bindings and conditions may be on their way at once: enough to fill the store's group commits.
const MOST_WRITES: usize = 256;
/// After so many decisions in a row others get their turn.
const TURNS: usize = 16;

/// Runs until `shutdown`.
pub async fn run(client: Client, env: Env, informers: Informers, shutdown: CancellationToken) {
    let synced = async {
        informers.pods.synced().await;
        informers.nodes.synced().await;
    };
    if shutdown.run_until_cancelled(synced).await.is_none() {
        return;
    }
    let recorder = Recorder::new(client.clone(), env.clone(), NAME, None);
    let scheduler = Scheduler {
        client,
        env,
        recorder,
        cluster: Cluster::default(),
        queue: Queue::default(),
        nodes: informers.nodes.subscribe(),
        pods: informers.pods.subscribe(),
        writes: JoinSet::new(),
    };
    scheduler.run(shutdown).await;
}

struct Scheduler {
    client: Client,
    env: Env,
    recorder: Recorder,
    cluster: Cluster,
    queue: Queue,
    nodes: mpsc::UnboundedReceiver<Delta<Node>>,
    pods: mpsc::UnboundedReceiver<Delta<Pod>>,
    /// Bindings and conditions on their way.
    writes: JoinSet<Written>,
}

/// How a write ended.
enum Written {
    Bound(Arc<PodInfo>, String, Result<(), Status>),
    Condition,
}

impl Scheduler {
    async fn run(mut self, shutdown: CancellationToken) {
        loop {
            // What is known goes first, all of it: a decision on old news is a wasted one, or a wrong one.
            self.catch_up();
            let mut turns = 0;
            while turns < TURNS && self.writes.len() < MOST_WRITES && self.queue.has_active() {
                self.schedule_one();
                turns += 1;
            }
            if turns > 0 && !shutdown.is_cancelled() {
                tokio::task::yield_now().await;
                continue;
            }
            let wake = self.queue.next_wake();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
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
        while let Ok(delta) = self.nodes.try_recv() {
            self.node_changed(delta);
        }
        while let Ok(delta) = self.pods.try_recv() {
            self.pod_changed(delta);
        }
        while let Some(Ok(written)) = self.writes.try_join_next() {
            self.written(written);
        }
        self.queue.wake(Instant::now());
    }

    fn node_changed(&mut self, delta: Delta<Node>) {
        let Some(node) = delta.new else { return self.cluster.remove_node(&delta.key.name) };
        let changes = match &delta.old {
            None => vec![Change::NodeAdded],
            Some(old) => queue::node_changes(old, &node),
        };
        self.cluster.set_node(node);
        self.on_changes(&changes, &delta.key.name);
    }

    fn pod_changed(&mut self, Delta { key, old, new, .. }: Delta<Pod>) {
        // Whoever was known under this name may be gone, finished, or another Pod.
        if let Some(old) = old
            && new.as_ref().is_none_or(|new| is_finished(new) || new.metadata.uid != old.metadata.uid)
        {
            self.queue.remove(&key);
            let freed = self.cluster.remove_pod(old.metadata.uid.as_deref().unwrap_or_default());
            self.freed(freed);
        }
        let Some(pod) = new.filter(|pod| !is_finished(pod)) else { return };
        if let Some(node) = node_name(&pod).map(str::to_owned) {
            self.queue.remove(&key);
            let freed = self.cluster.set_pod(PodInfo::of(pod), &node);
            self.freed(freed);
        } else if !is_ours(&pod) {
            self.queue.remove(&key);
        } else if is_gated(&pod) {
            self.condition(&pod, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates");
        } else {
            self.pod_waits(PodInfo::of(pod));
        }
    }

    fn pod_waits(&mut self, pod: Arc<PodInfo>) {
        // Its binding is written, though not seen yet: this is old news.
        if self.cluster.is_assumed(&pod.uid) && !self.queue.contains(&pod) {
            return;
        }
        self.queue.add(pod.clone());
        // Its condition may have been refused because somebody else changed the Pod.
        if let Some(message) = self.queue.parked_for(&pod.key) {
            self.condition(&pod.pod, "Unschedulable", &message);
        }
    }

    /// Room became free on a node.
    fn freed(&mut self, node: Option<String>) {
        if let Some(node) = node {
            self.on_changes(&[Change::PodRemoved], &node);
        }
    }

    fn on_changes(&mut self, changes: &[Change], node: &str) {
        let Some(node) = self.cluster.node(node) else { return };
        self.queue.on_changes(changes, |pod| framework::fits(pod, node));
    }

    fn schedule_one(&mut self) {
        let Some(pod) = self.queue.pop() else { return };
        let start = Instant::now();
        match framework::decide(&pod, &mut self.cluster, &self.env) {
            Decision::Bind(choice) => {
                self.cluster.assume(pod.clone(), &choice.node);
                let note = format!("{choice}, in {} us", start.elapsed().as_micros());
                let client = self.client.clone();
                self.writes.spawn(async move {
                    let outcome = bind(&client, &pod, &choice.node, note).await;
                    Written::Bound(pod, choice.node, outcome)
                });
            }
            Decision::Unschedulable { message, plugins } => {
                self.recorder.warning(reference(&*pod.pod), "FailedScheduling", message.clone());
                self.condition(&pod.pod, "Unschedulable", &message);
                self.queue.park(&pod, plugins, &message);
            }
        }
    }

    fn written(&mut self, written: Written) {
        let Written::Bound(pod, node, outcome) = written else { return };
        match outcome {
            Ok(()) => {
                let message = format!("Successfully assigned {} to {node}", pod.key);
                self.recorder.normal(reference(&*pod.pod), "Scheduled", message);
                self.queue.done(&pod);
            }
            Err(status) => {
                if status.is_not_found() {
                    self.queue.done(&pod);
                } else {
                    let message = format!("binding rejected: {status}");
                    self.recorder.warning(reference(&*pod.pod), "FailedScheduling", message);
                    self.queue.retry(&pod);
                }
                let freed = self.cluster.forget(&pod.uid);
                self.freed(freed);
            }
        }
    }

    /// Tells in the Pod's status why it has no node; unless it says so already. A Pod that has changed meanwhile refuses
    /// it: it may have a node by now, or conditions that are not known here.
    fn condition(&mut self, pod: &Arc<Pod>, reason: &str, message: &str) {
        let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let old = conditions.iter().find(|c| c.type_ == "PodScheduled");
        let told = |c: &PodCondition| {
            c.status == "False" && c.reason.as_deref() == Some(reason) && c.message.as_deref() == Some(message)
        };
        if old.is_some_and(told) {
            return;
        }
        let since = old.filter(|c| c.status == "False").and_then(|c| c.last_transition_time.clone());
        let mut all: Vec<PodCondition> = conditions.iter().filter(|c| c.type_ != "PodScheduled").cloned().collect();
        all.push(PodCondition {
            type_: "PodScheduled".into(),
            status: "False".into(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: since.or_else(|| Some(Time(self.env.now()))),
            observed_generation: pod.metadata.generation,
            ..PodCondition::default()
        });
        let (client, key) = (self.client.clone(), Key::of(&**pod));
        let patch = json!({
            "metadata": { "uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version },
            "status": { "conditions": all },
        });
        self.writes.spawn(async move {
            if let Err(status) = client.merge::<Pod>(key.namespace(), &key.name, Some("status"), patch).await {
                tracing::debug!(%key, %status, "the Pod's condition was not written");
            }
            Written::Condition
        });
    }
}

async fn wait_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Writes the binding; `note` is what the Pod's trace tells about it.
async fn bind(client: &Client, pod: &PodInfo, node: &str, note: String) -> Result<(), Status> {
    let key = &pod.key;
    let request = Request {
        verb: Verb::Create,
        resource: "pods".into(),
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        subresource: Some("binding".into()),
        body: Some(json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": { "name": key.name, "namespace": key.namespace, "uid": pod.uid },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        })),
        options: Options { note: Some(note), ..Options::default() },
        ..Request::default()
    };
    client.call(request).await.map(drop)
}
