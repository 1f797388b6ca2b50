//! The scheduler's view of the cluster: every node with its Pods, updated incrementally.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Namespace, Node};

use super::{
    index::{Class, Index, Topology},
    nomination::Nominations,
    pod::PodInfo,
    storage::Storage,
    term::Namespaces,
    workloads::Workloads,
};

pub use super::node_info::{Load, NodeInfo};

/// The location of a Pod.
struct Placement {
    node: String,
    /// Its binding is not observed yet.
    assumed: bool,
}

/// All nodes.
#[derive(Default)]
pub struct Cluster {
    /// The nodes by slot. A removed one leaves a hole, which the next new one fills.
    nodes: Vec<Option<NodeInfo>>,
    holes: Vec<usize>,
    /// Each node's index in `nodes`.
    slots: HashMap<String, usize>,
    /// The load of nodes that do not exist: not yet, no longer, or never.
    elsewhere: HashMap<String, Load>,
    /// The location of each Pod, by uid.
    places: HashMap<String, Placement>,
    /// The slots in search order: round-robin over zones. `None`: must be recomputed.
    order: Option<Arc<[usize]>>,
    /// A search starts where the last one ended, so that all nodes are tried in turn.
    next: usize,
    index: Index,
    /// How many nodes have each image.
    images: HashMap<String, usize>,
    pub namespaces: Namespaces,
    pub nominations: Nominations,
    pub workloads: Workloads,
    pub storage: Storage,
}

impl Cluster {
    pub fn set_node(&mut self, node: Arc<Node>) {
        let name = node.metadata.name.clone().unwrap_or_default();
        if let Some(&slot) = self.slots.get(&name) {
            // A known name's slot is occupied.
            let Some(old) = self.nodes[slot].take() else { return };
            self.count_images(&old, false);
            if zone(&old.node) != zone(&node) {
                self.order = None;
            }
            self.put_node(NodeInfo::new(slot, node, old.load), Some(&old.node));
            return;
        }
        let load = self.elsewhere.remove(&name).unwrap_or_default();
        let slot = self.holes.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.slots.insert(name, slot);
        self.order = None;
        for pod in load.pods() {
            self.index.came(slot, pod, &self.namespaces);
        }
        let terms: Vec<String> = load.pods().flat_map(|pod| term_keys(pod)).collect();
        self.put_node(NodeInfo::new(slot, node, load), None);
        terms.iter().for_each(|key| self.prepare_topology(key));
    }

    /// `old`: what the node was before.
    fn put_node(&mut self, node: NodeInfo, old: Option<&Node>) {
        self.index.node_labels(node.slot, |key| node.label(key));
        let first = self.index.labels_changed(old.into_iter().flat_map(label_keys), label_keys(&node.node));
        self.count_images(&node, true);
        let slot = node.slot;
        self.nodes[slot] = Some(node);
        first.iter().for_each(|key| self.prepare_topology(key));
    }

    fn count_images(&mut self, node: &NodeInfo, more: bool) {
        for name in node.images.keys() {
            let count = self.images.entry(name.clone()).or_default();
            *count = if more { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                self.images.remove(name);
            }
        }
    }

    /// The node is gone, but its Pods still exist.
    pub fn remove_node(&mut self, name: &str) {
        let Some(slot) = self.slots.remove(name) else { return };
        let Some(removed) = self.nodes[slot].take() else { return };
        self.holes.push(slot);
        self.order = None;
        self.index.node_labels(slot, |_| None);
        self.index.labels_changed(label_keys(&removed.node), std::iter::empty());
        self.count_images(&removed, false);
        for pod in removed.load.pods() {
            self.index.left(slot, pod, &self.namespaces);
        }
        if removed.load.pod_count() > 0 {
            self.elsewhere.insert(removed.name, removed.load);
        }
    }

    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.at(*self.slots.get(name)?)
    }

    pub fn at(&self, slot: usize) -> Option<&NodeInfo> {
        self.nodes.get(slot)?.as_ref()
    }

    pub fn nodes(&self) -> impl Iterator<Item = &NodeInfo> {
        self.nodes.iter().flatten()
    }

    /// The highest slot plus one.
    pub fn slots(&self) -> usize {
        self.nodes.len()
    }

    /// Adds or updates a bound Pod, which confirms an assumption about it. Returns the node where room became free, if it was
    /// assumed elsewhere, or requests less now.
    pub fn set_pod(&mut self, pod: Arc<PodInfo>, node: &str) -> Option<String> {
        if self.renew(&pod, node) {
            return None;
        }
        let before = self.places.get(&pod.uid).map(|place| place.node.clone());
        let old = before.as_deref().and_then(|name| self.load(name)?.pod(&pod.uid).cloned());
        let shrunk = old.is_some_and(|old| !pod.requests.covers(&old.requests));
        self.remove_pod(&pod.uid);
        self.place(pod, node, false);
        before.filter(|before| before != node || shrunk)
    }

    /// Updates a Pod that stays on its node with the same resources: most Pod events are status changes. False: it must be counted
    /// again.
    fn renew(&mut self, pod: &Arc<PodInfo>, node: &str) -> bool {
        let Some(place) = self.places.get_mut(&pod.uid).filter(|place| place.node == node) else { return false };
        let load = match self.slots.get(node) {
            Some(&slot) => self.nodes[slot].as_mut().map(|node| &mut node.load),
            None => self.elsewhere.get_mut(node),
        };
        let renewed = load.is_some_and(|load| load.renew(pod));
        place.assumed &= !renewed;
        renewed
    }

    /// A Pod on a node, by uid.
    pub fn pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.load(&self.places.get(uid)?.node)?.pod(uid)
    }

    /// Counts a Pod on a node before its binding is written.
    pub fn assume(&mut self, pod: Arc<PodInfo>, node: &str) {
        self.remove_pod(&pod.uid);
        self.place(pod, node, true);
    }

    /// Reverts an assumption; returns the assumed node, unless the binding has been observed since.
    pub fn forget(&mut self, uid: &str) -> Option<String> {
        if self.places.get(uid)?.assumed { self.remove_pod(uid) } else { None }
    }

    pub fn is_assumed(&self, uid: &str) -> bool {
        self.places.get(uid).is_some_and(|place| place.assumed)
    }

    /// Removes a Pod from its node, which is returned.
    pub fn remove_pod(&mut self, uid: &str) -> Option<String> {
        let Placement { node, .. } = self.places.remove(uid)?;
        if let Some(slot) = self.slots.get(&node) {
            self.take(*slot, uid);
        } else if let Some(load) = self.elsewhere.get_mut(&node) {
            load.remove(uid);
            if load.pod_count() == 0 {
                self.elsewhere.remove(&node);
            }
        }
        Some(node)
    }

    fn take(&mut self, slot: usize, uid: &str) {
        let Some(Some(node)) = self.nodes.get_mut(slot) else { return };
        if let Some(pod) = node.load.remove(uid) {
            self.index.left(slot, &pod, &self.namespaces);
        }
    }

    fn give(&mut self, slot: usize, pod: Arc<PodInfo>) {
        let Some(Some(node)) = self.nodes.get_mut(slot) else { return };
        self.index.came(slot, &pod, &self.namespaces);
        node.load.add(pod);
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// All nodes, starting after the last search.
    pub fn in_turn(&self) -> impl Iterator<Item = &NodeInfo> {
        let order = self.order.clone().unwrap_or_else(|| self.zones_in_turn());
        let start = self.next % order.len().max(1);
        (0..order.len()).filter_map(move |n| self.at(order[(start + n) % order.len()]))
    }

    /// The slots in search order, and the starting index.
    pub(super) fn search_order(&mut self) -> (Arc<[usize]>, usize) {
        if self.order.is_none() {
            self.order = Some(self.zones_in_turn());
        }
        let order = self.order.clone().unwrap_or_default();
        let start = self.next % order.len().max(1);
        (order, start)
    }

    /// The next search starts this many nodes further on.
    pub fn advance(&mut self, visited: usize) {
        if !self.is_empty() {
            self.next = (self.next + visited) % self.len();
        }
    }

    /// One node of each zone, then the next of each: any prefix covers all zones.
    fn zones_in_turn(&self) -> Arc<[usize]> {
        let mut zones: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for node in self.nodes() {
            zones.entry(zone(&node.node)).or_default().push(node.slot);
        }
        let longest = zones.values().map(Vec::len).max().unwrap_or(0);
        (0..longest).flat_map(|n| zones.values().filter_map(move |zone| zone.get(n).copied())).collect()
    }

    fn load(&self, node: &str) -> Option<&Load> {
        self.node(node).map(|node| &node.load).or_else(|| self.elsewhere.get(node))
    }

    fn place(&mut self, pod: Arc<PodInfo>, node: &str, assumed: bool) {
        self.nominations.settle(&pod.uid, node);
        self.places.insert(pod.uid.clone(), Placement { node: node.to_owned(), assumed });
        match self.slots.get(node) {
            Some(&slot) => {
                term_keys(&pod).for_each(|key| self.prepare_topology(&key));
                self.give(slot, pod);
            }
            None => self.elsewhere.entry(node.to_owned()).or_default().add(pod),
        }
    }

    /// Returns whether its labels changed.
    pub fn set_namespace(&mut self, name: &str, namespace: Option<&Namespace>) -> bool {
        let labels = namespace.map(|namespace| namespace.metadata.labels.clone().unwrap_or_default());
        if self.namespaces.0.get(name) == labels.as_ref() {
            return false;
        }
        match labels {
            Some(labels) => self.namespaces.0.insert(name.to_owned(), labels),
            None => self.namespaces.0.remove(name),
        };
        self.index.namespaces_changed();
        true
    }

    /// How many nodes have an image.
    pub fn nodes_with_image(&self, name: &str) -> usize {
        self.images.get(name).copied().unwrap_or(0)
    }

    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Has what Pods on nodes say of a Pod like this one judged once.
    pub fn prepare_carried(&mut self, pod: &PodInfo) {
        self.index.prepare_carried(pod, &self.namespaces);
    }

    /// Has a label of nodes counted from now on.
    pub fn prepare_topology(&mut self, key: &str) {
        // Pods choose the keys: those that no node has would take the places of others.
        if self.index.has_label(key) && !self.index.knows_topology(key) {
            let topology = self.read_topology(key);
            self.index.add_topology(key, topology);
        }
    }

    /// The values of a node label.
    pub fn topology(&self, key: &str) -> Cow<'_, Topology> {
        self.index.topology(key).map_or_else(|| Cow::Owned(self.read_topology(key)), Cow::Borrowed)
    }

    fn read_topology(&self, key: &str) -> Topology {
        let mut topology = Topology::default();
        if !self.index.has_label(key) {
            return topology;
        }
        for (slot, node) in self.nodes.iter().enumerate() {
            topology.set(slot, node.as_ref().and_then(|node| node.label(key)));
        }
        topology
    }

    /// Counts the Pods of a class from now on.
    pub fn prepare_class(&mut self, class: &Class) {
        if !self.index.knows_class(class) && Index::may_keep(class) {
            let counts = self.count_class(class);
            self.index.add_class(class, counts);
        }
    }

    /// The number of Pods of a class, by slot; missing slots have none.
    pub fn class(&self, class: &Class) -> Cow<'_, [u32]> {
        self.index.class(class).unwrap_or_else(|| Cow::Owned(self.count_class(class)))
    }

    fn count_class(&self, class: &Class) -> Vec<u32> {
        let mut judged = HashMap::new();
        let is_long = class.is_long();
        let mut matches = |pod: &PodInfo| {
            let judge = || class.matches(pod, &self.namespaces);
            if !is_long {
                return judge();
            }
            // Pods alike are judged once.
            let of = (pod.key.namespace.clone(), pod.pod.metadata.labels.clone(), pod.is_terminating());
            *judged.entry(of).or_insert_with(judge)
        };
        let mut count =
            |node: &NodeInfo| node.load.pods().filter(|pod| matches(pod)).count().try_into().unwrap_or(u32::MAX);
        self.nodes.iter().map(|node| node.as_ref().map_or(0, &mut count)).collect()
    }
}

/// The node labels in a Pod's affinity terms.
fn term_keys(pod: &PodInfo) -> impl Iterator<Item = String> {
    pod.affinity.carried.iter().map(|carried| carried.term.key.clone())
}

fn label_keys(node: &Node) -> impl Iterator<Item = &String> {
    node.metadata.labels.iter().flat_map(|labels| labels.keys())
}

/// The region and zone of a node.
fn zone(node: &Node) -> Option<(String, String)> {
    let labels = node.metadata.labels.as_ref()?;
    let get = |key: &str| labels.get(key).cloned().unwrap_or_default();
    Some((get("topology.kubernetes.io/region"), get("topology.kubernetes.io/zone")))
}
