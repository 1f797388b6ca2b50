//! Converts counters to rates: the usage between two samples. Pure.

use std::collections::HashMap;

use jiff::Timestamp;
use tokio::time::Instant;

use podwright_api::metrics::{ContainerUsage, NodeUsage, PodUsage, Report, Usage};

/// Counters at a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub at: Instant,
    /// CPU time used so far, in microseconds; never decreases.
    pub cpu_us: u64,
    /// The working set, in bytes.
    pub memory: u64,
}

/// A running container.
#[derive(Clone, Debug)]
pub struct Running {
    pub namespace: String,
    pub pod: String,
    pub uid: String,
    pub container: String,
    /// The id of this run: a restarted container has another, and counts from zero.
    pub id: String,
    pub reading: Reading,
}

/// The usage of a node at a point in time.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// `None`: cannot be measured.
    pub node: Option<Reading>,
    /// All running containers, in any order.
    pub running: Vec<Running>,
}

/// Remembers the last sample.
#[derive(Debug, Default)]
pub struct Meter {
    node: Option<Reading>,
    /// By [`Running::id`].
    running: HashMap<String, Reading>,
}

impl Meter {
    /// The report of a sample, taken at `time`; and whether a previous point is missing for anything in it.
    ///
    /// As in metrics-server, a Pod is left out unless all its running containers have two points.
    pub fn take(&mut self, sample: Sample, time: Timestamp) -> (Report, bool) {
        let before = std::mem::replace(&mut self.node, sample.node);
        let node = sample.node.and_then(|now| used(before?, now));
        let mut waiting = sample.node.is_some() && node.is_none();
        let known = std::mem::take(&mut self.running);
        let mut pods: HashMap<String, Option<PodUsage>> = HashMap::new();
        for Running { namespace, pod, uid, container, id, reading } in sample.running {
            let measured = known.get(&id).and_then(|before| used(*before, reading));
            let empty = || PodUsage { namespace, name: pod, uid: uid.clone(), window_ms: 0, containers: Vec::new() };
            let entry = pods.entry(uid.clone()).or_insert_with(|| Some(empty()));
            match (measured, &mut *entry) {
                (Some((window_ms, usage)), Some(pod)) => {
                    pod.window_ms = pod.window_ms.max(window_ms);
                    pod.containers.push(ContainerUsage { name: container, usage });
                }
                (Some(_), None) => {}
                (None, _) => {
                    waiting = true;
                    *entry = None;
                }
            }
            self.running.insert(id, reading);
        }
        let mut pods: Vec<PodUsage> = pods.into_values().flatten().collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        pods.iter_mut().for_each(|pod| pod.containers.sort_by(|a, b| a.name.cmp(&b.name)));
        let node = node.map(|(window_ms, usage)| NodeUsage { window_ms, usage });
        (Report { time, node, pods }, waiting)
    }
}

/// The usage between two readings, and the milliseconds between them; nothing if the counter decreased or no time passed.
fn used(before: Reading, now: Reading) -> Option<(u64, Usage)> {
    let window = now.at.checked_duration_since(before.at)?.as_micros();
    let cpu_us = now.cpu_us.checked_sub(before.cpu_us)?;
    let nanocores = (u128::from(cpu_us) * 1_000_000_000).checked_div(window)?;
    let narrow = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    Some((narrow(window / 1000), Usage { nanocores: narrow(nanocores), memory: now.memory }))
}
