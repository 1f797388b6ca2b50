//! Usage reported by a hollow node: nothing runs there, so nothing is measured. A container's usage is what the Pod's annotation
//! [`USAGE`] says, else its request; the node's is the sum.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use tokio::time::Instant;

use super::meter::{Reading, Running, Sample};
use crate::spec::{PodExt, USAGE};
use podwright_api::Quantity;

/// The counters of a hollow node, growing with time.
#[derive(Debug, Default)]
pub struct Pretence {
    last: Option<Instant>,
    /// In microseconds of CPU time.
    node: u64,
    /// The same by container ids.
    containers: HashMap<String, u64>,
}

impl Pretence {
    /// Advances the counters to a point in time. `pods`: as the server shows them.
    pub fn sample(&mut self, pods: &[Arc<Pod>], at: Instant) -> Sample {
        let passed = self.last.replace(at).map_or(0, |last| at.duration_since(last).as_micros());
        let known = std::mem::take(&mut self.containers);
        let (mut running, mut memory) = (Vec::new(), 0_u64);
        for pod in pods {
            for status in statuses(pod).filter(|status| is_running(status)) {
                let (millis, bytes) = wish(pod, &status.name);
                let grown = u64::try_from(u128::from(millis) * passed / 1000).unwrap_or(u64::MAX);
                let id = status.container_id.clone().unwrap_or_default();
                let cpu_us = known.get(&id).map_or(0, |before| before.saturating_add(grown));
                self.node = self.node.saturating_add(grown);
                memory = memory.saturating_add(bytes);
                self.containers.insert(id.clone(), cpu_us);
                running.push(Running {
                    namespace: pod.namespace().to_owned(),
                    pod: pod.name().to_owned(),
                    uid: pod.uid().to_owned(),
                    container: status.name.clone(),
                    id,
                    reading: Reading { at, cpu_us, memory: bytes },
                });
            }
        }
        Sample { node: Some(Reading { at, cpu_us: self.node, memory }), running }
    }
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let lists = status.map(|s| [&s.init_container_statuses, &s.container_statuses, &s.ephemeral_container_statuses]);
    lists.into_iter().flatten().flatten().flatten()
}

fn is_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

/// Milli-CPUs and bytes.
fn wish(pod: &Pod, container: &str) -> (u64, u64) {
    let requests = pod.part(container).and_then(|part| part.container.resources.as_ref()?.requests.clone());
    let said = |resource: &str| {
        let mut terms = pod.annotation(USAGE)?.split(',').filter_map(|term| term.trim().split_once('='));
        terms.find(|(name, _)| *name == resource)?.1.parse().ok()
    };
    let of = |resource: &str| -> Quantity {
        let requested = || requests.as_ref()?.get(resource)?.0.parse().ok();
        said(resource).or_else(requested).unwrap_or_default()
    };
    let whole = |n: i64| u64::try_from(n).unwrap_or(0);
    (whole(of("cpu").millis()), whole(of("memory").value()))
}
