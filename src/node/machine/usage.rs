//! Resource usage of the machine and its containers, as the runtime measures it.

use podwright_runtime::Labels;

use super::{Machine, labels};
use crate::usage::meter::{Reading, Running, Sample};

/// Reads all counters. Unreadable ones are left out.
pub async fn sample(machine: &Machine) -> Sample {
    let measured = match machine.runtime.usage().await {
        Ok(measured) => measured,
        Err(error) => {
            tracing::warn!(%error, "failed to measure the resource usage of containers");
            return Sample::default();
        }
    };
    let running = measured.containers.into_iter().map(|container| {
        let label = |name: &str| text(&container.labels, name);
        Running {
            namespace: label(labels::NAMESPACE),
            pod: label(labels::NAME),
            uid: label(labels::UID),
            container: label(labels::CONTAINER),
            id: container.id.to_string(),
            reading: reading(container.usage),
        }
    });
    Sample { node: measured.machine.map(reading), running: running.collect() }
}

fn text(labels: &Labels, name: &str) -> String {
    labels.get(name).cloned().unwrap_or_default()
}

fn reading(usage: podwright_runtime::Usage) -> Reading {
    Reading { at: usage.at.into(), cpu_us: usage.cpu_us, memory: usage.memory }
}
