//! The scheduler's view of the cluster: every node with what is on it, kept by increments.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, Taint};

use super::pod::{HostPort, PodInfo};
use crate::api::pod_resources::{self, Amounts};

/// One node and what is on it.
pub struct NodeInfo {
    pub node: Arc<Node>,
    pub name: String,
    pub allocatable: Amounts,
    pub max_pods: i64,
    pub unschedulable: bool,
    pub taints: Vec<Taint>,
    pub load: Load,
}

impl NodeInfo {
    fn new(node: Arc<Node>, load: Load) -> NodeInfo {
        let (allocatable, max_pods) = pod_resources::allocatable(&node);
        let spec = node.spec.as_ref();
        NodeInfo {
            name: node.metadata.name.clone().unwrap_or_default(),
            allocatable,
            max_pods,
            unschedulable: spec.and_then(|s| s.unschedulable) == Some(true),
            taints: spec.and_then(|s| s.taints.clone()).unwrap_or_default(),
            node,
            load,
        }
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.node.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }
}

/// What the Pods of one node take.
#[derive(Default)]
pub struct Load {
    pub requested: Amounts,
    /// As `requested`, with assumptions for Pods that request nothing; for scores.
    pub assumed: Amounts,
    /// How many Pods hold each port: the scheduler places no second one, but others may have.
    pub ports: BTreeMap<HostPort, usize>,
    pods: HashMap<String, Arc<PodInfo>>,
}

impl Load {
    pub fn pods(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.pods.values()
    }
    pub fn pod_count(&self) -> i64 {
        self.pods.len() as i64
    }

    fn add(&mut self, pod: Arc<PodInfo>) {
        self.count(&pod);
        for port in &pod.ports {
            *self.ports.entry(port.clone()).or_default() += 1;
        }
        self.pods.insert(pod.uid.clone(), pod);
    }

    fn count(&mut self, pod: &PodInfo) {
        self.requested.add(&pod.requests);
        self.assumed.add(&pod.assumed);
    }

    fn remove(&mut self, uid: &str) {
        let Some(pod) = self.pods.remove(uid) else { return };
        if self.requested.is_saturated() || self.assumed.is_saturated() {
            // A sum that did not fit cannot be undone by subtracting.
            (self.requested, self.assumed) = Default::default();
            let rest: Vec<_> = self.pods.values().cloned().collect();
            rest.iter().for_each(|pod| self.count(pod));
        } else {
            self.requested.subtract(&pod.requests);
            self.assumed.subtract(&pod.assumed);
        }
        for port in &pod.ports {
            if let Some(holders) = self.ports.get_mut(port) {
                *holders -= 1;
                if *holders == 0 {
                    self.ports.remove(port);
                }
            }
        }
    }
}

/// Where a Pod is.
struct Place {
    node: String,
    /// Its binding is not seen yet.
    assumed: bool,
}

/// All nodes.
#[derive(Default)]
pub struct Cluster {
    /// The nodes that exist. A search begins where the last one ended, so that all are tried in turn.
    nodes: Vec<NodeInfo>,
    next: usize,
    /// Where in `nodes` each one is.
    index: HashMap<String, usize>,
    /// What is on nodes that do not exist: not yet, no longer, or never.
    elsewhere: HashMap<String, Load>,
    /// Where each Pod is, by uid.
    places: HashMap<String, Place>,
}

impl Cluster {
    pub fn set_node(&mut self, node: Arc<Node>) {
        let name = node.metadata.name.clone().unwrap_or_default();
        if let Some(at) = self.index.get(&name) {
            let load = std::mem::take(&mut self.nodes[*at].load);
            self.nodes[*at] = NodeInfo::new(node, load);
        } else {
            let load = self.elsewhere.remove(&name).unwrap_or_default();
            self.index.insert(name, self.nodes.len());
            self.nodes.push(NodeInfo::new(node, load));
        }
    }

    /// The node is gone; its Pods still have to go.
    pub fn remove_node(&mut self, name: &str) {
        let Some(at) = self.index.remove(name) else { return };
        let removed = self.nodes.swap_remove(at);
        if let Some(moved) = self.nodes.get(at) {
            self.index.insert(moved.name.clone(), at);
        }
        if removed.load.pod_count() > 0 {
            self.elsewhere.insert(removed.name, removed.load);
        }
    }

    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.index.get(name).map(|at| &self.nodes[*at])
    }

    /// Takes in a Pod that is bound to a node, or its newer form. An assumption about it is settled by this. Returns the
    /// node on which room became free: it was expected elsewhere, or asks for less than it did.
    pub fn set_pod(&mut self, pod: Arc<PodInfo>, node: &str) -> Option<String> {
        let before = self.places.get(&pod.uid).map(|place| place.node.clone());
        let old = before.as_deref().and_then(|name| self.load(name)?.pods.get(&pod.uid).cloned());
        let shrunk = old.is_some_and(|old| !pod.requests.covers(&old.requests));
        self.remove_pod(&pod.uid);
        self.place(pod, node, false);
        before.filter(|before| before != node || shrunk)
    }

    /// Counts a Pod on a node before its binding is written.
    pub fn assume(&mut self, pod: Arc<PodInfo>, node: &str) {
        self.remove_pod(&pod.uid);
        self.place(pod, node, true);
    }

    /// Takes an assumption back; the node that the Pod was assumed on, unless the binding has been seen since.
    pub fn forget(&mut self, uid: &str) -> Option<String> {
        if self.places.get(uid)?.assumed { self.remove_pod(uid) } else { None }
    }

    pub fn is_assumed(&self, uid: &str) -> bool {
        self.places.get(uid).is_some_and(|place| place.assumed)
    }

    /// Takes a Pod off its node, which is returned.
    pub fn remove_pod(&mut self, uid: &str) -> Option<String> {
        let Place { node, .. } = self.places.remove(uid)?;
        if let Some(at) = self.index.get(&node) {
            self.nodes[*at].load.remove(uid);
        } else if let Some(load) = self.elsewhere.get_mut(&node) {
            load.remove(uid);
            if load.pod_count() == 0 {
                self.elsewhere.remove(&node);
            }
        }
        Some(node)
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// All nodes, beginning behind where the last search ended.
    pub fn in_turn(&self) -> impl Iterator<Item = &NodeInfo> {
        let (front, back) = self.nodes.split_at(self.next.min(self.nodes.len()));
        back.iter().chain(front)
    }

    /// The next search starts this many nodes further on.
    pub fn advance(&mut self, visited: usize) {
        if !self.nodes.is_empty() {
            self.next = (self.next + visited) % self.nodes.len();
        }
    }

    fn load(&self, node: &str) -> Option<&Load> {
        self.node(node).map(|node| &node.load).or_else(|| self.elsewhere.get(node))
    }

    fn place(&mut self, pod: Arc<PodInfo>, node: &str, assumed: bool) {
        self.places.insert(pod.uid.clone(), Place { node: node.to_owned(), assumed });
        match self.index.get(node) {
            Some(at) => self.nodes[*at].load.add(pod),
            None => self.elsewhere.entry(node.to_owned()).or_default().add(pod),
        }
    }
}
