//! NodeResourcesBalancedAllocation: the more alike the used shares of CPU and memory are, the better.

use super::super::framework::{MAX_SCORE, Normalize, Plugin, Score, Subject};
use crate::scheduler::cluster::NodeInfo;

pub const PLUGIN: Plugin = Plugin {
    name: "NodeResourcesBalancedAllocation",
    filter: None,
    score: Some(Score { weight: 1, of: score, normalize: Normalize::Not }),
    wakes: |_| false,
};

/// 100 less the standard deviation of the two shares.
fn score(subject: &Subject<'_>, node: &NodeInfo) -> i64 {
    let share = |name: &str| {
        let used = (node.requested.get(name) + subject.requests.get(name)) as f64;
        let capacity = node.allocatable.get(name) as f64;
        if capacity == 0.0 { 1.0 } else { (used / capacity).min(1.0) }
    };
    let deviation = (share("cpu") - share("memory")).abs() / 2.0;
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}
