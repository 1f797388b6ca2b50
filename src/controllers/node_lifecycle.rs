//! Node lifecycle: a node without heartbeats is not ready, and taints reflect its conditions.
//!
//! Upstream: `pkg/controller/nodelifecycle`. Nodes' clocks are not trusted: a heartbeat counts from when it was observed here, not
//! from its own time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus, Pod, Taint};
use tokio::time::Instant;

use super::{
    Config, Context, Plan, Row, Writes,
    conditions::{self, Condition},
    meta,
    write::{Note, Write},
};
use podwright_client::{Informers, Key, reference};

pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

pub const ROW: Row = Row {
    name: "node-controller",
    workers: 4,
    writes: Writes::Of(&["nodes", "pods"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.on(&informers.leases, move |world, queue, change| {
            let key = Key::new("", &change.key.name);
            world.heartbeats.hear(&key.name);
            // A heartbeat of a healthy node changes nothing: its timer is reset when it fires.
            let silent = |node: Arc<Node>| condition(&node, "Ready").is_none_or(|ready| ready.status == "Unknown");
            if world.informers.nodes.get(&key).is_none_or(silent) {
                queue.add(key);
            }
        });
        watches.on(&informers.nodes, move |world, queue, change| {
            let said = |node: &Node| node.status.as_ref().and_then(|status| status.conditions.clone());
            match &change.new {
                // Status updates by the agent are heartbeats as well; those by this controller are not.
                Some(node) if change.old.as_ref().is_none_or(|old| said(old) != said(node)) => {
                    let silenced = condition(node, "Ready").is_none_or(|ready| ready.status == "Unknown");
                    if !silenced || change.old.is_none() {
                        world.heartbeats.hear(&change.key.name);
                    }
                }
                Some(_) => {}
                None => world.heartbeats.forget(&change.key.name),
            }
            queue.add(change.key.clone());
        });
        watches.on(&informers.pods, |world, queue, change| {
            // A Pod that is marked ready on a silent node.
            let Some(pod) = change.new.as_ref().filter(|pod| meta::is_ready(pod)) else { return };
            let key = Key::new("", meta::node_name(pod).unwrap_or_default());
            if world.informers.nodes.get(&key).is_some_and(|node| is_silent(&node)) {
                queue.add(key);
            }
        });
    },
    reconcile,
};

/// When each node's last heartbeat was observed, by a monotonic clock: silence is elapsed time, whatever the time of day. After a
/// restart every node gets its full grace period again.
#[derive(Default)]
pub struct Heartbeats(Mutex<HashMap<String, Instant>>);

impl Heartbeats {
    fn hear(&self, node: &str) {
        self.lock().insert(node.to_owned(), Instant::now());
    }
    fn forget(&self, node: &str) {
        self.lock().remove(node);
    }
    /// Converted to the time of day of a clock that shows `now`.
    fn last(&self, node: &str, now: Timestamp) -> Option<Timestamp> {
        self.lock().get(node).and_then(|heard| now.checked_sub(heard.elapsed()).ok())
    }
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let world = context.world;
    let Some(node) = world.informers.nodes.get(key) else { return Plan::default() };
    let heard = world.heartbeats.last(&key.name, context.now).unwrap_or(context.now);
    let pods = if is_silent(&node) { world.informers.pods.indexed(Informers::BY_NODE, &key.name) } else { Vec::new() };
    plan(&node, &pods, heard, context.now, &world.config)
}

pub(super) fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    conditions::find(node.status.as_ref()?.conditions.as_deref()?, kind)
}

/// Whether its state is unknown. An agent that reports its node as not ready also updates its Pods: this controller does not write
/// their conditions then, or both would conflict forever.
fn is_silent(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|ready| ready.status == "Unknown")
}

/// Plans a node whose last heartbeat was at `heard`; `pods` are its Pods if its state is unknown.
pub fn plan(node: &Node, pods: &[Arc<Pod>], heard: Timestamp, now: Timestamp, config: &Config) -> Plan {
    let mut plan = Plan::default();
    if meta::is_terminating(&node.metadata) {
        return plan;
    }
    let never = condition(node, "Ready").is_none();
    let grace = if never { config.node_startup_grace } else { config.node_monitor_grace };
    let mut seen = node.clone();
    match meta::until(now, meta::later(heard, grace)) {
        Some(wait) => plan.requeue(wait),
        None => silence(seen.status.get_or_insert_default(), now),
    }
    if let Some(write) = Write::shared_status(node, &seen) {
        let before = condition(node, "Ready").is_none_or(|ready| ready.status == "True");
        let name = meta::name(&node.metadata);
        let note = Note::normal(about(node), "NodeNotReady", format!("Node {name} status is now: NodeNotReady"));
        plan.then(vec![if before { write.done(note) } else { write }]);
        // The taints follow once the written conditions are observed.
        return plan;
    }
    if is_silent(node) {
        plan.then(pods.iter().filter(|pod| meta::is_ready(pod)).filter_map(|pod| mark(pod, now)).collect());
    }
    let mut tainted = node.clone();
    let old = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let taints = taints(node, old, now);
    if taints != old {
        tainted.spec.get_or_insert_default().taints = Some(taints).filter(|taints| !taints.is_empty());
        plan.work = plan.work.beside(Write::change(node, &tainted));
    }
    plan
}

/// Events about nodes name them by uid, as those of upstream's node controller.
fn about(node: &Node) -> k8s_openapi::api::core::v1::ObjectReference {
    reference(node)
}

/// Sets the conditions to unknown.
fn silence(status: &mut NodeStatus, now: Timestamp) {
    let all = status.conditions.get_or_insert_default();
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        let (reason, message) = match conditions::find(all, kind) {
            Some(known) if known.status == "Unknown" => continue,
            Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
            None => ("NodeStatusNeverUpdated", "Kubelet never posted node status."),
        };
        let heartbeat = conditions::find(all, kind).and_then(|known| known.last_heartbeat_time.clone());
        let new = NodeCondition::new(kind, "Unknown", reason, message, now);
        conditions::replace(all, NodeCondition { last_heartbeat_time: heartbeat, ..new });
    }
}

/// Pods of a silent node are not ready, so that Services leave them out.
fn mark(pod: &Arc<Pod>, now: Timestamp) -> Option<Write> {
    let mut new = Pod::clone(pod);
    let ready = new.status.as_mut()?.conditions.as_mut()?.iter_mut().find(|c| c.type_ == "Ready")?;
    ready.status = "False".into();
    ready.last_transition_time = Some(meta::time(now));
    let note = Note::warning(reference(&**pod), "NodeNotReady", "Node is not ready");
    Write::shared_status(&**pod, &new).map(|write| write.done(note))
}

/// A condition, its status, and the corresponding taint.
const TAINTS: &[(&str, &str, &str)] = &[
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];

/// The taints for a node's conditions, in addition to foreign ones. `node_zones` decides, by zone, when a node is tainted for
/// eviction; here that taint is removed with its reason, or changed with it.
pub fn taints(node: &Node, old: &[Taint], now: Timestamp) -> Vec<Taint> {
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for (kind, status, key) in TAINTS {
        if condition(node, kind).is_some_and(|c| c.status == *status) {
            wanted.push((*key, "NoSchedule"));
            if *kind == "Ready" && old.iter().any(evicts) {
                wanted.push((*key, "NoExecute"));
            }
        }
    }
    // A node that has never reported counts as not ready.
    if condition(node, "Ready").is_none() {
        wanted.push((NOT_READY, "NoSchedule"));
    }
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let closes = |taint: &Taint| {
        taint.effect == "NoSchedule" && (taint.key == UNSCHEDULABLE || TAINTS.iter().any(|row| row.2 == taint.key))
    };
    let ours = |taint: &Taint| closes(taint) || evicts(taint);
    let fits = |taint: &Taint, want: &(&str, &str)| (taint.key.as_str(), taint.effect.as_str()) == *want;
    let mut taints: Vec<Taint> =
        old.iter().filter(|taint| !ours(taint) || wanted.iter().any(|want| fits(taint, want))).cloned().collect();
    for want in &wanted {
        if !taints.iter().any(|taint| fits(taint, want)) {
            taints.push(self::taint(want.0, want.1, now));
        }
    }
    taints
}

/// Whether it is our taint that evicts Pods.
pub(super) fn evicts(taint: &Taint) -> bool {
    taint.effect == "NoExecute" && (taint.key == NOT_READY || taint.key == UNREACHABLE)
}

pub(super) fn taint(key: &str, effect: &str, now: Timestamp) -> Taint {
    Taint { key: key.into(), effect: effect.into(), value: None, time_added: Some(meta::time(now)) }
}
