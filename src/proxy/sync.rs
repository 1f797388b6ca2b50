//! The task: watches Services, EndpointSlices, this node's Pods and Nodes, and applies what changed as it comes.
//!
//! While one change is applied, further ones gather and are applied together. What could not be applied is tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use podwright_net::{IpNet, Network, NodeNetns, dataplane, dns};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::compile::seniority;
use super::external::{OccupiedAddresses, Told, names_addresses, unserved_addresses};
use super::host_ports::wanted;
use super::loopback::Loopback;
use super::shares::{ELEMENTS, Shares, weight, weight_of_host_ports};
use super::sources::{Sources, service_of};
use super::{compile, facts, host_ports, loopback_ports, names, node_addresses, servers, unserved};
use podwright_client::{Delta, Key, Recorder, reference};

const ZONE: &str = "topology.kubernetes.io/zone";
const OF_POD: &str = "pod:";
/// Of so many ports that are another's it is told after one change, and of so many Services whose addresses are.
const MOST_TOLD: usize = 32;
/// How long to wait after the kernel refused.
const RETRY: Duration = Duration::from_secs(1);

/// What the proxy must be told.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// This node's name.
    pub node: String,
    /// `cluster.local`.
    pub domain: String,
    pub service_ranges: Vec<IpNet>,
    /// The addresses on which this node answers DNS itself.
    pub dns: Vec<IpAddr>,
    /// Where this node takes calls of the Service `kubernetes` itself; none: they go to its endpoints.
    pub api: Vec<SocketAddr>,
    /// Where this node's server is.
    pub servers: Vec<IpAddr>,
}

/// The running proxy of one node. It ends when dropped; what it loaded stays.
pub struct Proxy {
    synced: watch::Receiver<bool>,
    tasks: [AbortHandle; 2],
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Proxy {
    /// Starts to keep `network` and the DNS server in step with the API, and Pods to their shares of
    /// tracked connections. `recorder` tells whose addresses and ports are another's already. Must be called inside a tokio runtime.
    pub fn start(
        config: ProxyConfig,
        sources: Sources,
        network: Network,
        dns: Option<Arc<dns::DnsServer>>,
        recorder: Recorder,
    ) -> Proxy {
        let (synced, receiver) = watch::channel(false);
        let sync = Sync {
            place: super::NodeContext {
                node: config.node.clone(),
                zone: None,
                dns: config.dns.clone(),
                api: config.api.clone(),
            },
            config,
            sources,
            network,
            dns,
            recorder,
            loopback: BTreeMap::new(),
            shares: Shares::default(),
            told: Told::default(),
            known: dataplane::NodeFacts::default(),
            taken: OccupiedAddresses::default(),
        };
        let shares = tokio::spawn(sync.network.clone().keep_shares_for_ever()).abort_handle();
        Proxy { synced: receiver, tasks: [tokio::spawn(sync.run(synced)).abort_handle(), shares] }
    }

    /// Starts to answer DNS on the node's own addresses: empty at first, filled by the proxy. Names of elsewhere are asked of
    /// the servers of `resolv_conf`, from the process's own network namespace.
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

    /// Waits until everything that was known at the start is loaded.
    pub async fn synced(&self) {
        // The sender lives as long as the task, which ends with us.
        let _ = self.synced.clone().wait_for(|synced| *synced).await;
    }
}

struct Sync {
    config: ProxyConfig,
    place: super::NodeContext,
    sources: Sources,
    network: Network,
    dns: Option<Arc<dns::DnsServer>>,
    recorder: Recorder,
    /// The host ports on loopback, by Pod.
    loopback: BTreeMap<Key, Vec<Loopback>>,
    shares: Shares,
    told: Told,
    /// As the dataplane has them, and what is not to be had by them.
    known: dataplane::NodeFacts,
    taken: OccupiedAddresses,
}

/// What has changed and is not applied yet.
#[derive(Default)]
struct Dirty {
    services: BTreeSet<Key>,
    /// Those of them that have changed themselves, not their endpoints alone.
    written: BTreeSet<Key>,
    /// Pods whose host ports are others.
    pods: BTreeSet<Key>,
    nodes: bool,
}

impl Dirty {
    fn is_empty(&self) -> bool {
        self.services.is_empty() && self.pods.is_empty() && !self.nodes
    }
    fn service(&mut self, delta: Delta<Service>) {
        self.services.insert(delta.key.clone());
        self.written.insert(delta.key);
    }
    fn slice(&mut self, delta: &Delta<EndpointSlice>) {
        let slices = delta.old.iter().chain(&delta.new);
        self.services.extend(slices.filter_map(|slice| service_of(slice)));
    }
    fn pod(&mut self, delta: Delta<Pod>) {
        // Those that cannot be served too: that is told.
        let ports = |pod: &Option<Arc<Pod>>| pod.iter().flat_map(|pod| wanted(pod)).collect::<Vec<_>>();
        if ports(&delta.old) != ports(&delta.new) {
            self.pods.insert(delta.key);
        }
    }
}

impl Sync {
    async fn run(mut self, synced: watch::Sender<bool>) {
        self.sources.synced().await;
        let mut services = self.sources.services.subscribe();
        let mut slices = self.sources.endpoint_slices.subscribe();
        let mut nodes = self.sources.nodes.subscribe();
        let mut pods = self.sources.pods.subscribe();
        let mut loaded = false;
        let mut dirty = Dirty::default();
        loop {
            while let Ok(delta) = services.try_recv() {
                dirty.service(delta);
            }
            while let Ok(delta) = slices.try_recv() {
                dirty.slice(&delta);
            }
            while let Ok(delta) = pods.try_recv() {
                dirty.pod(delta);
            }
            dirty.nodes |= drained(&mut nodes);
            if self.moved() {
                dirty.services.extend(self.sources.services.list().iter().map(|service| Key::of(&**service)));
            }
            let applied = match loaded {
                false => self.load().await,
                true => self.apply(&mut dirty).await,
            };
            match applied {
                Ok(()) => {
                    let pods = match loaded {
                        true => std::mem::take(&mut dirty.pods),
                        false => self.sources.pods.list().iter().map(|pod| Key::of(&**pod)).collect(),
                    };
                    self.follow_loopback(&pods).await;
                    dirty = Dirty::default();
                    if !std::mem::replace(&mut loaded, true) {
                        synced.send_replace(true);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "failed to load the Services");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            tokio::select! {
                Some(delta) = services.recv() => dirty.service(delta),
                Some(delta) = slices.recv() => dirty.slice(&delta),
                Some(delta) = pods.recv() => dirty.pod(delta),
                Some(_) = nodes.recv() => dirty.nodes = true,
                else => return,
            }
        }
    }

    /// Everything, once: replaces whatever a predecessor has left.
    async fn load(&mut self) -> podwright_net::Result<()> {
        let mut all = BTreeMap::new();
        self.weigh(&mut Dirty {
            services: self.sources.services.list().iter().map(|service| Key::of(&**service)).collect(),
            pods: self.sources.pods.list().iter().map(|pod| Key::of(&**pod)).collect(),
            ..Dirty::default()
        });
        let reverse = [self.facts().all_pods(), self.config.service_ranges.clone()].concat();
        let mut table = dns::Table::new(&self.config.domain, reverse, self.config.dns.clone());
        for service in self.sources.services.list() {
            let key = Key::of(&*service);
            let (compiled, names) = self.compiled(&key);
            all.extend(compiled.map(|compiled| (key.to_string(), compiled)));
            table.set(&key.to_string(), names);
        }
        for pod in self.sources.pods.list() {
            let key = Key::of(&*pod);
            all.extend(self.compiled_host_ports(&key).map(|compiled| (host_ports_of(&key), compiled)));
        }
        self.learn(self.facts());
        let loaded = self.network.load_services(self.known.clone(), all).await;
        if let Some(dns) = &self.dns {
            dns.replace(table);
        }
        let change = loaded?;
        self.tell_losers(&change.lost);
        self.told.look_at(self.sources.services.list().iter().map(|service| Key::of(&**service)));
        self.tell_unserved();
        tracing::info!(elements = change.added, took = ?change.took, "Services loaded");
        Ok(())
    }

    async fn apply(&mut self, dirty: &mut Dirty) -> podwright_net::Result<()> {
        if dirty.is_empty() {
            return Ok(());
        }
        self.weigh(dirty);
        if dirty.nodes || dirty.services.contains(&api()) {
            self.learn(self.facts());
            self.network.set_facts(self.known.clone()).await?;
        }
        let mut services = Vec::new();
        let mut owners = Vec::new();
        for key in &dirty.services {
            let (service, names) = self.compiled(key);
            services.push((key.to_string(), service));
            owners.push((key.to_string(), names));
        }
        for key in &dirty.pods {
            services.push((host_ports_of(key), self.compiled_host_ports(key)));
        }
        // A name is told after its address works.
        let applied = self.network.apply_services(services).await;
        if let Some(dns) = &self.dns {
            dns.set(owners);
        }
        let change = applied?;
        self.tell_losers(&change.lost);
        self.told.look_at(dirty.written.iter().cloned());
        self.tell_unserved();
        tracing::debug!(added = change.added, deleted = change.deleted, took = ?change.took, "Services changed");
        Ok(())
    }

    /// Listens on what these Pods want of the node's loopback, and on nothing else of theirs; and tells them what of their host
    /// ports is not served.
    async fn follow_loopback(&mut self, pods: &BTreeSet<Key>) {
        // What goes goes first, and wholly: its port may be what comes wants.
        let mut changed = Vec::new();
        for key in pods {
            let pod = self.sources.pods.get(key);
            let wanted = pod.as_ref().map(|pod| loopback_ports(pod)).unwrap_or_default();
            let known = self.loopback.remove(key).unwrap_or_default();
            let (kept, gone): (Vec<_>, Vec<_>) = known.into_iter().partition(|port| wanted.contains(&port.carries()));
            for port in gone {
                port.end().await;
            }
            changed.push((key, pod, wanted, kept));
        }
        for (key, pod, wanted, mut kept) in changed {
            let mut told = Vec::new();
            for carriage in wanted {
                if kept.iter().any(|port| port.carries() == carriage) {
                    continue;
                }
                let (at, protocol) = (carriage.at, carriage.protocol.name());
                match Loopback::start(&self.network, carriage).await {
                    Ok(port) => kept.push(port),
                    Err(why) => told.push(format!("host port {at}/{protocol} is not served: {why}")),
                }
            }
            if let Some(pod) = &pod {
                let facts = self.facts();
                told.extend(unserved(pod, &facts, &self.own_addresses(), &self.config.dns));
                for message in told {
                    self.recorder.warning(reference(&**pod), "HostPortNotServed", message);
                }
            }
            if !kept.is_empty() {
                self.loopback.insert(key.clone(), kept);
            }
        }
    }

    /// The node's own addresses: those that it has, and those that its Node says it has.
    fn own_addresses(&self) -> Vec<IpAddr> {
        let node = self.sources.nodes.get(&Key::new("", &self.config.node));
        let told = node.iter().flat_map(|node| node_addresses(node));
        self.network.addresses().iter().copied().chain(told).collect()
    }

    /// Whoever names what another had first hears that he does not have it. (Not who has: it may be of another's namespace.)
    fn tell_losers(&self, lost: &[dataplane::Lost]) {
        if lost.is_empty() {
            return;
        }
        let services = self.sources.services.list();
        let pods = self.sources.pods.list();
        let named = |key: &str| match key.strip_prefix(OF_POD) {
            Some(pod) => pods.iter().find(|it| Key::of(&***it).to_string() == pod).map(|it| reference(&**it)),
            None => services.iter().find(|it| Key::of(&***it).to_string() == key).map(|it| reference(&**it)),
        };
        for dataplane::Lost { key, protocol, address, port } in lost.iter().take(MOST_TOLD) {
            let Some(about) = named(key) else { continue };
            let protocol = protocol.name().to_uppercase();
            let at = address.map_or_else(|| "this node".to_owned(), |address| address.to_string());
            let message = format!("{protocol} port {port} of {at} leads to another Service or Pod, which is older");
            self.recorder.warning(about, "PortAlreadyAllocated", message);
        }
    }

    /// Facts that are others let other addresses be had.
    fn learn(&mut self, facts: dataplane::NodeFacts) {
        if facts == self.known {
            return;
        }
        self.taken = OccupiedAddresses::of(&facts);
        self.known = facts;
        let services = self.sources.services.list();
        self.told
            .look_at(services.iter().filter(|service| names_addresses(service)).map(|service| Key::of(&**service)));
    }

    /// Whoever names an address that leads to nobody's Service on this node hears it.
    fn tell_unserved(&mut self) {
        let services = &self.sources.services;
        let unserved = |key: &Key| {
            let service = services.get(key);
            service.map(|service| unserved_addresses(&service, &self.taken, &self.config.dns)).unwrap_or_default()
        };
        for (key, unserved) in self.told.next(MOST_TOLD, unserved) {
            let Some(service) = services.get(&key) else { continue };
            for (reason, message) in unserved {
                self.recorder.warning(reference(&*service), reason, message);
            }
        }
    }

    /// Weighs what has changed, tells who finds no room any more, and adds who of its namespace comes in or goes out by it.
    fn weigh(&mut self, dirty: &mut Dirty) {
        for key in &dirty.services {
            let weigh =
                |service: Arc<Service>| (seniority(&service.metadata), weight(&service, &self.sources.slices(key)));
            self.shares.note(&key.namespace, &key.to_string(), self.sources.services.get(key).map(weigh));
        }
        for key in &dirty.pods {
            let weigh = |pod: Arc<Pod>| (seniority(&pod.metadata), weight_of_host_ports(&pod));
            self.shares.note(&key.namespace, &host_ports_of(key), self.sources.pods.get(key).map(weigh));
        }
        let mut told = 0;
        for moved in self.shares.settle() {
            let (name, pods) = (moved.strip_prefix(OF_POD).unwrap_or(&moved), moved.starts_with(OF_POD));
            let Some((namespace, name)) = name.split_once('/') else { continue };
            let key = Key::new(namespace, name);
            if !self.shares.has_room(namespace, &moved) && told < MOST_TOLD {
                told += 1;
                self.tell_of_no_room(&key, pods);
            }
            if pods {
                dirty.pods.insert(key)
            } else {
                dirty.services.insert(key)
            };
        }
    }

    fn tell_of_no_room(&self, key: &Key, pod: bool) {
        let about = match pod {
            true => self.sources.pods.get(key).map(|pod| reference(&*pod)),
            false => self.sources.services.get(key).map(|service| reference(&*service)),
        };
        let Some(about) = about else { return };
        let message = format!(
            "not served on node {}: with what is older in namespace {} it takes more than {ELEMENTS} entries of the node's \
             tables (ports times endpoints)",
            self.config.node, key.namespace
        );
        self.recorder.warning(about, "TooManyEndpoints", message);
    }

    /// What a Service is on this node, as far as its namespace has room for it. Its own address keeps its name, and is refused.
    fn compiled(&self, key: &Key) -> (Option<dataplane::Service>, dns::Names) {
        let Some(service) = self.sources.services.get(key) else { return (None, dns::Names::new()) };
        let served = self.shares.has_room(&key.namespace, &key.to_string());
        let slices = if served { self.sources.slices(key) } else { Vec::new() };
        let names = names(&service, &slices, &self.config.domain);
        (served.then(|| compile(&service, &slices, &self.place)).flatten(), names)
    }

    fn compiled_host_ports(&self, key: &Key) -> Option<dataplane::Service> {
        let pod = self.sources.pods.get(key)?;
        let served = self.shares.has_room(&key.namespace, &host_ports_of(key));
        served.then(|| host_ports(&pod, &self.config.dns)).flatten()
    }

    /// Whether this node is in another zone than it was: other endpoints may be meant for it.
    fn moved(&mut self) -> bool {
        let node = self.sources.nodes.get(&Key::new("", &self.config.node));
        let zone = node.and_then(|node| node.metadata.labels.as_ref()?.get(ZONE).cloned());
        std::mem::replace(&mut self.place.zone, zone) != self.place.zone
    }

    fn facts(&self) -> dataplane::NodeFacts {
        let nodes = self.sources.nodes.list();
        let config = &self.config;
        let own = self.network.addresses();
        let mut facts = facts(&nodes, &config.node, own, &config.service_ranges, &config.dns);
        facts.servers = servers(&self.sources.slices(&api()), &self.config.servers);
        facts
    }
}

/// The Service whose endpoints are the API servers.
fn api() -> Key {
    Key::new("default", "kubernetes")
}

/// Takes everything that waits; whether there was something.
fn drained<T>(receiver: &mut mpsc::UnboundedReceiver<T>) -> bool {
    let mut some = false;
    while receiver.try_recv().is_ok() {
        some = true;
    }
    some
}

/// What the dataplane knows a Pod's host ports by; no Service has such a name.
fn host_ports_of(pod: &Key) -> String {
    format!("{OF_POD}{pod}")
}
