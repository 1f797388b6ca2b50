//! The scheduler's view of the cluster: every node with what is on it, kept by increments.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, Pod};

use super::node_name;
use crate::api::pod_resources::{self, Amounts};

/// A host port in use: address, protocol, port.
pub type HostPort = (String, String, i32);

/// One node and what is on it.
#[derive(Default)]
pub struct NodeInfo {
    pub node: Arc<Node>,
    pub allocatable: Amounts,
    pub max_pods: i64,
    pub requested: Amounts,
    /// As `requested`, with assumptions for Pods that request nothing; for scores.
    pub assumed: Amounts,
    pub ports: BTreeSet<HostPort>,
    pods: HashMap<String, Arc<Pod>>,
    /// Pods may be seen before their node.
    known: bool,
}

impl NodeInfo {
    pub fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or("")
    }
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values()
    }
    pub fn pod_count(&self) -> i64 {
        self.pods.len() as i64
    }
    pub fn label(&self, key: &str) -> Option<&str> {
        self.node.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    fn add(&mut self, pod: Arc<Pod>) {
        self.requested.add(&pod_resources::requests(&pod));
        self.assumed.add(&pod_resources::assumed_requests(&pod));
        self.ports.extend(host_ports(&pod));
        self.pods.insert(uid(&pod), pod);
    }

    fn remove(&mut self, uid: &str) -> bool {
        let Some(pod) = self.pods.remove(uid) else { return false };
        self.requested.subtract(&pod_resources::requests(&pod));
        self.assumed.subtract(&pod_resources::assumed_requests(&pod));
        for port in host_ports(&pod) {
            self.ports.remove(&port);
        }
        true
    }
}

/// All nodes.
#[derive(Default)]
pub struct Cluster {
    nodes: BTreeMap<String, NodeInfo>,
    /// Where each Pod is, by uid; whether that is only assumed yet.
    places: HashMap<String, (String, bool)>,
    /// The names of known nodes, and where the next search starts: so that all are tried in turn.
    order: Vec<String>,
    next: usize,
}

impl Cluster {
    pub fn set_node(&mut self, node: Arc<Node>) {
        let name = node.metadata.name.clone().unwrap_or_default();
        let info = self.nodes.entry(name.clone()).or_default();
        (info.allocatable, info.max_pods) = pod_resources::allocatable(&node);
        info.node = node;
        if !std::mem::replace(&mut info.known, true) {
            self.order.push(name);
        }
    }

    pub fn remove_node(&mut self, name: &str) {
        if let Some(info) = self.nodes.get_mut(name) {
            info.known = false;
            if info.pods.is_empty() {
                self.nodes.remove(name);
            }
        }
        self.order.retain(|n| n != name);
    }

    /// Takes in a Pod that is bound. An assumption about it is settled by this.
    pub fn set_pod(&mut self, pod: Arc<Pod>) {
        let Some(node) = node_name(&pod).map(str::to_owned) else { return };
        self.take_off(&uid(&pod));
        self.place(pod, node, false);
    }

    /// Counts a Pod on a node before its binding is written.
    pub fn assume(&mut self, pod: Arc<Pod>, node: &str) {
        self.place(pod, node.to_owned(), true);
    }

    /// Takes an assumption back.
    pub fn forget(&mut self, pod: &Pod) {
        if self.is_assumed(pod) {
            self.take_off(&uid(pod));
        }
    }

    pub fn is_assumed(&self, pod: &Pod) -> bool {
        self.places.get(&uid(pod)).is_some_and(|(_, assumed)| *assumed)
    }

    /// Takes a Pod off its node; whether it was on one.
    pub fn remove_pod(&mut self, pod: &Pod) -> bool {
        self.take_off(&uid(pod))
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The known nodes, starting behind where the last search ended.
    pub fn in_turn(&self) -> impl Iterator<Item = &NodeInfo> {
        let (front, back) = self.order.split_at(self.next.min(self.order.len()));
        back.iter().chain(front).filter_map(|name| self.nodes.get(name))
    }

    /// The next search starts this many nodes further on.
    pub fn advance(&mut self, visited: usize) {
        if !self.order.is_empty() {
            self.next = (self.next + visited) % self.order.len();
        }
    }

    fn place(&mut self, pod: Arc<Pod>, node: String, assumed: bool) {
        self.places.insert(uid(&pod), (node.clone(), assumed));
        self.nodes.entry(node).or_default().add(pod);
    }

    fn take_off(&mut self, uid: &str) -> bool {
        let Some((node, _)) = self.places.remove(uid) else { return false };
        let Some(info) = self.nodes.get_mut(&node) else { return false };
        let removed = info.remove(uid);
        if !info.known && info.pods.is_empty() {
            self.nodes.remove(&node);
        }
        removed
    }
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

/// The host ports of a Pod: all containers' and, as they run beside them, sidecars'.
pub fn host_ports(pod: &Pod) -> impl Iterator<Item = HostPort> {
    let spec = pod.spec.as_ref();
    let sidecars = spec.and_then(|s| s.init_containers.as_ref()).into_iter().flatten();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let containers = spec.map(|s| s.containers.as_slice()).unwrap_or_default().iter();
    containers.chain(sidecars).flat_map(|c| c.ports.iter().flatten()).filter_map(|port| {
        let host_port = port.host_port.filter(|p| *p > 0)?;
        let address = port.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".into());
        Some((address, port.protocol.clone().unwrap_or_else(|| "TCP".into()), host_port))
    })
}
