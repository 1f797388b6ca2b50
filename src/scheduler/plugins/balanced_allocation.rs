//! NodeResourcesBalancedAllocation: the more alike the used shares of CPU and memory are, the better.

use super::super::framework::{MAX_SCORE, Normalize, Plugin, Score};
use crate::scheduler::{cluster::NodeInfo, pod::PodInfo};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeResourcesBalancedAllocation",
    filter: None,
    score: Some(Score { weight: 1, of: score, normalize: Normalize::Not }),
    wakes: |_| false,
};

/// 100 less the standard deviation of the two shares, of what is really requested. A Pod that requests nothing changes
/// no balance.
fn score(pod: &PodInfo, node: &NodeInfo) -> i64 {
    if pod.requests.is_zero() {
        return 0;
    }
    let share = |used: i64, wanted: i64, capacity: i64| {
        (capacity > 0).then(|| (used.saturating_add(wanted) as f64 / capacity as f64).min(1.0))
    };
    let (used, wanted, capacity) = (&node.load.requested, &pod.requests, &node.allocatable);
    let cpu = share(used.cpu, wanted.cpu, capacity.cpu);
    let memory = share(used.memory, wanted.memory, capacity.memory);
    let deviation = cpu.zip(memory).map_or(0.0, |(cpu, memory)| (cpu - memory).abs() / 2.0);
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}
