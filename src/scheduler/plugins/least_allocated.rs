//! NodeResourcesFit's default score, LeastAllocated: the more is left, the better.

use super::super::framework::{MAX_SCORE, Normalize, Plugin, Score, Subject};
use crate::scheduler::cluster::NodeInfo;

pub const PLUGIN: Plugin = Plugin {
    name: "LeastAllocated",
    filter: None,
    score: Some(Score { weight: 1, of: score, normalize: Normalize::Not }),
    wakes: |_| false,
};

/// The share of CPU and memory that would be left, averaged.
fn score(subject: &Subject<'_>, node: &NodeInfo) -> i64 {
    let left = |name: &str| {
        let capacity = node.allocatable.get(name);
        let used = node.assumed.get(name) + subject.assumed.get(name);
        if capacity == 0 || used > capacity { 0 } else { (capacity - used) * MAX_SCORE / capacity }
    };
    (left("cpu") + left("memory")) / 2
}
