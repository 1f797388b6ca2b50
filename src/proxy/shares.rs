//! Limits how much of a node's tables one namespace's Services and host ports may use: the youngest that do not fit are left out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use podwright_net::dataplane::{Seniority, source_count};

use super::compile::source_ranges;
use super::endpoints::{family_of, is_usable};
use super::host_ports::wanted;

/// Maximum elements and records of one namespace on a node: 40 MB of kernel memory, and half a second to load.
pub const ELEMENTS: usize = 262_144;

/// A host port is its frontend, its list of one endpoint, and the endpoint itself.
const OF_HOST_PORT: usize = 4;

/// The weights of all Services and Pods, by namespace.
#[derive(Debug)]
pub struct Shares {
    limit: usize,
    namespaces: HashMap<String, Share>,
    /// Namespaces that have changed since [`Shares::settle`].
    touched: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Share {
    /// Weights in order of seniority.
    members: BTreeMap<(Seniority, String), usize>,
    seniority: HashMap<String, Seniority>,
    weight: usize,
    /// Those left out.
    left_out: BTreeSet<String>,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares::new(ELEMENTS)
    }
}

impl Shares {
    pub fn new(limit: usize) -> Shares {
        Shares { limit, namespaces: HashMap::new(), touched: BTreeSet::new() }
    }

    /// Records the weight of the object `key` of a namespace; `None`: it no longer exists.
    pub fn note(&mut self, namespace: &str, key: &str, found: Option<(Seniority, usize)>) {
        let share = self.namespaces.entry(namespace.to_owned()).or_default();
        if let Some(seniority) = share.seniority.remove(key) {
            share.weight -= share.members.remove(&(seniority, key.to_owned())).unwrap_or_default();
        }
        if let Some((seniority, weight)) = found {
            share.weight += weight;
            share.members.insert((seniority.clone(), key.to_owned()), weight);
            share.seniority.insert(key.to_owned(), seniority);
        }
        self.touched.insert(namespace.to_owned());
    }

    /// Decides again for changed namespaces which objects have room; returns those whose status changed. A namespace within its
    /// share costs nothing, whatever its size.
    pub fn settle(&mut self) -> BTreeSet<String> {
        let mut moved = BTreeSet::new();
        for namespace in std::mem::take(&mut self.touched) {
            let Some(share) = self.namespaces.get_mut(&namespace) else { continue };
            if share.members.is_empty() {
                self.namespaces.remove(&namespace);
                continue;
            }
            if share.weight <= self.limit && share.left_out.is_empty() {
                continue;
            }
            let left_out = share.too_much(self.limit);
            let living = |key: &&String| share.seniority.contains_key(*key);
            moved.extend(share.left_out.symmetric_difference(&left_out).filter(living).cloned());
            share.left_out = left_out;
        }
        moved
    }

    /// Whether the object is served here.
    pub fn has_room(&self, namespace: &str, key: &str) -> bool {
        self.namespaces.get(namespace).is_none_or(|share| !share.left_out.contains(key))
    }
}

impl Share {
    /// Those without room, with older ones first. One that is too large does not exclude younger ones.
    fn too_much(&self, limit: usize) -> BTreeSet<String> {
        let mut left = limit;
        let mut out = BTreeSet::new();
        for ((_, key), weight) in &self.members {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => drop(out.insert(key.clone())),
            }
        }
        out
    }
}

/// An upper bound for a Service's elements and DNS records on a node, without creating them: they may be millions.
pub fn weight(service: &Service, slices: &[impl AsRef<EndpointSlice>]) -> usize {
    let Some(spec) = &service.spec else { return 0 };
    if spec.cluster_ip.as_deref() == Some("None") {
        return slices.iter().map(|slice| records(slice.as_ref())).sum();
    }
    let ports: HashSet<&str> = spec.ports.iter().flatten().map(|port| port.name.as_deref().unwrap_or("")).collect();
    let balancers = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let external = spec.external_ips.as_ref().map_or(0, Vec::len)
        + balancers.and_then(|balancers| balancers.ingress.as_ref()).map_or(0, Vec::len);
    let ranges: usize = source_ranges(spec).into_iter().map(source_count).sum();
    let has_node_port = matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"));
    let families = spec.cluster_ips.as_ref().map_or(0, Vec::len);
    let local = |policy: &Option<String>| usize::from(policy.as_deref() == Some("Local"));
    let outside = local(&spec.external_traffic_policy);
    let lists = match external > 0 || has_node_port {
        true => 1 + local(&spec.internal_traffic_policy) + outside,
        false => 1,
    };
    // Remembered clients need slots and endpoints: two for each list and each endpoint.
    let each = if spec.session_affinity.as_deref() == Some("ClientIP") { 2 } else { 1 };
    let of_family = usize::from(has_node_port) + usize::from(ranges > 0) + outside + lists * each;
    let of_port = families + external + ranges + families * of_family;
    let mut sum = spec.ports.as_ref().map_or(0, Vec::len) * of_port;
    for slice in slices.iter().map(AsRef::as_ref) {
        let endpoints = usable(slice);
        let named = |name: &Option<String>| ports.contains(name.as_deref().unwrap_or(""));
        let ports = slice.ports.iter().flatten().filter(|port| named(&port.name)).count();
        // Each list may contain all of them, and a Pod may connect to itself.
        sum += ports * endpoints * lists * each + endpoints;
    }
    sum
}

/// The weight of a Pod's host ports on its node.
pub fn weight_of_host_ports(pod: &Pod) -> usize {
    wanted(pod).count() * OF_HOST_PORT
}

/// Addresses of the Service and of each endpoint, their reverse names, and a record for each port.
fn records(slice: &EndpointSlice) -> usize {
    usable(slice) * (3 + slice.ports.as_ref().map_or(0, Vec::len))
}

fn usable(slice: &EndpointSlice) -> usize {
    let usable = |endpoint: &&Endpoint| is_usable(endpoint);
    if family_of(slice).is_some() { slice.endpoints.iter().filter(usable).count() } else { 0 }
}
