//! Zones: how fast nodes that are not ready lose their Pods. One node after the other gets the taint that evicts; slower,
//! or not at all, where so many of a zone are not ready that the fault is more likely the zone's than theirs; and none
//! while no node of the cluster is ready: then it is most likely on this side.
//!
//! Upstream: `pkg/controller/nodelifecycle`, its zone states and rate limiters. When the last node of a zone was tainted is
//! told by the taints themselves: there is nothing to lose at a restart.
//! <https://kubernetes.io/docs/concepts/architecture/nodes/#rate-limits-on-eviction>

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};

use super::{
    Config, Context, Plan, Row, World, meta,
    node_lifecycle::{self, NOT_READY, UNREACHABLE},
    plan::Write,
    queue::Queue,
};
use crate::client::Key;

const REGION: &str = "topology.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

/// The key is a zone: its region and its name.
pub const ROW: Row = Row {
    name: "node-controller",
    workers: 1,
    wire: |wires| {
        let nodes = &wires.world.informers.nodes.clone();
        wires.on(nodes, |world, queue, change| {
            let matters = |node: &Arc<Node>| (zone(node), wanted(node), evicts(node).map(|taint| taint.key.clone()));
            let (old, new) = (change.old.as_ref().map(matters), change.new.as_ref().map(matters));
            if old == new {
                return;
            }
            queue.add(new.or(old).map(|(zone, ..)| zone).unwrap_or_default());
            wake_others(world, queue);
        });
    },
    reconcile: |context: &Context<'_>, zone: &Key| {
        plan(&context.world.informers.nodes.list(), zone, context.now, &context.world.config)
    },
};

/// Whether any node at all is ready concerns every zone.
fn wake_others(world: &World, queue: &Queue) {
    let zones: BTreeSet<Key> = world.informers.nodes.list().iter().map(|node| zone(node)).collect();
    zones.into_iter().for_each(|zone| queue.add(zone));
}

/// The zone that a node is in; nodes that do not say are in one together.
pub fn zone(node: &Node) -> Key {
    let label = |name: &str| node.metadata.labels.as_ref().and_then(|labels| labels.get(name)).cloned();
    Key::new(label(REGION).unwrap_or_default(), label(ZONE).unwrap_or_default())
}

/// The taint that shall evict a node's Pods; none of a node that is ready, or has not said anything yet.
fn wanted(node: &Node) -> Option<&'static str> {
    match node_lifecycle::condition(node, "Ready")?.status.as_str() {
        "False" => Some(NOT_READY),
        "Unknown" => Some(UNREACHABLE),
        _ => None,
    }
}

/// The taint of ours that evicts its Pods now.
fn evicts(node: &Node) -> Option<&Taint> {
    let mut taints = node.spec.as_ref()?.taints.iter().flatten();
    taints.find(|taint| node_lifecycle::evicts(taint))
}

/// How a zone is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Normal,
    /// More than two nodes, and at least the threshold's share of all, are not ready.
    Partial,
    /// None is ready.
    Full,
}

/// Upstream's `ComputeZoneState`.
pub fn state(ready: usize, unready: usize, config: &Config) -> State {
    match () {
        () if ready == 0 && unready > 0 => State::Full,
        () if unready > 2 && unready as f64 / (ready + unready) as f64 >= config.unhealthy_zone_threshold => {
            State::Partial
        }
        () => State::Normal,
    }
}

/// How long it takes from one node of a zone to the next; for ever, if none is to be tainted now.
fn interval(state: State, nodes: usize, config: &Config) -> Option<Duration> {
    let rate = match state {
        // That a zone is gone as a whole is not its nodes' fault; but there are other zones to go to.
        State::Normal | State::Full => config.node_eviction_rate,
        State::Partial if nodes > config.large_cluster_size => config.secondary_node_eviction_rate,
        State::Partial => 0.0,
    };
    (rate > 0.0).then(|| Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX))
}

/// What the nodes of a zone need, given all nodes.
pub fn plan(nodes: &[Arc<Node>], key: &Key, now: Timestamp, config: &Config) -> Plan {
    let mut plan = Plan::default();
    let mut counts: BTreeMap<Key, (usize, usize)> = BTreeMap::new();
    let counted = |node: &&Arc<Node>| node.metadata.labels.as_ref().is_none_or(|labels| !labels.contains_key(EXCLUDED));
    for node in nodes.iter().filter(counted) {
        let (ready, unready) = counts.entry(zone(node)).or_default();
        let is_ready = node_lifecycle::condition(node, "Ready").is_some_and(|ready| ready.status == "True");
        *(if is_ready { ready } else { unready }) += 1;
    }
    let here: Vec<&Arc<Node>> = nodes.iter().filter(|node| zone(node) == *key).collect();
    let any_ready = counts.values().any(|(ready, _)| *ready > 0);
    if !any_ready && !counts.is_empty() {
        let tainted = here.iter().filter(|node| evicts(node).is_some());
        plan.then(tainted.filter_map(|node| change(node, None, now)).collect());
        return plan;
    }
    let (ready, unready) = counts.get(key).copied().unwrap_or_default();
    let Some(interval) = interval(state(ready, unready, config), ready + unready, config) else { return plan };
    let waits =
        |node: &&&Arc<Node>| wanted(node).is_some() && evicts(node).is_none() && !meta::is_terminating(&node.metadata);
    // Who has been silent longest is first.
    let Some(first) = here.iter().filter(waits).min_by_key(|node| (since(node), meta::name(&node.metadata))) else {
        return plan;
    };
    let last = here.iter().filter_map(|node| evicts(node)?.time_added.as_ref()).map(|time| time.0).max();
    match last.and_then(|last| meta::until(now, meta::later(last, interval))) {
        Some(wait) => plan.requeue(wait),
        None => {
            plan.then(change(first, wanted(first), now).into_iter().collect());
            plan.requeue(interval);
        }
    }
    plan
}

fn since(node: &Node) -> Option<Timestamp> {
    node_lifecycle::condition(node, "Ready")?.last_transition_time.as_ref().map(|time| time.0)
}

/// Sets the taint that evicts, or takes it away.
fn change(node: &Node, key: Option<&str>, now: Timestamp) -> Option<Write> {
    let mut new = node.clone();
    let spec = new.spec.get_or_insert_default();
    let mut taints = spec.taints.take().unwrap_or_default();
    taints.retain(|taint| !node_lifecycle::evicts(taint));
    taints.extend(key.map(|key| node_lifecycle::taint(key, "NoExecute", now)));
    spec.taints = Some(taints).filter(|taints| !taints.is_empty());
    Write::change(node, &new)
}
