//! The TTL of nodes: how long an agent may cache Secrets and ConfigMaps; longer in larger clusters. The steps overlap, so that a
//! cluster at a boundary does not alternate.
//!
//! Upstream: `pkg/controller/ttl`.

use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::Node;

use super::{Context, Plan, Row, Writes, meta, write::Write};
use podwright_client::Key;

pub const TTL: &str = "node.alpha.kubernetes.io/ttl";

/// From this many nodes, up to this many, this many seconds.
const STEPS: &[(usize, usize, u32)] =
    &[(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

pub const ROW: Row = Row {
    name: "ttl-controller",
    workers: 1,
    writes: Writes::Of(&["nodes"]),
    watch: |watches| {
        let nodes = &watches.world.informers.nodes.clone();
        let last = AtomicUsize::new(0);
        watches.on(nodes, move |world, queue, change| {
            let noted = |node: &std::sync::Arc<Node>| meta::annotation(&node.metadata, TTL).map(str::to_owned);
            if change.old.is_none() || change.old.as_ref().map(noted) != change.new.as_ref().map(noted) {
                queue.add(change.key.clone());
            }
            let number = world.informers.nodes.len();
            if crosses(last.swap(number, Ordering::Relaxed), number) {
                world.informers.nodes.list().iter().for_each(|node| queue.add(Key::of(&**node)));
            }
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| {
        let nodes = &context.world.informers.nodes;
        nodes.get(key).map_or_else(Plan::default, |node| plan(&node, nodes.len()))
    },
};

/// Whether a change in size crosses a boundary: several nodes may come or go at once.
pub fn crosses(before: usize, now: usize) -> bool {
    STEPS.iter().any(|(from, to, _)| (before < *from) != (now < *from) || (before > *to) != (now > *to))
}

/// Plans a node in a cluster of this size.
pub fn plan(node: &Node, nodes: usize) -> Plan {
    let noted = meta::annotation(&node.metadata, TTL).and_then(|text| text.parse::<u32>().ok());
    let mut step = noted.and_then(|ttl| STEPS.iter().position(|step| step.2 == ttl)).unwrap_or(0);
    // The invariant: the first step starts at 0, the last one is unbounded.
    while nodes > STEPS[step].1 {
        step += 1;
    }
    while nodes < STEPS[step].0 {
        step -= 1;
    }
    let mut new = node.clone();
    new.metadata.annotations.get_or_insert_default().insert(TTL.into(), STEPS[step].2.to_string());
    let mut plan = Plan::default();
    plan.then(Write::change(node, &new).into_iter().collect());
    plan
}
