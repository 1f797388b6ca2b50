//! Zones: how fast nodes that are not ready lose their Pods. Nodes are tainted for eviction one after the other; slower, or not at
//! all, if so many in a zone are not ready that the zone rather than the nodes is at fault; and none while no node of the cluster
//! is ready: then the control plane is probably disconnected.
//!
//! Upstream: `pkg/controller/nodelifecycle`, its zone states and rate limiters. The taints themselves show when the last node of a
//! zone was tainted: a restart loses nothing. <https://kubernetes.io/docs/concepts/architecture/nodes/#rate-limits-on-eviction>

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};

use super::{
    Config, Context, Plan, Row, Writes, meta,
    node_lifecycle::{self, NOT_READY, UNREACHABLE},
    write::Write,
};
use podwright_client::Key;

const REGION: &str = "topology.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

/// One key for all zones: whether any node at all is ready affects each of them, and a burst of changes costs one pass over all
/// nodes, not one per zone.
pub const ROW: Row = Row {
    name: "node-controller",
    workers: 1,
    writes: Writes::Of(&["nodes"]),
    watch: |watches| {
        let nodes = &watches.world.informers.nodes.clone();
        watches.on(nodes, |_, queue, change| {
            let matters = |node: &Arc<Node>| {
                let taint = evicts(node).map(|taint| taint.key.clone());
                (zone(node), wanted(node), taint, is_ready(node), is_excluded(node))
            };
            if change.old.as_ref().map(matters) != change.new.as_ref().map(matters) {
                queue.add(Key::new("", "zones"));
            }
        });
    },
    reconcile: |context: &Context<'_>, _: &Key| {
        plan(&context.world.informers.nodes.list(), context.now, &context.world.config)
    },
};

/// The zone of a node; nodes without the labels share one.
pub fn zone(node: &Node) -> Key {
    let label = |name: &str| node.metadata.labels.as_ref().and_then(|labels| labels.get(name)).cloned();
    Key::new(label(REGION).unwrap_or_default(), label(ZONE).unwrap_or_default())
}

/// The eviction taint that a node should get; `None` if it is ready, or has not reported yet.
fn wanted(node: &Node) -> Option<&'static str> {
    match node_lifecycle::condition(node, "Ready")?.status.as_str() {
        "False" => Some(NOT_READY),
        "Unknown" => Some(UNREACHABLE),
        _ => None,
    }
}

/// The node's current NoExecute taint of node lifecycle.
fn evicts(node: &Node) -> Option<&Taint> {
    let mut taints = node.spec.as_ref()?.taints.iter().flatten();
    taints.find(|taint| node_lifecycle::evicts(taint))
}

/// The state of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneState {
    Normal,
    /// More than two nodes, and at least the threshold's share of all, are not ready.
    Partial,
    /// None is ready.
    Full,
}

/// Whether a node does not count in its zone.
fn is_excluded(node: &Node) -> bool {
    node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(EXCLUDED))
}

fn is_ready(node: &Node) -> bool {
    node_lifecycle::condition(node, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Upstream's `ComputeZoneState`.
pub fn state(ready: usize, unready: usize, config: &Config) -> ZoneState {
    match () {
        () if ready == 0 && unready > 0 => ZoneState::Full,
        () if unready > 2 && unready as f64 / (ready + unready) as f64 >= config.unhealthy_zone_threshold => {
            ZoneState::Partial
        }
        () => ZoneState::Normal,
    }
}

/// The time between two taints in a zone; `None` if none may be tainted now.
fn interval(state: ZoneState, nodes: usize, config: &Config) -> Option<Duration> {
    let rate = match state {
        // A zone that is down entirely is not its nodes' fault; but there are other zones for their Pods.
        ZoneState::Normal | ZoneState::Full => config.node_eviction_rate,
        ZoneState::Partial if nodes > config.large_cluster_size => config.secondary_node_eviction_rate,
        ZoneState::Partial => 0.0,
    };
    (rate > 0.0).then(|| Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX))
}

/// The nodes of a zone.
#[derive(Default)]
struct Zone<'a> {
    /// Those that count for its state.
    ready: usize,
    unready: usize,
    nodes: Vec<&'a Node>,
}

/// Plans the nodes of all zones.
pub fn plan(nodes: &[Arc<Node>], now: Timestamp, config: &Config) -> Plan {
    let mut zones: BTreeMap<Key, Zone<'_>> = BTreeMap::new();
    for node in nodes {
        let zone = zones.entry(zone(node)).or_default();
        zone.nodes.push(node);
        if is_excluded(node) {
            continue;
        }
        *(if is_ready(node) { &mut zone.ready } else { &mut zone.unready }) += 1;
    }
    let mut plan = Plan::default();
    let counts = |zone: &Zone<'_>| (zone.ready, zone.unready);
    let (any_ready, any) = zones.values().map(counts).fold((false, false), |(any_ready, any), (ready, unready)| {
        (any_ready || ready > 0, any || ready + unready > 0)
    });
    if any && !any_ready {
        let tainted = zones.values().flat_map(|zone| &zone.nodes).filter(|node| evicts(node).is_some());
        plan.then(tainted.filter_map(|node| change(node, None, now)).collect());
        return plan;
    }
    let mut writes = Vec::new();
    for zone in zones.values() {
        let (write, wait) = next(zone, now, config);
        writes.extend(write);
        wait.into_iter().for_each(|wait| plan.requeue(wait));
    }
    plan.then(writes);
    plan
}

/// The next node of a zone to taint, if it is time for that, and when to check the zone again.
fn next(zone: &Zone<'_>, now: Timestamp, config: &Config) -> (Option<Write>, Option<Duration>) {
    let state = state(zone.ready, zone.unready, config);
    let Some(interval) = interval(state, zone.ready + zone.unready, config) else { return (None, None) };
    let waits =
        |node: &&&Node| wanted(node).is_some() && evicts(node).is_none() && !meta::is_terminating(&node.metadata);
    // The longest silent first.
    let Some(first) = zone.nodes.iter().filter(waits).min_by_key(|node| (since(node), meta::name(&node.metadata)))
    else {
        return (None, None);
    };
    let last = zone.nodes.iter().filter_map(|node| evicts(node)?.time_added.as_ref()).map(|time| time.0).max();
    match last.and_then(|last| meta::until(now, meta::later(last, interval))) {
        Some(wait) => (None, Some(wait)),
        None => (change(first, wanted(first), now), Some(interval)),
    }
}

fn since(node: &Node) -> Option<Timestamp> {
    node_lifecycle::condition(node, "Ready")?.last_transition_time.as_ref().map(|time| time.0)
}

/// Sets or removes the eviction taint.
fn change(node: &Node, key: Option<&str>, now: Timestamp) -> Option<Write> {
    let mut new = node.clone();
    let spec = new.spec.get_or_insert_default();
    let mut taints = spec.taints.take().unwrap_or_default();
    taints.retain(|taint| !node_lifecycle::evicts(taint));
    taints.extend(key.map(|key| node_lifecycle::taint(key, "NoExecute", now)));
    spec.taints = Some(taints).filter(|taints| !taints.is_empty());
    Write::change(node, &new)
}
