//! Collects [`Facts`] from the machine on demand, at most once per [`FRESH`].

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::NodeSystemInfo;
use podwright_runtime::{
    ContainerState, Labels,
    facts::{Interface, MachineFacts, SandboxFacts, interfaces, system},
};
use tokio::{
    sync::{Mutex, Semaphore},
    time::Instant,
};

use super::{
    disk::{Disk, Turn},
    facts::{ContainerFacts, Facts, NodeFacts, PodFacts, Stored},
};
use crate::{
    labels,
    machine::{Machine, file_systems},
    residents::Residents,
    translate::split_sandbox_id,
    usage::Used,
};
use podwright_api::metrics::Report;

/// How long a snapshot is reused.
const FRESH: Duration = Duration::from_secs(2);

pub struct Gatherer {
    pub machine: Arc<Machine>,
    pub residents: Arc<Residents>,
    pub used: Arc<Used>,
    pub node: String,
    pub info: NodeSystemInfo,
    kept: Mutex<Option<(Instant, Arc<Facts>)>>,
    disk: Arc<Disk>,
    measuring: Turn,
}

impl Gatherer {
    pub fn new(
        machine: Arc<Machine>,
        residents: Arc<Residents>,
        used: Arc<Used>,
        node: String,
        info: NodeSystemInfo,
    ) -> Gatherer {
        let (kept, disk, measuring) = (Mutex::default(), Arc::default(), Arc::new(Semaphore::new(1)));
        Gatherer { machine, residents, used, node, info, kept, disk, measuring }
    }

    /// The node's state, at most [`FRESH`] old. Concurrent callers share one snapshot.
    pub async fn facts(&self) -> Arc<Facts> {
        let mut kept = self.kept.lock().await;
        if let Some((_, facts)) = kept.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return facts.clone();
        }
        let facts = Arc::new(self.read().await);
        *kept = Some((Instant::now(), facts.clone()));
        facts
    }

    async fn read(&self) -> Facts {
        let machine = &self.machine;
        let (report, found) = (self.used.read(), machine.runtime.facts().await);
        let failed = found.is_err();
        if let Err(error) = &found {
            tracing::warn!(%error, "failed to gather the resource usage of containers");
        }
        let stored = self.disk.of(machine, &self.measuring, &self.residents.all()).await;
        let of_machine = tokio::task::spawn_blocking(MachineFacts::read).await.unwrap_or_default();
        let mut system = vec![system::agent(of_machine.booted)];
        // What cannot be read is left out.
        system.extend(machine.runtime.system().await.into_iter().flatten());
        let node = NodeFacts {
            name: self.node.clone(),
            system,
            machine: of_machine,
            boot_id: self.info.boot_id.clone(),
            machine_id: self.info.machine_id.clone(),
            system_uuid: self.info.system_uuid.clone(),
            interfaces: self.interfaces().await,
            disks: file_systems::disks(machine),
            nanocores: report.as_ref().and_then(|report| Some(report.node.as_ref()?.usage.nanocores)),
        };
        let pods = newest(found.unwrap_or_default());
        Facts {
            at: machine.env.now(),
            node,
            pods: pods.into_iter().map(|sandbox| of_sandbox(sandbox, report.as_ref(), &stored)).collect(),
            containers: self.containers().await,
            failed,
        }
    }

    async fn containers(&self) -> BTreeMap<&'static str, usize> {
        let mut states = BTreeMap::new();
        for container in self.machine.runtime.list().await.iter().flat_map(|sandbox| &sandbox.containers) {
            let state = match container.state {
                ContainerState::Created => "created",
                ContainerState::Running => "running",
                ContainerState::Exited => "exited",
            };
            *states.entry(state).or_default() += 1;
        }
        states
    }

    /// Interfaces of the node's network, without the Pods' ends.
    async fn interfaces(&self) -> Vec<Interface> {
        let read = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        let text = self.machine.network.netns().run(read).await.unwrap_or_default();
        interfaces(&text, |name| !podwright_net::links::is_pod_link(name))
    }
}

fn label<'l>(labels: &'l Labels, name: &str) -> &'l str {
    labels.get(name).map(String::as_str).unwrap_or_default()
}

/// The newest sandbox for each namespace and name. An earlier Pod of the same name may still be terminating.
fn newest(mut all: Vec<SandboxFacts>) -> Vec<SandboxFacts> {
    let key = |sandbox: &SandboxFacts| {
        let of = |name: &str| label(&sandbox.labels, name).to_owned();
        (of(labels::NAMESPACE), of(labels::NAME))
    };
    all.sort_by_cached_key(|sandbox| (key(sandbox), Reverse(sandbox.created)));
    all.dedup_by_key(|sandbox| key(sandbox));
    all
}

fn of_sandbox(sandbox: SandboxFacts, report: Option<&Report>, stored: &HashMap<String, Arc<Stored>>) -> PodFacts {
    let uid = split_sandbox_id(&sandbox.id).0;
    let reported = report.and_then(|report| report.pods.iter().find(|pod| pod.uid == uid));
    let containers = sandbox.containers.into_iter().map(|container| {
        let name = label(&container.labels, labels::CONTAINER).to_owned();
        let used = reported.and_then(|pod| pod.containers.iter().find(|used| used.name == name));
        ContainerFacts {
            id: container.id.to_string(),
            image: label(&container.labels, labels::IMAGE).to_owned(),
            cgroup: container.cgroup,
            started: container.started,
            group: container.group,
            nanocores: used.map(|used| used.usage.nanocores),
            name,
        }
    });
    PodFacts {
        namespace: label(&sandbox.labels, labels::NAMESPACE).to_owned(),
        name: label(&sandbox.labels, labels::NAME).to_owned(),
        stored: stored.get(&uid).cloned(),
        uid,
        cgroup: sandbox.cgroup,
        started: sandbox.created,
        group: sandbox.group,
        interfaces: sandbox.interfaces,
        containers: containers.collect(),
    }
}
