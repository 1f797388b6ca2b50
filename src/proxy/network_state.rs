//! The desired state of a node's network, compiled from objects: pure, and one owner at a time.
//!
//! A change of one Service only compiles that one. Unchanged results reach no driver.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};
use podwright_client::Key;
use podwright_net::state::{Changes, NetworkState, Wanted, Zone};
use tokio::time::Instant;

use super::compile::seniority;
use super::external::{OccupiedAddresses, Told, names_addresses, unserved_addresses};
use super::notices::{MOST, Notice};
use super::objects::{Dirty, Objects};
use super::owner::Owner;
use super::pace::Reports;
use super::shares::{Shares, weight, weight_of_host_ports};
use super::{
    NodeContext, ProxyConfig, compile, facts, host_ports, loopback_ports, names, node_addresses, servers, unserved,
};

const ZONE: &str = "topology.kubernetes.io/zone";

/// The state of one node's network, and its other inputs.
pub struct Compiler {
    config: ProxyConfig,
    /// The node's own addresses, besides those in its Node.
    addresses: Vec<IpAddr>,
    context: NodeContext,
    shares: Shares,
    told: Told,
    occupied: OccupiedAddresses,
    /// Something else maps host ports to Pods.
    leaves_host_ports: bool,
    state: NetworkState,
    reports: Reports,
    /// When what other nodes report may count otherwise than now.
    due: Option<Instant>,
}

impl Compiler {
    pub fn new(config: ProxyConfig, addresses: Vec<IpAddr>) -> Compiler {
        let (node, dns, api) = (config.node.clone(), config.dns.clone(), config.api.clone());
        Compiler {
            context: NodeContext { node, zone: None, dns, api, own: addresses.clone() },
            config,
            addresses,
            shares: Shares::default(),
            told: Told::default(),
            occupied: OccupiedAddresses::default(),
            leaves_host_ports: false,
            state: NetworkState::default(),
            reports: Reports::default(),
            due: None,
        }
    }

    /// Whether host ports are left to something else from now on; `true`: all Pods are to be looked at for that.
    pub fn leave_host_ports(&mut self, leaves: bool) -> bool {
        std::mem::replace(&mut self.leaves_host_ports, leaves) != leaves
    }

    /// When there is something to compile though nothing changes.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Compiles what has changed; returns the network's changes and the notices to send.
    pub fn update(&mut self, objects: &impl Objects, mut dirty: Dirty, now: Instant) -> (Changes, Vec<Notice>) {
        let mut changes = Changes::default();
        dirty.nodes |= self.due.is_some_and(|due| due <= now);
        // 1. The node: in another zone, other endpoints may be meant for it, and its addresses may be those of Services.
        if dirty.nodes && self.moved(objects) {
            dirty.services.extend(objects.services().iter().map(|service| Key::of(&**service)));
        }
        // 2. Its peers.
        if dirty.nodes || dirty.services.contains(&api()) {
            self.learn(objects, &mut changes, now);
        }
        // 3. Which owners have room.
        let mut notices = self.weigh(objects, &mut dirty);
        // 4. What each owner requests.
        for key in dirty.services {
            let wanted = self.wanted_by_service(objects, &key);
            self.state.set(&Owner::Service(key).to_string(), wanted, &mut changes);
        }
        for key in dirty.pods {
            let Some(pod) = objects.pod(&key).filter(|_| !self.leaves_host_ports) else {
                self.state.set(&Owner::Pod(key).to_string(), Wanted::default(), &mut changes);
                continue;
            };
            let unserved = unserved(&pod, self.state.facts(), &self.own_addresses(objects), &self.config.dns);
            let owner = Owner::Pod(key);
            notices.extend(unserved.into_iter().map(|message| Notice::host_port(owner.clone(), message)));
            self.state.set(&owner.to_string(), self.wanted_by_pod(&owner, &pod), &mut changes);
        }
        // 5. Addresses that lead to no Service on this node.
        self.told.look_at(dirty.written);
        notices.extend(self.unserved(objects));
        (changes, notices)
    }

    fn moved(&mut self, objects: &impl Objects) -> bool {
        let node = objects.node(&self.config.node);
        let zone = node.and_then(|node| node.metadata.labels.as_ref()?.get(ZONE).cloned());
        let own = self.own_addresses(objects);
        let moved = zone != self.context.zone || own != self.context.own;
        (self.context.zone, self.context.own) = (zone, own);
        moved
    }

    /// Changed facts may permit other addresses.
    fn learn(&mut self, objects: &impl Objects, changes: &mut Changes, now: Instant) {
        let config = &self.config;
        let (nodes, due) = self.reports.counting(objects.nodes(), &config.node, now);
        self.due = due;
        let mut facts = facts(&nodes, &config.node, &self.addresses, &config.service_ranges, &config.dns);
        facts.servers = servers(&objects.slices(&api()), &config.servers);
        let reverse = [facts.all_pods(), config.service_ranges.clone()].concat();
        let zone = Zone { domain: config.domain.clone(), reverse, servers: config.dns.clone() };
        self.state.set_zone(zone, changes);
        if facts == *self.state.facts() {
            return;
        }
        self.occupied = OccupiedAddresses::of(&facts);
        let services = objects.services();
        let named = services.iter().filter(|service| names_addresses(service));
        self.told.look_at(named.map(|service| Key::of(&**service)));
        self.state.set_facts(facts, changes);
    }

    /// Updates weights, adds owners of the namespace that get or lose room as a result, and returns notices for those without room.
    fn weigh(&mut self, objects: &impl Objects, dirty: &mut Dirty) -> Vec<Notice> {
        for key in &dirty.services {
            let weigh = |service: Arc<Service>| (seniority(&service.metadata), weight(&service, &objects.slices(key)));
            let owner = Owner::Service(key.clone()).to_string();
            self.shares.note(&key.namespace, &owner, objects.service(key).map(weigh));
        }
        for key in &dirty.pods {
            let weigh = |pod: Arc<Pod>| (seniority(&pod.metadata), weight_of_host_ports(&pod));
            let owner = Owner::Pod(key.clone()).to_string();
            self.shares.note(&key.namespace, &owner, objects.pod(key).map(weigh));
        }
        let mut notices = Vec::new();
        for moved in self.shares.settle().iter().filter_map(|key| Owner::of(key)) {
            if !self.has_room(&moved) && notices.len() < MOST {
                notices.push(Notice::no_room(moved.clone(), &self.config.node));
            }
            match moved {
                Owner::Service(key) => dirty.services.insert(key),
                Owner::Pod(key) => dirty.pods.insert(key),
            };
        }
        notices
    }

    fn has_room(&self, owner: &Owner) -> bool {
        self.shares.has_room(owner.namespace(), &owner.to_string())
    }

    /// A Service's configuration on this node, if its namespace has room for it. Otherwise its ClusterIP keeps its name, and is
    /// refused.
    fn wanted_by_service(&self, objects: &impl Objects, key: &Key) -> Wanted {
        let Some(service) = objects.service(key) else { return Wanted::default() };
        let served = self.has_room(&Owner::Service(key.clone()));
        let slices = if served { objects.slices(key) } else { Vec::new() };
        let names = names(&service, &slices, &self.config.domain).into();
        let service = served.then(|| compile(&service, &slices, &self.context)).flatten();
        Wanted { service: service.map(Arc::new), names, ..Wanted::default() }
    }

    fn wanted_by_pod(&self, owner: &Owner, pod: &Pod) -> Wanted {
        let service = self.has_room(owner).then(|| host_ports(pod, &self.config.dns)).flatten();
        Wanted { service: service.map(Arc::new), forwards: loopback_ports(pod), ..Wanted::default() }
    }

    /// The node's own addresses: its actual ones, and those in its Node.
    fn own_addresses(&self, objects: &impl Objects) -> Vec<IpAddr> {
        let node = objects.node(&self.config.node);
        let told = node.iter().flat_map(|node| node_addresses(node));
        self.addresses.iter().copied().chain(told).collect()
    }

    fn unserved(&mut self, objects: &impl Objects) -> Vec<Notice> {
        let unserved = |key: &Key| {
            let service = objects.service(key);
            service.map(|service| unserved_addresses(&service, &self.occupied, &self.config.dns)).unwrap_or_default()
        };
        let told = self.told.next(MOST, unserved).into_iter();
        let notice = |(key, unserved): (Key, Vec<(&'static str, String)>)| {
            let about = Owner::Service(key);
            unserved.into_iter().map(move |(reason, message)| Notice::new(about.clone(), reason, message))
        };
        told.flat_map(notice).collect()
    }
}

/// The Service whose endpoints are the API servers.
fn api() -> Key {
    Key::new("default", "kubernetes")
}
