//! NodeResourcesFit's default score, LeastAllocated: the more is left, the better.

use super::super::framework::{MAX_SCORE, Normalize, Plugin, Score};
use crate::scheduler::{cluster::NodeInfo, pod::PodInfo};

pub const PLUGIN: Plugin = Plugin {
    name: "LeastAllocated",
    filter: None,
    score: Some(Score { weight: 1, of: score, normalize: Normalize::Not }),
    wakes: |_| false,
};

/// The share of CPU and memory that would be left, averaged over what the node has at all.
fn score(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let (used, wanted, capacity) = (&node.load.assumed, &pod.assumed, &node.allocatable);
    let cpu = left(used.cpu, wanted.cpu, capacity.cpu);
    let memory = left(used.memory, wanted.memory, capacity.memory);
    match (cpu, memory) {
        (Some(cpu), Some(memory)) => (cpu + memory) / 2,
        (one, other) => one.or(other).unwrap_or(0),
    }
}

fn left(used: i64, wanted: i64, capacity: i64) -> Option<i64> {
    let rest = capacity.saturating_sub(used.saturating_add(wanted)).max(0);
    let share = || rest.checked_mul(MAX_SCORE).map_or_else(|| rest / (capacity / MAX_SCORE), |rest| rest / capacity);
    (capacity > 0).then(share)
}
