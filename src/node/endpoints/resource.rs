//! `/metrics/resource`: CPU and memory of the node, its Pods and containers, as metrics-server reads them. Pure.

use jiff::Timestamp;
use podwright_runtime::facts::{Group, UNLIMITED};

use super::{
    facts::Facts,
    text::{Exposition, Kind, Labels, Sample},
};

/// A metric of nodes, Pods and containers: the name after `node_`, `pod_` or `container_`, and how it is read.
struct Row {
    name: &'static str,
    kind: Kind,
    read: fn(&Group) -> Option<f64>,
    help: &'static str,
}

const CPU: Row = Row {
    name: "cpu_usage_seconds_total",
    kind: Kind::Counter,
    read: |group| group.cpu_us.map(|micros| micros as f64 / 1e6),
    help: "Cumulative cpu time consumed in core-seconds",
};
const MEMORY: Row = Row {
    name: "memory_working_set_bytes",
    kind: Kind::Gauge,
    read: |group| group.working_set.map(|bytes| bytes as f64),
    help: "Current working set in bytes",
};
const SWAP: Row = Row {
    name: "swap_usage_bytes",
    kind: Kind::Gauge,
    read: |group| group.swap.map(|bytes| bytes as f64),
    help: "Current swap usage in bytes",
};
const SWAP_LIMIT: Row = Row {
    name: "swap_limit_bytes",
    kind: Kind::Gauge,
    read: |group| group.swap_max.filter(|most| *most != UNLIMITED).map(|bytes| bytes as f64),
    help: "Current limit of swap in bytes",
};

/// Something that consumes the node's resources.
struct Thing<'a> {
    labels: Labels<'a>,
    group: &'a Group,
    started: Option<Timestamp>,
}

pub fn render(facts: &Facts) -> String {
    let mut out = Exposition::default();
    let node = Thing { labels: Vec::new(), group: &facts.node.machine.group, started: None };
    let mut pods = Vec::new();
    let mut containers = Vec::new();
    for pod in &facts.pods {
        let of_pod: Labels<'_> = vec![("pod", pod.name.as_str().into()), ("namespace", pod.namespace.as_str().into())];
        containers.extend(pod.containers.iter().map(|container| {
            let labels = [vec![("container", container.name.as_str().into())], of_pod.clone()].concat();
            Thing { labels, group: &container.group, started: container.started }
        }));
        pods.push(Thing { labels: of_pod, group: &pod.group, started: None });
    }
    for row in [CPU, MEMORY, SWAP, SWAP_LIMIT] {
        tell(&mut out, "container", &row, &containers);
    }
    let started = containers.iter().filter_map(|container| {
        let value = container.started?.as_millisecond() as f64 / 1e3;
        Some(Sample { labels: container.labels.clone(), value, at: None })
    });
    let help = "Start time of the container since unix epoch in seconds";
    out.metric("container_start_time_seconds", Kind::Gauge, help, started);
    for (of, things) in [("pod", &pods), ("node", &vec![node])] {
        for row in [CPU, MEMORY, SWAP] {
            tell(&mut out, of, &row, things);
        }
    }
    let failed = f64::from(facts.failed || out.is_cut());
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    // The first is its name before 1.29.
    out.gauge("scrape_error", help, Some(failed));
    out.gauge("resource_scrape_error", help, Some(failed));
    out.finish()
}

fn tell(out: &mut Exposition, of: &str, row: &Row, things: &[Thing<'_>]) {
    let samples = things.iter().filter_map(|thing| {
        let value = (row.read)(thing.group)?;
        Some(Sample { labels: thing.labels.clone(), value, at: Some(thing.group.at) })
    });
    out.metric(&format!("{of}_{}", row.name), row.kind, row.help, samples);
}
