//! How much of a node's tables the Services and host ports of one namespace may take: the youngest that do not fit go without.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use podwright_net::dataplane::{Seniority, source_count};

use super::compile::source_ranges;
use super::endpoints::{family_of, is_usable};
use super::host_ports::wanted;

/// The elements and records of one namespace on a node: 40 MB of the kernel's memory, and half a second to load.
pub const ELEMENTS: usize = 262_144;

/// A host port is its frontend, its list of one endpoint, and itself.
const OF_HOST_PORT: usize = 4;

/// What all Services and Pods weigh, by namespace.
#[derive(Debug)]
pub struct Shares {
    limit: usize,
    namespaces: HashMap<String, Share>,
    /// The namespaces of which something has changed since [`Shares::settle`].
    touched: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Share {
    /// What each weighs, in order of seniority.
    members: BTreeMap<(Seniority, String), usize>,
    seniority: HashMap<String, Seniority>,
    weight: usize,
    /// Those that go without.
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

    /// Notes what the object `key` of a namespace weighs; `None`: there is no such object any more.
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

    /// Decides anew who of the namespaces that have changed has room; whose standing is another than before. A namespace within
    /// its share costs nothing, however much it has.
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
    /// Those that find no room, if who is older comes first. One that is too large keeps no younger one out.
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

/// At most how many elements and DNS records a Service is on a node, without making them: some millions may be asked for.
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
    // Clients remember slots, and slots are endpoints: of each list and of each endpoint there are two.
    let each = if spec.session_affinity.as_deref() == Some("ClientIP") { 2 } else { 1 };
    let of_family = usize::from(has_node_port) + usize::from(ranges > 0) + outside + lists * each;
    let of_port = families + external + ranges + families * of_family;
    let mut sum = spec.ports.as_ref().map_or(0, Vec::len) * of_port;
    for slice in slices.iter().map(AsRef::as_ref) {
        let endpoints = usable(slice);
        let named = |name: &Option<String>| ports.contains(name.as_deref().unwrap_or(""));
        let ports = slice.ports.iter().flatten().filter(|port| named(&port.name)).count();
        // Each list may have them all, and a Pod may come to itself.
        sum += ports * endpoints * lists * each + endpoints;
    }
    sum
}

/// What a Pod's host ports are on its node.
pub fn weight_of_host_ports(pod: &Pod) -> usize {
    wanted(pod).count() * OF_HOST_PORT
}

/// Addresses of the Service and of each endpoint, where those lead back to, and a record for each port.
fn records(slice: &EndpointSlice) -> usize {
    usable(slice) * (3 + slice.ports.as_ref().map_or(0, Vec::len))
}

fn usable(slice: &EndpointSlice) -> usize {
    let usable = |endpoint: &&Endpoint| is_usable(endpoint);
    if family_of(slice).is_some() { slice.endpoints.iter().filter(usable).count() } else { 0 }
}
