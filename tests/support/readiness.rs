//! Counts ready Pods during other work.

use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::Value;

use super::TestNode;

/// Pods of a namespace with a label that are not terminating: how many are ready, and how many there are.
fn count(node: &TestNode, namespace: &str, label: &str) -> (usize, usize) {
    let pods = node.ok(&["-n", namespace, "get", "pods", "-l", label, "-o", "json"]);
    let pods: Value = serde_json::from_str(&pods).unwrap();
    let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
    let stay: Vec<&Value> = pods["items"].as_array().unwrap().iter().filter(stays).collect();
    let ready = |pod: &&&Value| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    (stay.iter().filter(ready).count(), stay.len())
}

/// Runs `work` and counts such Pods meanwhile: returns its result, the fewest ready ones, and the most there were.
pub fn meanwhile<T>(
    node: &TestNode,
    namespace: &str,
    label: &str,
    work: impl FnOnce() -> T,
) -> (T, RangeInclusive<usize>) {
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let watch = threads.spawn(|| {
            let (mut fewest, mut most) = (usize::MAX, 0);
            while !over.load(Ordering::Relaxed) {
                let (ready, all) = count(node, namespace, label);
                (fewest, most) = (fewest.min(ready), most.max(all));
            }
            fewest..=most
        });
        // A panic of the work must end the counting too, or it would go unnoticed.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        over.store(true, Ordering::Relaxed);
        let seen = watch.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), seen)
    })
}
