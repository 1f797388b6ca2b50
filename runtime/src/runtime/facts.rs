//! The kernel's counters of everything running, read at once, in more detail than [`Runtime::usage`].

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use super::names::SHIMS;
use super::{Runtime, Sandbox};
use crate::facts::{ContainerFacts, Group, Interface, SandboxFacts, interfaces, system};
use crate::spec::CgroupName;
use crate::{Network, Result};

impl Runtime {
    /// All ready sandboxes with their running containers.
    pub async fn facts(&self) -> Result<Vec<SandboxFacts>> {
        let sandboxes: Vec<Arc<Sandbox>> = self.sandboxes().values().cloned().collect();
        self.blocking(move |inner| {
            let mount = &inner.tree.capabilities.mount;
            let below = |path: &Path| format!("/{}", path.strip_prefix(mount).unwrap_or(path).display());
            let read = |sandbox: &Arc<Sandbox>| {
                let state = sandbox.state();
                let spec = &state.record.spec;
                let own = (spec.network == Network::New).then_some(state.pid);
                let netns = state.netns.as_ref().filter(|_| state.ready())?.try_clone().ok()?;
                let path = inner.tree.path(&spec.cgroup);
                let running = state.containers.values().filter(|container| container.is_running());
                let running: Vec<_> = running
                    .map(|container| {
                        let record = &container.record;
                        let path = inner.tree.path(&spec.cgroup.child(&record.id.key()));
                        (path, record.id.clone(), record.labels.clone(), container.status().started)
                    })
                    .collect();
                let (id, labels, created) = (sandbox.id.clone(), spec.labels.clone(), state.record.created);
                // State may change from here on: what is gone reports nothing.
                drop(state);
                let containers = running.into_iter().map(|(path, id, labels, started)| ContainerFacts {
                    id,
                    labels,
                    started,
                    cgroup: below(&path),
                    group: Group::read(&path).with_descriptors(&path),
                });
                let containers: Vec<_> = containers.collect();
                let group = Group::read(&path).with_descriptors_of(containers.iter().map(|container| &container.group));
                Some(SandboxFacts {
                    id,
                    labels,
                    created,
                    cgroup: below(&path),
                    containers,
                    interfaces: own.map(|pid| counters(pid, netns.as_fd())).unwrap_or_default(),
                    group,
                })
            };
            Ok(sandboxes.iter().filter_map(read).collect())
        })
        .await
    }

    /// The total usage of all shims, and of all Pods.
    pub async fn system(&self) -> Result<[system::SystemFacts; 2]> {
        self.blocking(move |inner| {
            let shims = inner.tree.path(&CgroupName::new(SHIMS));
            // The shims' cgroup is directly below the root.
            Ok(system::runtime(shims.parent().unwrap_or(&shims), &shims))
        })
        .await
    }
}

/// A network's counters, read through a process that is in it before and after: its pid may have been reused.
fn counters(pid: u32, netns: std::os::fd::BorrowedFd<'_>) -> Vec<Interface> {
    let is_in = || {
        let (own, wanted) = (rustix::fs::stat(format!("/proc/{pid}/ns/net")), rustix::fs::fstat(netns));
        own.ok().zip(wanted.ok()).is_some_and(|(a, b)| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    };
    let text = is_in().then(|| fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()).flatten();
    text.filter(|_| is_in()).map(|text| interfaces(&text, |_| true)).unwrap_or_default()
}
