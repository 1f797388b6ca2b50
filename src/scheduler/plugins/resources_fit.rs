//! NodeResourcesFit: what the Pod requests must be free on the node.

use super::super::framework::{Plugin, Reason};
use crate::scheduler::{cluster::NodeInfo, pod::PodInfo, queue::Change};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeResourcesFit",
    filter: Some(filter),
    score: None,
    wakes: |change| matches!(change, Change::NodeAdded | Change::NodeAllocatable | Change::PodRemoved),
};

fn filter(pod: &PodInfo, node: &NodeInfo) -> Vec<Reason> {
    let mut why = Vec::new();
    if node.load.pod_count() + 1 > node.max_pods {
        why.push("Too many pods".into());
    }
    let (wanted, used, capacity) = (&pod.requests, &node.load.requested, &node.allocatable);
    // What is requested already may be more than there is; what is not requested may lack.
    let lacks = |wanted: i64, used: i64, capacity: i64| wanted > 0 && wanted > capacity.saturating_sub(used);
    if lacks(wanted.cpu, used.cpu, capacity.cpu) {
        why.push("Insufficient cpu".into());
    }
    if lacks(wanted.memory, used.memory, capacity.memory) {
        why.push("Insufficient memory".into());
    }
    if lacks(wanted.ephemeral_storage, used.ephemeral_storage, capacity.ephemeral_storage) {
        why.push("Insufficient ephemeral-storage".into());
    }
    for (name, amount) in &wanted.others {
        if lacks(*amount, used.get(name), capacity.get(name)) {
            why.push(format!("Insufficient {name}").into());
        }
    }
    why
}
