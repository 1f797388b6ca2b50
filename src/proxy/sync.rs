//! The task: watches Services, EndpointSlices, NetworkPolicies, Pods and Nodes, and has the drivers apply what changes by them as it
//! comes.
//!
//! While one change is applied, further ones are collected and applied together. Failed ones are retried.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use podwright_client::{Key, Recorder, reference};
use podwright_net::announce::{Announced, Announcer};
use podwright_net::drivers::{Applied, Drivers};
use podwright_net::{Network, NodeNetns, dns};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::ProxyConfig;
use super::announcing::Announcing;
use super::health_checks::HealthChecks;
use super::network_state::Compiler;
use super::notices::{self, Notice};
use super::objects::{Dirty, Objects};
use super::owner::Owner;
use super::policy::{Gate, PolicySync, Questions};
use super::sources::{Events, Sources};

/// The retry delay after the kernel refused.
const RETRY: Duration = Duration::from_secs(1);
/// How often the server is asked whether it is there, while addresses are announced, and how long it may be silent.
const ASKED: Duration = Duration::from_secs(2);
const SILENT: Duration = Duration::from_secs(8);

/// The running proxy of one node. It ends when dropped; what it loaded stays.
pub struct Proxy {
    synced: watch::Receiver<bool>,
    gate: Gate,
    tasks: [AbortHandle; 3],
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Proxy {
    /// Starts to keep `network` and the DNS server in sync with the API, and Pods within their conntrack shares. `recorder` reports
    /// addresses and ports held by others. Must be called inside a tokio runtime.
    pub fn start(
        config: ProxyConfig,
        sources: Sources,
        network: Network,
        dns: Option<Arc<dns::DnsServer>>,
        recorder: Recorder,
    ) -> Proxy {
        let (synced, receiver) = watch::channel(false);
        let (gate, questions) = Gate::new();
        let announcer = Arc::new(Announcer::start(network.netns().clone(), &config.node));
        let asking = ask(announcer.clone(), sources.clone(), config.node.clone());
        let asking = tokio::spawn(asking).abort_handle();
        let shares = tokio::spawn(network.clone().keep_shares_for_ever()).abort_handle();
        let sync = Sync {
            network: network.clone(),
            announced: announcer.announced(),
            announcer,
            announcing: Announcing::default(),
            told: Announced::new(),
            node: config.node.clone(),
            policies: PolicySync::new(&sources.policies, &config, network.clone()),
            compiler: Compiler::new(config, network.addresses().to_vec()),
            sources,
            health_checks: HealthChecks::new(&network),
            drivers: Drivers::new(network, dns),
            recorder,
        };
        let sync = tokio::spawn(sync.run(synced, questions)).abort_handle();
        Proxy { synced: receiver, gate, tasks: [sync, shares, asking] }
    }

    /// Where Pods wait until their policies are in force.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Starts to serve DNS on the node's own addresses: empty at first, filled by the proxy. Other names are forwarded to the
    /// servers of `resolv_conf`, from the process's own network namespace. Fails if a socket cannot be opened.
    pub async fn dns(
        config: &ProxyConfig,
        network: &Network,
        resolv_conf: &Path,
        read: dns::Read,
    ) -> podwright_net::Result<dns::DnsServer> {
        let table = dns::Table::new(&config.domain, config.service_ranges.clone(), config.dns.clone());
        let upstream = dns::Upstream::new(NodeNetns::of_process()?, resolv_conf, read, config.dns.clone());
        dns::DnsServer::start(network.netns(), &config.dns, table, upstream).await
    }

    /// Waits until everything known at startup is loaded.
    pub async fn synced(&self) {
        // The sender lives as long as the task, which ends with us.
        let _ = self.synced.clone().wait_for(|synced| *synced).await;
    }
}

struct Sync {
    sources: Sources,
    network: Network,
    compiler: Compiler,
    policies: PolicySync,
    drivers: Drivers,
    health_checks: HealthChecks,
    recorder: Recorder,
    announcing: Announcing,
    announcer: Arc<Announcer>,
    /// What this node announces, and what has been said of it.
    announced: watch::Receiver<Announced>,
    told: Announced,
    node: String,
}

/// Tells the announcer whether the server is there, for as long as it announces something.
async fn ask(announcer: Arc<Announcer>, sources: Sources, node: String) {
    let mut last = Instant::now();
    loop {
        tokio::time::sleep(ASKED).await;
        if !announcer.is_busy() || sources.is_connected(&node, ASKED).await {
            last = Instant::now();
        }
        announcer.set_connected(last.elapsed() < SILENT);
    }
}

impl Sync {
    async fn run(mut self, synced: watch::Sender<bool>, mut questions: Questions) {
        self.sources.synced().await;
        // What an earlier agent has loaded stays until all is known that is to be there instead.
        self.policies.known(&mut questions).await;
        let mut events = Events::of(&self.sources);
        let mut dirty = Dirty::everything(&self.sources);
        loop {
            events.drain(&mut dirty);
            let (services, are_nodes) = dirty.looked_at();
            if let Some(wanted) = self.announcing.update(&self.sources, &services, are_nodes) {
                self.announcer.want(wanted);
            }
            if self.compiler.leave_host_ports(self.network.plugins_map_ports()) {
                dirty.pods.extend(self.sources.pods.list().iter().map(|pod| Key::of(&**pod)));
            }
            let (mut changes, mut notices) =
                self.compiler.update(&self.sources, std::mem::take(&mut dirty), Instant::now());
            let (nodes, pods) = (self.sources.nodes.list(), self.sources.pods.list());
            notices.extend(self.health_checks.update(&self.sources, services, &self.node).await);
            notices.extend(self.policies.update(&nodes, &pods, &mut questions, &mut changes.policies));
            self.tell(notices);
            match self.drivers.apply(changes).await {
                Ok(applied) => {
                    report(&applied, !*synced.borrow());
                    self.tell(notices::of(&applied));
                    let closed = self.policies.note_refused(applied.closed);
                    self.tell(closed);
                    self.policies.answer();
                    synced.send_if_modified(|synced| !std::mem::replace(synced, true));
                }
                Err(error) => {
                    tracing::error!(%error, "failed to load the Services and policies");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            if !self.next(&mut events, &mut dirty, &mut questions).await {
                return;
            }
        }
    }

    /// Waits until something happens, and notes it; `false`: nothing will. Meanwhile what was refused is tried again.
    async fn next(&mut self, events: &mut Events, dirty: &mut Dirty, questions: &mut Questions) -> bool {
        loop {
            tokio::select! {
                more = events.next(dirty) => return more,
                () = self.policies.next(questions) => return true,
                () = until(self.compiler.due()) => return true,
                () = self.drivers.due() => {}
                Ok(()) = self.announced.changed() => {
                    self.tell_of_announced();
                    continue;
                }
            }
            if self.drivers.try_again().await {
                return true;
            }
        }
    }

    /// Says in Services' events which addresses this node has come to announce.
    fn tell_of_announced(&mut self) {
        let now = self.announced.borrow_and_update().clone();
        let new = now.iter().filter(|(address, _)| !self.told.contains_key(address));
        for (address, links) in new.take(notices::MOST) {
            let links: Vec<&str> = links.iter().map(String::as_str).collect();
            let message = format!("announcing {address} from node {:?} on {}", self.node, links.join(", "));
            for service in self.announcing.services_of(address).filter_map(|key| self.sources.service(key)) {
                self.recorder.normal(reference(&*service), "NodeAssigned", message.clone());
            }
        }
        self.told = now;
    }

    fn tell(&self, notices: Vec<Notice>) {
        for Notice { about, reason, message } in notices {
            let about = match &about {
                Owner::Service(key) => self.sources.service(key).map(|service| reference(&*service)),
                Owner::Pod(key) => self.sources.pod(key).map(|pod| reference(&*pod)),
            };
            if let Some(about) = about {
                self.recorder.warning(about, reason, message);
            }
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn report(applied: &Applied, first: bool) {
    let tables = &applied.tables;
    match first {
        true => tracing::info!(elements = tables.added, took = ?tables.took, "Services loaded"),
        false => {
            tracing::debug!(added = tables.added, deleted = tables.deleted, took = ?tables.took, "Services changed");
        }
    }
}
