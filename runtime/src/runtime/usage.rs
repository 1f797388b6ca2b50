//! Usage of everything running, read at once.

use std::sync::Arc;
use std::time::Instant;

use super::{Runtime, Sandbox};
use crate::spec::{Measured, RunningUsage, Usage};
use crate::{Result, cgroup, usage};

impl Runtime {
    /// The counters of the machine and of every running container, each with the time of reading. A container whose CPU time cannot
    /// be read is left out: it is about to exit.
    pub async fn usage(&self) -> Result<Measured> {
        let sandboxes: Vec<Arc<Sandbox>> = self.sandboxes().values().cloned().collect();
        self.blocking(move |inner| {
            let mut running = Vec::new();
            for sandbox in sandboxes {
                let state = sandbox.state();
                let cgroup = &state.record.spec.cgroup;
                for container in state.containers.values().filter(|container| container.is_running()) {
                    let (id, labels) = (container.record.id.clone(), container.record.labels.clone());
                    running.push((inner.tree.path(&cgroup.child(&id.key())), id, labels));
                }
            }
            let measured = running.into_iter().filter_map(|(cgroup, id, labels)| {
                let at = Instant::now();
                let stats = cgroup::stats(&cgroup);
                let usage = Usage { at, cpu_us: stats.cpu_usage_us?, memory: stats.memory_working_set.unwrap_or(0) };
                Some(RunningUsage { id, labels, usage })
            });
            Ok(Measured { containers: measured.collect(), machine: usage::machine() })
        })
        .await
    }
}
