//! Which nodes may announce which load balancer addresses: from Services, their endpoints and Nodes. Pure.
//!
//! Announced are the addresses that the controller has given out of the pool, which it says in the Service's condition: not those of
//! others' load balancers, which have their own ways, nor nodes' own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use podwright_api::load_balancer::{CONDITION, EXCLUDED, FROM_NODES};
use podwright_client::Key;
use podwright_net::dataplane::ids::fnv;
use podwright_net::{IpNet, announce::Wanted};

use super::compile::balancer_addresses;
use super::endpoints::{is_ready, is_usable};
use super::facts::{node_addresses, pod_ranges};
use super::objects::Objects;

/// The addresses of one Service, and the nodes that have its endpoints; `None`: any node leads to them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Announced {
    addresses: Vec<IpAddr>,
    behind: Option<BTreeSet<String>>,
}

/// What is to be announced in the cluster.
#[derive(Default)]
pub struct Announcing {
    services: BTreeMap<Key, Announced>,
    nodes: Arc<BTreeSet<String>>,
    /// Nodes' own addresses: their links have these, and nobody else answers for them.
    occupied: BTreeSet<IpAddr>,
    /// Nodes' Pod ranges.
    pods: Vec<IpNet>,
    cluster: u64,
}

impl Announcing {
    /// Looks at what has changed; returns everything that is wanted, if that may be something new.
    pub fn update(&mut self, objects: &impl Objects, services: &BTreeSet<Key>, nodes: bool) -> Option<Wanted> {
        let mut is_new = false;
        for key in services {
            let now = objects.service(key).and_then(|service| announced(&service, || objects.slices(key)));
            is_new |= self.services.get(key) != now.as_ref();
            match now {
                Some(now) => drop(self.services.insert(key.clone(), now)),
                None => drop(self.services.remove(key)),
            }
        }
        if nodes {
            let all = objects.nodes();
            let (able, occupied) = (Arc::new(able(&all)), all.iter().flat_map(|node| node_addresses(node)).collect());
            let pods = all.iter().flat_map(|node| pod_ranges(node)).collect();
            is_new |= self.nodes != able || self.occupied != occupied || self.pods != pods;
            (self.nodes, self.occupied, self.pods) = (able, occupied, pods);
        }
        let api = Key::new("default", "kubernetes");
        if services.contains(&api) {
            // Nobody chooses a uid, and no other cluster has it.
            let uid = objects.service(&api).and_then(|service| service.metadata.uid.clone());
            let cluster = uid.map_or(0, |uid| fnv(uid.as_bytes()));
            is_new |= std::mem::replace(&mut self.cluster, cluster) != cluster;
        }
        is_new.then(|| self.wanted())
    }

    fn wanted(&self) -> Wanted {
        let mut addresses: BTreeMap<IpAddr, Arc<BTreeSet<String>>> = BTreeMap::new();
        for Announced { addresses: own, behind } in self.services.values() {
            let candidates = match behind {
                Some(behind) => Arc::new(behind.intersection(&self.nodes).cloned().collect()),
                None => self.nodes.clone(),
            };
            for address in own.iter().filter(|address| !self.occupied.contains(address)) {
                // Services that share it are announced by a node that may do so for all.
                addresses
                    .entry(*address)
                    .and_modify(|others| *others = Arc::new(others.intersection(&candidates).cloned().collect()))
                    .or_insert_with(|| candidates.clone());
            }
        }
        Wanted { cluster: self.cluster, addresses, pods: self.pods.clone() }
    }

    /// The Services that have an address.
    pub fn services_of(&self, address: &IpAddr) -> impl Iterator<Item = &Key> {
        self.services.iter().filter(|(_, announced)| announced.addresses.contains(address)).map(|(key, _)| key)
    }
}

fn announced<S: AsRef<EndpointSlice>>(service: &Service, slices: impl FnOnce() -> Vec<S>) -> Option<Announced> {
    let spec = service.spec.as_ref().filter(|spec| spec.type_.as_deref() == Some("LoadBalancer"))?;
    let conditions = service.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|condition| condition.type_ == CONDITION && condition.reason != FROM_NODES)?;
    let addresses = balancer_addresses(service);
    let is_local = spec.external_traffic_policy.as_deref() == Some("Local");
    (!addresses.is_empty()).then(|| Announced { addresses, behind: is_local.then(|| behind(&slices())) })
}

/// The nodes that have ready endpoints, or as long as there are none, such as still serve while they terminate.
fn behind(slices: &[impl AsRef<EndpointSlice>]) -> BTreeSet<String> {
    let endpoints = || slices.iter().flat_map(|slice| &slice.as_ref().endpoints);
    let of = |fits: fn(&Endpoint) -> bool| -> BTreeSet<String> {
        endpoints().filter(|endpoint| fits(endpoint)).filter_map(|endpoint| endpoint.node_name.clone()).collect()
    };
    let ready = of(is_ready);
    if ready.is_empty() { of(is_usable) } else { ready }
}

/// The nodes that may announce: ready ones; where none is, all, as for Services. Never those that are excluded.
fn able(nodes: &[impl AsRef<Node>]) -> BTreeSet<String> {
    let all = nodes.iter().map(AsRef::as_ref).filter(|node| {
        let labels = node.metadata.labels.as_ref();
        !labels.is_some_and(|labels| labels.contains_key(EXCLUDED)) && node.metadata.deletion_timestamp.is_none()
    });
    let (ready, others): (Vec<&Node>, Vec<&Node>) = all.partition(|node| is_node_ready(node));
    let able = if ready.is_empty() { others } else { ready };
    able.into_iter().filter_map(|node| node.metadata.name.clone()).collect()
}

fn is_node_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    { conditions }.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
