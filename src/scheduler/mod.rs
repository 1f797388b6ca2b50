//! The scheduler: gives every Pod without a node the best one.
//!
//! ```text
//!   informers --> Cluster (nodes, what is on them) ----\
//!       \-------> Queue (active, backoff, parked) --pod--> framework::decide (pure) --> bind, or park with the reasons
//! ```
//!
//! One task owns cluster and queue and takes one Pod at a time; what it has decided counts at once (the Pod is *assumed*
//! on its node), the binding is written beside it. The rules are rows of [`plugins::PLUGINS`], a file each.

pub mod cluster;
pub mod framework;
pub mod plugins;
pub mod queue;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{Env, Request, Status, Verb},
    client::{Client, Delta, Informers, Key, Recorder, reference},
};
use cluster::Cluster;
use framework::Decision;
use queue::{Change, Queue};

/// The name that Pods ask for in `spec.schedulerName`.
pub const NAME: &str = "default-scheduler";

/// Runs until `shutdown`.
pub async fn run(client: Client, env: Env, informers: Informers, shutdown: CancellationToken) {
    informers.pods.synced().await;
    informers.nodes.synced().await;
    let (pods, nodes) = (informers.pods.subscribe(), informers.nodes.subscribe());
    let recorder = Recorder::new(client.clone(), env.clone(), NAME, None);
    let scheduler = Scheduler {
        client,
        env,
        recorder,
        cluster: Cluster::default(),
        queue: Queue::default(),
        writes: JoinSet::new(),
    };
    scheduler.run(pods, nodes, shutdown).await;
}

struct Scheduler {
    client: Client,
    env: Env,
    recorder: Recorder,
    cluster: Cluster,
    queue: Queue,
    /// Bindings and conditions on their way.
    writes: JoinSet<Written>,
}

/// How a write ended.
enum Written {
    Bound(Arc<Pod>, String, Result<(), Status>),
    Condition,
}

impl Scheduler {
    async fn run(
        mut self,
        mut pods: mpsc::UnboundedReceiver<Delta<Pod>>,
        mut nodes: mpsc::UnboundedReceiver<Delta<Node>>,
        shutdown: CancellationToken,
    ) {
        loop {
            // What is known goes first: a decision on old news is a wasted one.
            let wake = self.queue.next_wake();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(delta) = nodes.recv() => self.node_changed(delta),
                Some(delta) = pods.recv() => self.pod_changed(delta),
                Some(Ok(written)) = self.writes.join_next() => self.written(written),
                () = wait_until(wake) => self.queue.wake(tokio::time::Instant::now()),
                () = std::future::ready(()), if self.queue.has_active() => self.schedule_one(),
                else => break,
            }
        }
        while self.writes.join_next().await.is_some() {}
    }

    fn node_changed(&mut self, delta: Delta<Node>) {
        match (delta.old, delta.new) {
            (None, Some(node)) => {
                self.cluster.set_node(node);
                self.queue.on_change(&Change::NodeAdded);
            }
            (Some(old), Some(node)) => {
                let changes = queue::node_changes(&old, &node);
                self.cluster.set_node(node);
                changes.iter().for_each(|change| self.queue.on_change(change));
            }
            (_, None) => self.cluster.remove_node(&delta.key.name),
        }
    }

    fn pod_changed(&mut self, delta: Delta<Pod>) {
        let Some(pod) = delta.new.filter(|pod| !finished(pod)) else {
            self.queue.remove(&delta.key);
            if delta.old.is_some_and(|old| self.cluster.remove_pod(&old)) {
                self.queue.on_change(&Change::PodRemoved);
            }
            return;
        };
        if node_name(&pod).is_some() {
            self.queue.remove(&delta.key);
            self.cluster.set_pod(pod);
        } else if ours(&pod) && !self.cluster.is_assumed(&pod) {
            let gates = pod.spec.as_ref().and_then(|s| s.scheduling_gates.as_ref()).is_some_and(|g| !g.is_empty());
            if gates {
                self.condition(&pod, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates");
            } else {
                self.queue.add(delta.key, pod);
            }
        }
    }

    fn schedule_one(&mut self) {
        let Some((key, pod)) = self.queue.pop() else { return };
        match framework::decide(&pod, &mut self.cluster, &self.env) {
            Decision::Bind(node) => {
                self.cluster.assume(pod.clone(), &node);
                self.queue.in_flight(&key);
                let client = self.client.clone();
                self.writes.spawn(async move {
                    let outcome = bind(&client, &key, &pod, &node).await;
                    Written::Bound(pod, node, outcome)
                });
            }
            Decision::Unschedulable { message, plugins } => {
                self.recorder.warning(reference(&*pod), "FailedScheduling", message.clone());
                self.condition(&pod, "Unschedulable", &message);
                self.queue.park(key, pod, plugins);
            }
        }
    }

    fn written(&mut self, written: Written) {
        let Written::Bound(pod, node, outcome) = written else { return };
        let key = Key::of(&*pod);
        match outcome {
            Ok(()) => {
                let message = format!("Successfully assigned {key} to {node}");
                self.recorder.normal(reference(&*pod), "Scheduled", message);
                self.queue.bound(&key);
            }
            Err(status) => {
                self.cluster.forget(&pod);
                if !status.is_not_found() {
                    let message = format!("binding rejected: {status}");
                    self.recorder.warning(reference(&*pod), "FailedScheduling", message);
                    self.queue.retry(key, pod);
                }
            }
        }
    }

    /// Tells in the Pod's status why it has no node; unless it says so already.
    fn condition(&mut self, pod: &Arc<Pod>, reason: &str, message: &str) {
        let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let same = |c: &PodCondition| {
            c.type_ == "PodScheduled" && c.reason.as_deref() == Some(reason) && c.message.as_deref() == Some(message)
        };
        if conditions.iter().any(same) {
            return;
        }
        let mut all: Vec<PodCondition> = conditions.iter().filter(|c| c.type_ != "PodScheduled").cloned().collect();
        all.push(PodCondition {
            type_: "PodScheduled".into(),
            status: "False".into(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.env.now())),
            ..PodCondition::default()
        });
        let (client, key) = (self.client.clone(), Key::of(&**pod));
        let patch = json!({ "metadata": { "uid": pod.metadata.uid }, "status": { "conditions": all } });
        self.writes.spawn(async move {
            if let Err(status) = client.merge::<Pod>(key.namespace(), &key.name, Some("status"), patch).await {
                tracing::debug!(%key, %status, "the Pod's condition was not written");
            }
            Written::Condition
        });
    }
}

async fn wait_until(moment: Option<tokio::time::Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

async fn bind(client: &Client, key: &Key, pod: &Pod, node: &str) -> Result<(), Status> {
    let request = Request {
        verb: Verb::Create,
        resource: "pods".into(),
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        subresource: Some("binding".into()),
        body: Some(json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": { "name": key.name, "namespace": key.namespace, "uid": pod.metadata.uid },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        })),
        ..Request::default()
    };
    client.call(request).await.map(drop)
}

fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|n| !n.is_empty())
}

fn finished(pod: &Pod) -> bool {
    matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"))
}

/// Whether this scheduler shall place it: it asks for us and is not being deleted.
fn ours(pod: &Pod) -> bool {
    let name = pod.spec.as_ref().and_then(|s| s.scheduler_name.as_deref()).unwrap_or(NAME);
    name == NAME && pod.metadata.deletion_timestamp.is_none()
}
