//! Without a pool: the nodes' own addresses serve, as k3s' ServiceLB has it. Which Service has which ports of them. Pure.
//!
//! A port of a node's address is worth as much as a Pod's host port: who may not have those, by Pod Security, may not have these
//! either; and ports on which nodes themselves serve are not given out.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};

use super::allocate::{Outcome, seniority};
use super::request::{Port, Request, held, is_balanced, is_ours, is_to_decide, named, ports, request};
use crate::{conditions, meta};
use podwright_api::{load_balancer::EXCLUDED, validation::service::MAX_WAYS};

/// The most addresses of a status (`src/api/validation/bounds.rs`).
const MOST: usize = 256;

/// Ports below 1024 that are Services' to have; on the others a node's own programs serve, such as SSH.
const LOW: [i32; 2] = [80, 443];
/// Further ports of nodes' own programs: etcd, the API, VXLAN, kubelet and its like, node ports.
const OWN: [(i32, i32); 5] = [(2379, 2381), (6443, 6443), (8472, 8472), (10248, 10259), (30000, 32767)];

/// A node with its addresses: one of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub name: String,
    pub addresses: Vec<IpAddr>,
}

/// The nodes that serve: ready ones that are not excluded.
pub fn places(nodes: &[Arc<Node>]) -> Vec<Place> {
    let mut places: Vec<Place> = nodes.iter().filter(|node| serves(node)).map(|node| place(node)).collect();
    places.sort_by(|one, other| one.name.cmp(&other.name));
    places
}

fn serves(node: &Node) -> bool {
    let all = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_ready = conditions::find(all, "Ready").is_some_and(|ready| ready.status == "True");
    let is_excluded = node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(EXCLUDED));
    is_ready && !is_excluded && !meta::is_terminating(&node.metadata)
}

/// Its ExternalIPs, or else its InternalIPs; the first of each family: a node reports what it likes, and the statuses that have it have
/// bounds.
fn place(node: &Node) -> Place {
    let all = node.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default();
    let of = |kind: &str| -> Vec<IpAddr> {
        let of_kind = all.iter().filter(|address| address.type_ == kind);
        let addresses: Vec<IpAddr> = of_kind.filter_map(|address| address.address.parse().ok()).collect();
        let first = |is_v4: bool| addresses.iter().position(|address| address.is_ipv4() == is_v4);
        let mut places: Vec<usize> = [first(true), first(false)].into_iter().flatten().collect();
        places.sort_unstable();
        places.into_iter().map(|n| addresses[n]).collect()
    };
    let external = of("ExternalIP");
    let addresses = if external.is_empty() { of("InternalIP") } else { external };
    Place { name: meta::name(&node.metadata).to_owned(), addresses }
}

/// The outcome of each Service that is ours or was, in the order of `services`; `None` for others'. `behind`: the nodes with ready endpoints of a
/// Service. `guarded`: the namespaces whose Pods may have no host ports.
pub fn assign(
    places: &[Place],
    services: &[Arc<Service>],
    behind: impl Fn(&Service) -> HashSet<String>,
    guarded: impl Fn(&str) -> bool,
) -> Vec<Option<Outcome>> {
    let mut order: Vec<usize> = (0..services.len()).filter(|n| is_to_decide(&services[*n])).collect();
    // Who has addresses keeps their ports, however old a Service is that comes to want them.
    order.sort_by_cached_key(|n| (held(&services[*n]).is_empty(), seniority(&services[*n])));
    let mut taken: BTreeMap<(bool, Port), usize> = BTreeMap::new();
    let mut outcomes = vec![None; services.len()];
    for n in order {
        let service = &services[n];
        if !is_balanced(service) || !is_ours(service) {
            outcomes[n] = Some(Outcome::default());
            continue;
        }
        let wanted = wish(service, &guarded).and_then(|request| free(&request, &mut taken, n).map(|()| request));
        outcomes[n] = Some(match wanted {
            Ok(request) => addresses(places, service, &request, &behind),
            Err(failure) => Outcome { failure: Some(failure), ..Outcome::default() },
        });
    }
    outcomes
}

fn wish(service: &Service, guarded: &impl Fn(&str) -> bool) -> Result<Request, String> {
    let request = request(service)?;
    if let Some(address) = request.addresses.first() {
        return Err(format!("{address} is asked for, and the cluster has no pool of addresses (--load-balancer-pool)"));
    }
    let namespace = meta::namespace(&service.metadata);
    if guarded(namespace) {
        return Err(format!(
            "the Pod Security level of namespace {namespace} forbids host ports, and without a pool of addresses \
             (--load-balancer-pool) a Service of type LoadBalancer has ports of the nodes"
        ));
    }
    let spec = service.spec.iter().flat_map(ports);
    match spec.map(|(_, port)| port).find(|port| is_own(*port)) {
        Some(port) => Err(format!(
            "port {port} is the nodes' own; without a pool of addresses (--load-balancer-pool) Services have 80, 443, and those \
             from 1024 that nodes do not use themselves"
        )),
        None => Ok(request),
    }
}

fn is_own(port: i32) -> bool {
    port < 1024 && !LOW.contains(&port) || OWN.iter().any(|(first, last)| (*first..=*last).contains(&port))
}

/// Takes the Service's ports, all or none.
fn free(request: &Request, taken: &mut BTreeMap<(bool, Port), usize>, n: usize) -> Result<(), String> {
    let wanted = || {
        let families: BTreeSet<bool> = request.families.iter().copied().collect();
        families.into_iter().flat_map(|family| request.sharing.ports.iter().map(move |port| (family, port.clone())))
    };
    match wanted().find(|place| taken.contains_key(place)) {
        Some((_, (protocol, port))) => {
            Err(format!("{protocol} port {port} of the nodes' addresses leads to another Service"))
        }
        None => {
            taken.extend(wanted().map(|place| (place, n)));
            Ok(())
        }
    }
}

fn addresses(
    places: &[Place],
    service: &Service,
    request: &Request,
    behind: &impl Fn(&Service) -> HashSet<String>,
) -> Outcome {
    let local = request.sharing.local.is_some().then(|| behind(service));
    let is_behind = |place: &&Place| local.as_ref().is_none_or(|nodes| nodes.contains(&place.name));
    let all = places.iter().filter(is_behind).flat_map(|place| &place.addresses);
    // Each address with each port is a way in, of which a Service has so many.
    let most = MOST.min(MAX_WAYS / request.sharing.ports.len().max(1)).max(1);
    let of_families = all.filter(|address| request.families.contains(&address.is_ipv4()));
    let addresses: Vec<IpAddr> = of_families.take(most).copied().collect();
    let failure = addresses.is_empty().then(|| match local {
        Some(_) => "no node that serves has a ready endpoint (externalTrafficPolicy is Local)".to_owned(),
        None => format!("no node that serves has an address of the Service's families ({})", named(&request.families)),
    });
    Outcome { addresses, failure, waits: false }
}
