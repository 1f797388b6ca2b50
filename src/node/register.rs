//! The Node object: registration, conditions, and the Lease that shows the control plane that the node is alive.
//!
//! What was reported is compared with each new version of the object: a recreated Node, removed labels, or a changed status (such
//! as `Ready: Unknown` after missed heartbeats) is repaired at once.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ipnet::IpNet;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, NodeAddress, NodeCondition},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time},
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::{
    Config, KUBELET_PORT,
    admission::protections::Protections,
    conflicting_tables::{self, Found},
    host::{self, Machine},
};
use crate::told::{self, Amiss, Told, revision};
use podwright_api::{
    Env, Status, node_networks,
    persistent_volume::local,
    protections::{CONFLICTING_TABLES, DISK_USAGE, PROJECT_QUOTAS},
};
use podwright_client::{Client, Informer};

const LEASES: &str = "kube-node-lease";
pub(super) const HEARTBEAT: Duration = Duration::from_secs(10);
/// kubelet's `nodeStatusReportFrequency`.
pub(super) const REPORT: Duration = Duration::from_secs(300);
pub(super) const LEASE_SECONDS: i32 = 40;
const RETRY: Duration = Duration::from_millis(200);
/// The longest delay between two repairs of the Node.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Reports this node to the server.
pub struct Registration {
    client: Client,
    env: Env,
    config: Config,
    host: Machine,
    /// `status.runtimeHandlers[].features.userNamespaces`
    user_namespaces: bool,
    /// [`DISK_USAGE`]
    disk_usage: String,
    /// Where the node keeps volumes of the built-in provisioner, if it does.
    local_volumes: Option<PathBuf>,
    /// Whether the agent serves the node's endpoints: a hollow one does not.
    answers: bool,
    told: Mutex<Told>,
    /// Whether the node accepts Pods yet.
    ready: AtomicBool,
    signals: Signals,
}

/// Inputs of the node's conditions.
#[derive(Clone)]
pub struct Signals {
    /// Whether the disks are too full.
    pub pressure: watch::Receiver<bool>,
    /// Whether the machine is shutting down.
    pub shutting_down: watch::Receiver<bool>,
    /// Why Pods cannot be attached to the network, if they cannot.
    pub no_network: watch::Receiver<Option<String>>,
    /// Other programs' tables that drop Pods' traffic.
    pub conflicting_tables: watch::Receiver<Found>,
}

impl Registration {
    pub fn new(
        client: Client,
        env: Env,
        config: &Config,
        host: Machine,
        protections: &Protections,
        local_volumes: Option<PathBuf>,
        signals: Signals,
    ) -> Arc<Registration> {
        let user_namespaces = protections.user_namespaces.is_ok();
        let disk_usage = match &protections.project_quotas {
            Ok(()) => PROJECT_QUOTAS.to_owned(),
            Err(why) => format!("walking: {why}"),
        };
        let (config, told, ready) = (config.clone(), Mutex::default(), AtomicBool::default());
        Arc::new(Registration {
            client,
            env,
            config,
            host,
            user_namespaces,
            disk_usage,
            // A hollow node has neither.
            answers: local_volumes.is_some(),
            local_volumes,
            told,
            ready,
            signals,
        })
    }

    /// Annotations that describe how the node stores data, and where it is.
    fn annotations(&self) -> BTreeMap<String, String> {
        let folder = self.local_volumes.iter().filter_map(|folder| folder.to_str());
        let own = folder.map(|folder| (local::FOLDER.to_owned(), folder.to_owned()));
        // Also none: an earlier agent's are not to last.
        let networks = node_networks::text(&self.config.networks);
        own.chain([(DISK_USAGE.to_owned(), self.disk_usage.clone()), (node_networks::ANNOTATION.to_owned(), networks)])
            .collect()
    }

    /// Creates the Node, or updates an existing one. Retries until the server accepts it.
    pub async fn register(&self) {
        loop {
            match self.try_register().await {
                Ok(()) => return,
                Err(status) => tracing::warn!(%status, "failed to register the node"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn try_register(&self) -> Result<(), Status> {
        let name = &self.config.name;
        let labels: serde_json::Map<String, Value> = self.labels().into_iter().map(|(k, v)| (k, json!(v))).collect();
        let existing = match self.client.get::<Node>(None, name).await {
            Err(status) if status.is_not_found() => {
                let metadata = ObjectMeta {
                    name: Some(name.clone()),
                    labels: Some(self.labels().into_iter().collect()),
                    annotations: Some(self.annotations()),
                    ..ObjectMeta::default()
                };
                self.client.create(&Node { metadata, ..Node::default() }).await?
            }
            Ok(_) => {
                let patch = json!({ "metadata": { "labels": labels, "annotations": self.annotations() } });
                self.client.merge::<Node>(None, name, None, patch).await?
            }
            Err(status) => return Err(status),
        };
        self.report(&existing).await
    }

    /// Those that the node gives itself.
    pub fn labels(&self) -> Vec<(String, String)> {
        let own = [
            ("kubernetes.io/hostname", self.config.name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", host::architecture()),
            ("beta.kubernetes.io/os", "linux"),
            ("beta.kubernetes.io/arch", host::architecture()),
        ];
        let own = own.map(|(k, v)| (k.to_owned(), v.to_owned()));
        own.into_iter().chain(self.config.labels.iter().cloned()).collect()
    }

    /// The node accepts Pods from now on.
    pub async fn ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
        while let Err(status) = self.refresh().await {
            tracing::warn!(%status, "failed to update the node's status");
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn refresh(&self) -> Result<(), Status> {
        let node: Node = self.client.get(None, &self.config.name).await?;
        self.report(&node).await
    }

    async fn report(&self, old: &Node) -> Result<(), Status> {
        let ips = self.config.addresses.iter().map(|ip| ("InternalIP", ip.to_string()));
        let addresses: Vec<NodeAddress> = ips
            .chain([("Hostname", self.config.name.clone())])
            .map(|(type_, address)| NodeAddress { type_: type_.to_owned(), address })
            .collect();
        let capacity = json!(self.host.capacity(self.config.max_pods));
        let mut allocatable = json!(self.host.allocatable_resources(self.config.max_pods));
        for (name, quantity) in told::handed_on(&capacity, old) {
            allocatable[name] = quantity;
        }
        let mut status = json!({
            "capacity": capacity,
            "allocatable": allocatable,
            "addresses": addresses,
            "nodeInfo": self.host.info,
            "features": { "supplementalGroupsPolicy": true },
            "runtimeHandlers": [{ "name": "", "features": {
                "recursiveReadOnlyMounts": true, "userNamespaces": self.user_namespaces,
            } }],
            "conditions": self.conditions(old),
        });
        if self.answers {
            status["daemonEndpoints"] = json!({ "kubeletEndpoint": { "Port": KUBELET_PORT } });
        }
        // The uid keeps these conditions off another Node of the same name.
        let patch = json!({ "metadata": { "uid": old.metadata.uid }, "status": status });
        let node = self.client.merge::<Node>(None, &self.config.name, Some("status"), patch).await?;
        let mut told = self.told();
        // A slower response to an earlier report.
        if revision(&node) >= told.revision || Some(&told.uid) != node.metadata.uid.as_ref() {
            *told = Told::of(&status, &node);
        }
        Ok(())
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the newest object differs from what this agent reported.
    fn amiss(&self, node: &Node) -> Option<Amiss> {
        let labels = node.metadata.labels.as_ref();
        let missing = self.labels().iter().any(|(key, _)| labels.is_none_or(|labels| !labels.contains_key(key)));
        // Two nodes decide by it how they reach each other.
        let other = node_networks::published(node) != self.config.networks;
        self.told().amiss(node).or((missing || other).then_some(Amiss::Labels))
    }

    /// Repairs the difference. The Lease comes first: without it the node would soon be considered dead again.
    async fn repair(&self, amiss: Amiss) -> Result<(), Status> {
        if let Err(status) = self.renew().await {
            tracing::warn!(%status, "failed to renew the node's lease");
        }
        match amiss {
            Amiss::Object | Amiss::Labels => self.try_register().await,
            Amiss::Status => self.refresh().await,
        }
    }

    /// Status, reason and message of the condition `Ready`.
    fn readiness(&self) -> (&'static str, &'static str, String) {
        let not_ready = |message: String| ("False", "KubeletNotReady", message);
        let no_network = |why: &str| not_ready(format!("container runtime network not ready: {why}"));
        match (&*self.signals.no_network.borrow(), self.ready.load(Ordering::Relaxed)) {
            _ if *self.signals.shutting_down.borrow() => not_ready("node is shutting down".to_owned()),
            (Some(why), _) => no_network(&format!(
                "NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: {why}"
            )),
            (None, false) => no_network("no podCIDR assigned yet"),
            (None, true) => ("True", "KubeletReady", "kubelet is posting ready status".to_owned()),
        }
    }

    fn conditions(&self, old: &Node) -> Vec<NodeCondition> {
        let now = Time(self.env.now());
        let known: Vec<NodeCondition> = old.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        let ready = self.readiness();
        let ready = ("Ready", ready.0, ready.1, ready.2.as_str());
        let own = [
            ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            match *self.signals.pressure.borrow() {
                true => ("DiskPressure", "True", "KubeletHasDiskPressure", "kubelet has disk pressure"),
                false => ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            },
            ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            ready,
        ];
        let own = own.map(|(type_, status, reason, message)| (type_, status, reason, message.to_owned()));
        let own: Vec<_> = own.into_iter().chain(tables(self.signals.conflicting_tables.borrow().as_ref())).collect();
        let mut all: Vec<NodeCondition> =
            known.iter().filter(|c| own.iter().all(|o| o.0 != c.type_)).cloned().collect();
        all.extend(own.into_iter().map(|(type_, status, reason, message)| {
            let before = known.iter().find(|c| c.type_ == type_ && c.status == status);
            NodeCondition {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message),
                last_heartbeat_time: Some(now.clone()),
                last_transition_time: before.and_then(|c| c.last_transition_time.clone()).or(Some(now.clone())),
            }
        }));
        all
    }

    /// Renews the Lease every 10 s, reports the status every 5 min and reverts others' changes of the Node, for as long as the
    /// agent runs. `nodes` contains only this node.
    pub async fn heartbeat(self: Arc<Registration>, nodes: Informer<Node>) {
        let mut ticks = tokio::time::interval(HEARTBEAT);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut since_report = Duration::ZERO;
        let Signals { mut pressure, mut shutting_down, mut no_network, mut conflicting_tables } = self.signals.clone();
        let mut changes = nodes.subscribe();
        let mut repairs = Repairs::default();
        // The difference, and when it may be repaired.
        let mut due: Option<Instant> = None;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                // With this heartbeat, not with one of the next thirty.
                Ok(()) = pressure.changed() => since_report = REPORT,
                Ok(()) = shutting_down.changed() => since_report = REPORT,
                Ok(()) = no_network.changed() => since_report = REPORT,
                Ok(()) = conflicting_tables.changed() => since_report = REPORT,
                Some(_) = changes.recv() => {
                    while changes.try_recv().is_ok() {}
                    let amiss = nodes.list().first().and_then(|node| self.amiss(node));
                    due = amiss.map(|_| due.unwrap_or_else(|| repairs.due()));
                    continue;
                }
                () = at(due) => {
                    due = None;
                    let Some(amiss) = nodes.list().first().and_then(|node| self.amiss(node)) else { continue };
                    tracing::info!(?amiss, "the Node differs from what this agent reported");
                    repairs.begin();
                    if let Err(status) = self.repair(amiss).await {
                        tracing::warn!(%status, "failed to correct the Node");
                        due = Some(repairs.due());
                    }
                    continue;
                }
            }
            if let Err(status) = self.renew().await {
                tracing::warn!(%status, "failed to renew the node's lease");
                if status.is_not_found() {
                    self.register().await;
                }
            }
            since_report += HEARTBEAT;
            if since_report < REPORT {
                continue;
            }
            since_report = Duration::ZERO;
            match self.refresh().await {
                Err(status) if status.is_not_found() => self.register().await,
                Err(status) => {
                    tracing::warn!(%status, "failed to update the node's status");
                    since_report = REPORT;
                }
                Ok(()) => {}
            }
        }
    }

    async fn renew(&self) -> Result<(), Status> {
        let now = MicroTime(self.env.now());
        let name = &self.config.name;
        let patch = json!({ "spec": {
            "holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now,
        }});
        match self.client.merge::<Lease>(Some(LEASES), name, None, patch).await {
            Err(status) if status.is_not_found() => {}
            other => return other.map(drop),
        }
        let uid = self.told().uid.clone();
        let owner = OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: name.clone(),
            uid,
            ..OwnerReference::default()
        };
        let mut lease = Lease::default();
        lease.metadata.name = Some(name.clone());
        lease.metadata.namespace = Some(LEASES.to_owned());
        lease.metadata.owner_references = Some(vec![owner]);
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(name.clone());
        spec.lease_duration_seconds = Some(LEASE_SECONDS);
        spec.renew_time = Some(now);
        self.client.create(&lease).await.map(drop)
    }
}

/// When repairs may be made: at once, and ever less often while they are undone.
#[derive(Default)]
struct Repairs {
    last: Option<Instant>,
    pause: Duration,
}

impl Repairs {
    fn due(&self) -> Instant {
        self.last.map_or_else(Instant::now, |last| last + self.pause)
    }

    fn begin(&mut self) {
        let now = Instant::now();
        let alone = self.last.is_none_or(|last| now.duration_since(last) > 2 * LONGEST_PAUSE);
        self.pause = if alone { RETRY } else { LONGEST_PAUSE.min(2 * self.pause) };
        self.last = Some(now);
    }
}

/// A node without its own network reports nothing.
fn tables(found: Option<&Result<Vec<String>, String>>) -> Option<(&'static str, &'static str, &'static str, String)> {
    let none = || "no table of another program drops traffic of Pods".to_owned();
    found.map(|found| match found.as_deref() {
        Ok([]) => (CONFLICTING_TABLES, "False", "NoConflictingTables", none()),
        Ok(found) => (CONFLICTING_TABLES, "True", "TablesDropTraffic", conflicting_tables::list(found)),
        Err(why) => {
            let why = format!("the tables of other programs cannot be read: {why}");
            (CONFLICTING_TABLES, "Unknown", "TablesUnreadable", why)
        }
    })
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The node's Pod ranges, once the control plane has assigned them.
pub async fn pod_ranges(nodes: &Informer<Node>) -> Vec<IpNet> {
    let mut changes = nodes.subscribe();
    while let Some(delta) = changes.recv().await {
        let ranges = delta.new.as_deref().map(ranges_of).unwrap_or_default();
        if !ranges.is_empty() {
            return ranges;
        }
    }
    Vec::new()
}

/// Calls `tell` with the ranges whenever they differ from `known`: after a Node was recreated.
pub async fn follow_pod_ranges(nodes: Informer<Node>, mut known: Vec<IpNet>, tell: impl Fn(Vec<IpNet>)) {
    let mut changes = nodes.subscribe();
    while let Some(delta) = changes.recv().await {
        let ranges = delta.new.as_deref().map(ranges_of).unwrap_or_default();
        if !ranges.is_empty() && ranges != known {
            tracing::warn!(?known, now = ?ranges, "the Pod ranges of the node have changed");
            known.clone_from(&ranges);
            tell(ranges);
        }
    }
}

fn ranges_of(node: &Node) -> Vec<IpNet> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let listed = spec.pod_cidrs.iter().flatten().chain(spec.pod_cidr.iter().filter(|_| spec.pod_cidrs.is_none()));
    listed.filter_map(|range| range.parse().ok()).collect()
}
