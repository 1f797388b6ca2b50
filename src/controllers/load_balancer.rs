//! Load balancer addresses: gives Services of type LoadBalancer addresses of the pool, or without one the nodes' own, and takes back
//! what they have no right to any more.
//!
//! Like `node_ipam` it has no memory: Services' statuses show what is taken, and there is a single key, the cluster, so that nothing is
//! chosen before the last choice is visible. Nobody but this controller and administrators writes a Service's status (upstream's
//! roles `edit` and `admin` do not), so an address in one was given.
//!
//! Upstream's `service-controller` of a cloud provider is the model for which Services count, the class, the events' occasions.

mod allocate;
mod nodes;
mod request;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{LoadBalancerIngress, Node, Service, ServiceStatus},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use podwright_api::load_balancer::{CONDITION, FROM_NODES, FROM_POOL, LoadBalancing, Pool, Range};

use super::{
    Context, Plan, Row, World, Writes, meta,
    write::{Note, Write},
};
pub use allocate::{Outcome, Reserved, allocate};
pub use nodes::{Place, assign, places};
use podwright_client::{Informers, Key, reference};
use request::condition;
pub use request::{Request, Sharing, is_balanced, is_ours, request};

/// Why a Service has no address, or not all that it wants: an event's reason, and the condition's.
const FAILED: &str = "AllocationFailed";
/// What the VIP mode of an address says: packets reach nodes with it as their destination (KEP-1860).
const VIP: &str = "VIP";
/// How many Services one plan writes; the next follows when they are seen.
const MOST: usize = 256;
/// The label of a namespace's Pod Security level.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

pub const ROW: Row = Row {
    name: "service-lb-controller",
    workers: 1,
    writes: Writes::Of(&["services"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.on(&informers.services, |_, queue, change| {
            if change.old.iter().chain(&change.new).any(|service| concerns(service)) {
                queue.add(Key::default());
            }
        });
        watches.on(&informers.nodes, |_, queue, change| {
            let facts = |node: &Option<Arc<Node>>| node.as_ref().map(self::facts);
            if facts(&change.old) != facts(&change.new) {
                queue.add(Key::default());
            }
        });
        watches.on(&informers.endpoint_slices, |world, queue, change| {
            let uses_nodes = world.config.load_balancing == LoadBalancing::Nodes;
            let owners = change.old.iter().chain(&change.new).filter_map(|slice| {
                let name = slice.metadata.labels.as_ref()?.get("kubernetes.io/service-name")?;
                world.informers.services.get(&Key::new(&change.key.namespace, name))
            });
            if uses_nodes && { owners }.any(|service| is_balanced(&service) && is_local(&service)) {
                queue.add(Key::default());
            }
        });
        watches.on(&informers.namespaces, |world, queue, change| {
            let level = |namespace: &Option<_>| namespace.as_deref().and_then(level).map(str::to_owned);
            if world.config.load_balancing == LoadBalancing::Nodes && level(&change.old) != level(&change.new) {
                queue.add(Key::default());
            }
        });
    },
    reconcile,
};

/// Whether a Service has, or may want, something of this controller.
fn concerns(service: &Service) -> bool {
    is_balanced(service) || !request::held(service).is_empty() || condition(service).is_some()
}

fn is_local(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.external_traffic_policy.as_deref() == Some("Local"))
}

fn level(namespace: &k8s_openapi::api::core::v1::Namespace) -> Option<&str> {
    namespace.metadata.labels.as_ref()?.get(ENFORCE).map(String::as_str)
}

/// What of a node has an influence on addresses.
fn facts(node: &Arc<Node>) -> (Option<Place>, Vec<IpAddr>, Vec<String>) {
    let spec = node.spec.as_ref();
    let ranges = spec.iter().flat_map(|spec| spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr)).cloned().collect();
    (places(std::slice::from_ref(node)).pop(), addresses_of(node), ranges)
}

fn addresses_of(node: &Node) -> Vec<IpAddr> {
    let all = node.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default();
    all.iter().filter_map(|address| address.address.parse().ok()).collect()
}

fn reconcile(context: &Context<'_>, _: &Key) -> Plan {
    let informers = &context.world.informers;
    let mut services = informers.services.list();
    services.retain(|service| concerns(service) || request::external_ips(service).next().is_some());
    let load_balancing = &context.world.config.load_balancing;
    let outcomes = match load_balancing {
        // What this controller has given before is taken back; it is known by its condition.
        LoadBalancing::Off => services.iter().map(|service| condition(service).map(|_| Outcome::default())).collect(),
        LoadBalancing::Pool(pool) => allocate(pool, &reserved(context.world, pool), &services),
        LoadBalancing::Nodes => {
            let guarded = |namespace: &str| {
                let found = informers.namespaces.get(&Key::new("", namespace));
                let enforced = found.as_deref().and_then(level).unwrap_or(&context.world.config.pod_security_level);
                // As PodSecurity has it, an unknown level is the strictest.
                enforced != "privileged"
            };
            assign(&places(&informers.nodes.list()), &services, |service| behind(informers, service), guarded)
        }
    };
    let given = if load_balancing.pool().is_some() { FROM_POOL } else { FROM_NODES };
    plan(&services, outcomes, given, context.now)
}

/// The nodes on which a Service has ready endpoints.
fn behind(informers: &Informers, service: &Service) -> HashSet<String> {
    let slices = informers.endpoint_slices.indexed(Informers::BY_SERVICE, &Key::of(service).to_string());
    let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
    let is_ready = |ready: Option<bool>| ready.unwrap_or(true);
    let ready = endpoints.filter(|endpoint| is_ready(endpoint.conditions.as_ref().and_then(|all| all.ready)));
    ready.filter_map(|endpoint| endpoint.node_name.clone()).collect()
}

/// What of the pool is not Services' to have.
fn reserved(world: &World, pool: &Pool) -> Reserved {
    let (config, nodes) = (&world.config, world.informers.nodes.list());
    let of_nodes = nodes.iter().flat_map(|node| {
        let spec = node.spec.as_ref();
        spec.into_iter().flat_map(|spec| spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr))
    });
    let parsed = of_nodes.filter_map(|cidr| cidr.parse().ok());
    let ranges = config.cluster_cidrs.iter().chain(&config.service_cidrs).copied().chain(parsed);
    let api = world.informers.endpoint_slices.indexed(Informers::BY_SERVICE, "default/kubernetes");
    let servers = api.iter().flat_map(|slice| &slice.endpoints).flat_map(|endpoint| &endpoint.addresses);
    let servers = servers.filter_map(|address| address.parse().ok());
    Reserved {
        addresses: nodes.iter().flat_map(|node| addresses_of(node)).chain(servers).collect(),
        ranges: ranges.map(|range| Range::of_net(&range)).filter(|range| pool.overlaps(range)).collect(),
    }
}

/// Writes the statuses that are not as their outcomes. `given`: the condition's reason for those that have what they want.
pub fn plan(services: &[Arc<Service>], outcomes: Vec<Option<Outcome>>, given: &str, now: Timestamp) -> Plan {
    let writes = services.iter().zip(outcomes).filter_map(|(service, outcome)| write(service, outcome?, given, now));
    let mut writes: Vec<Write> = writes.collect();
    // Others first each time: those that are refused for good hold up nobody.
    if writes.len() > MOST {
        let first = usize::try_from(now.as_second()).unwrap_or(0) % writes.len();
        writes.rotate_left(first);
        writes.truncate(MOST);
    }
    let mut plan = Plan::default();
    plan.then(writes);
    plan
}

fn write(service: &Service, outcome: Outcome, given: &str, now: Timestamp) -> Option<Write> {
    let before = service.status.clone().unwrap_or_default();
    let mut status = before.clone();
    if !is_as_given(service, &outcome.addresses) {
        let ingress: Vec<LoadBalancerIngress> = outcome.addresses.iter().map(ingress).collect();
        status.load_balancer.get_or_insert_default().ingress = (!ingress.is_empty()).then_some(ingress);
    }
    // What is decided again in a moment is no news.
    if !outcome.waits {
        tell(&mut status, wanted(&outcome, given, service.metadata.generation, now));
    }
    if status == before {
        return None;
    }
    let write = Write::shared_status(service, &Service { status: Some(status), ..service.clone() })?;
    Some(news(service, &outcome).into_iter().fold(write, Write::done))
}

/// Whether the status has these addresses, and nothing else.
fn is_as_given(service: &Service, addresses: &[IpAddr]) -> bool {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let has = balancer.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default();
    has.len() == addresses.len() && has.iter().zip(addresses).all(|(has, address)| *has == ingress(address))
}

fn ingress(address: &IpAddr) -> LoadBalancerIngress {
    LoadBalancerIngress {
        ip: Some(address.to_string()),
        ip_mode: Some(VIP.to_owned()),
        ..LoadBalancerIngress::default()
    }
}

/// What is to be said of a Service; `None`: it has nothing, and wants nothing.
fn wanted(outcome: &Outcome, given: &str, generation: Option<i64>, now: Timestamp) -> Option<Condition> {
    let (status, reason, message) = match &outcome.failure {
        Some(failure) => ("False", FAILED, failure.clone()),
        None if outcome.addresses.is_empty() => return None,
        None => ("True", given, format!("Assigned {}", in_words(&outcome.addresses))),
    };
    Some(Condition {
        type_: CONDITION.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: meta::time(now),
    })
}

/// Sets the condition, or removes it. One that says the same stays as it is.
fn tell(status: &mut ServiceStatus, wanted: Option<Condition>) {
    let conditions = status.conditions.get_or_insert_default();
    let known = conditions.iter().position(|condition| condition.type_ == CONDITION);
    let said = |has: &Condition| (has.status.clone(), has.reason.clone(), has.message.clone());
    match (known, wanted) {
        (Some(n), Some(wanted)) if said(&conditions[n]) == said(&wanted) => {}
        (Some(n), Some(mut wanted)) => {
            if conditions[n].status == wanted.status {
                wanted.last_transition_time = conditions[n].last_transition_time.clone();
            }
            conditions[n] = wanted;
        }
        (Some(n), None) => drop(conditions.remove(n)),
        (None, wanted) => conditions.extend(wanted),
    }
    if conditions.is_empty() {
        status.conditions = None;
    }
}

fn in_words(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The events about what changes, once each.
fn news(service: &Service, outcome: &Outcome) -> Vec<Note> {
    let (about, before) = (|| reference(service), request::held(service));
    let without = |all: &[IpAddr], others: &[IpAddr]| -> Vec<IpAddr> {
        all.iter().filter(|address| !others.contains(address)).copied().collect()
    };
    let (given, taken) = (without(&outcome.addresses, &before), without(&before, &outcome.addresses));
    let failed_before = condition(service).filter(|condition| condition.reason == FAILED);
    let mut news = Vec::new();
    if !taken.is_empty() {
        news.push(Note::normal(about(), "IPReleased", format!("Released {}", in_words(&taken))));
    }
    if !given.is_empty() {
        news.push(Note::normal(about(), "IPAllocated", format!("Assigned {}", in_words(&given))));
    }
    let failure = outcome.failure.as_ref().filter(|_| !outcome.waits);
    if let Some(failure) = failure.filter(|failure| failed_before.is_none_or(|before| before.message != **failure)) {
        news.push(Note::warning(about(), FAILED, failure.clone()));
    }
    news
}
