//! `/metrics` and `/metrics/probes`: the agent itself, and the claims mounted by its Pods. Pure.

use super::{
    facts::{Facts, VolumeFacts},
    text::{Exposition, Kind, Labels, Sample},
};
use crate::{
    counters::{
        Counters, ShutdownTimes,
        table::{PROBES, ROWS},
    },
    storage::Space,
};

/// A metric of a claim's file system.
type OfClaim = (&'static str, fn(&Space) -> u64, &'static str);
const CLAIMS: [OfClaim; 6] = [
    ("kubelet_volume_stats_available_bytes", |space| space.bytes_free, "Number of available bytes in the volume"),
    ("kubelet_volume_stats_capacity_bytes", |space| space.bytes, "Capacity in bytes of the volume"),
    ("kubelet_volume_stats_used_bytes", Space::bytes_used, "Number of used bytes in the volume"),
    ("kubelet_volume_stats_inodes", |space| space.inodes, "Maximum number of inodes in the volume"),
    ("kubelet_volume_stats_inodes_free", |space| space.inodes_free, "Number of free inodes in the volume"),
    ("kubelet_volume_stats_inodes_used", Space::inodes_used, "Number of used inodes in the volume"),
];

/// The exposition; `version` holds the labels of this build, `process` the already rendered process metrics.
pub fn render(facts: &Facts, counters: &Counters, version: &[(&'static str, String)], process: &str) -> String {
    let mut out = Exposition::default();
    let labels: Labels<'_> = version.iter().map(|(label, value)| (*label, value.as_str().into())).collect();
    let help = "A metric with a constant '1' value, labeled by what was built, when, and for which platform";
    out.metric("kubernetes_build_info", Kind::Gauge, help, [Sample { labels, value: 1.0, at: None }]);
    let labels = vec![("node", facts.node.name.as_str().into())];
    let help = "The node's name. The count is always 1.";
    out.metric("kubelet_node_name", Kind::Gauge, help, [Sample { labels, value: 1.0, at: None }]);
    if !facts.failed {
        let help = "Number of Pods that have a running sandbox";
        out.gauge("kubelet_running_pods", help, Some(facts.pods.len() as f64));
        let states = facts.containers.iter().map(|(state, count)| Sample {
            labels: vec![("container_state", (*state).into())],
            value: *count as f64,
            at: None,
        });
        out.metric("kubelet_running_containers", Kind::Gauge, "Number of containers, by their state", states);
    }
    let ShutdownTimes { start, end } = counters.shutdown();
    for (which, at) in [("start", start), ("end", end)] {
        let help = format!("Last graceful shutdown {which} time since unix epoch in seconds");
        out.gauge(&format!("kubelet_graceful_shutdown_{which}_time_seconds"), &help, Some(at));
    }
    for row in ROWS {
        out.counted(row, &counters.read(row));
    }
    let claims = claims(facts);
    for (name, read, help) in CLAIMS {
        let samples = claims.iter().map(|(namespace, claim, space)| {
            let labels = vec![("namespace", (*namespace).into()), ("persistentvolumeclaim", (*claim).into())];
            Sample { labels, value: read(space) as f64, at: None }
        });
        out.metric(name, Kind::Gauge, help, samples);
    }
    out.append(process);
    out.finish()
}

/// The mounted claims, each once, however many Pods use it.
fn claims(facts: &Facts) -> Vec<(&str, &str, Space)> {
    let of_pods = facts.pods.iter().filter_map(|pod| Some((pod, pod.stored.as_deref()?)));
    let mut all: Vec<(&str, &str, Space)> = of_pods
        .flat_map(|(pod, stored)| stored.volumes.iter().map(move |volume| (pod, volume)))
        .filter_map(|(pod, VolumeFacts { claim, space, .. })| Some((pod.namespace.as_str(), claim.as_deref()?, *space)))
        .collect();
    all.sort_by_key(|(namespace, claim, _)| (*namespace, *claim));
    all.dedup_by_key(|(namespace, claim, _)| (*namespace, *claim));
    all
}

/// `/metrics/probes`.
pub fn probes(counters: &Counters, process: &str) -> String {
    let mut out = Exposition::default();
    for row in PROBES {
        out.counted(row, &counters.read(row));
    }
    out.append(process);
    out.finish()
}
