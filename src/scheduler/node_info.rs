//! One node and its Pods, for plugins.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, Taint};

use super::pod::{HostPort, PodInfo};
use podwright_api::pod_resources::{self, Amounts};

/// One node and its Pods.
#[derive(Clone)]
pub struct NodeInfo {
    /// Its number in the cluster, fixed while it exists.
    pub slot: usize,
    pub node: Arc<Node>,
    pub name: String,
    pub allocatable: Amounts,
    pub max_pods: i64,
    pub unschedulable: bool,
    pub taints: Vec<Taint>,
    /// The sizes of its images, by each of their names.
    pub images: Arc<HashMap<String, i64>>,
    pub load: Load,
    /// Empty, except in a hypothetical copy.
    pub supposed: Supposed,
}

/// How a hypothetical node differs from the cluster's counts: added and removed Pods. Queries of these counts beyond the node
/// itself must take this into account.
#[derive(Clone, Default)]
pub struct Supposed {
    came: Vec<Arc<PodInfo>>,
    left: Vec<Arc<PodInfo>>,
}

impl Supposed {
    /// The sum over the added Pods, minus that over the removed ones.
    pub fn sum(&self, of: impl Fn(&PodInfo) -> i64) -> i64 {
        let total = |pods: &[Arc<PodInfo>]| pods.iter().map(|pod| of(pod)).sum::<i64>();
        total(&self.came) - total(&self.left)
    }

    pub fn is_empty(&self) -> bool {
        self.came.is_empty() && self.left.is_empty()
    }
}

impl NodeInfo {
    pub(super) fn new(slot: usize, node: Arc<Node>, load: Load) -> NodeInfo {
        let (allocatable, max_pods) = pod_resources::allocatable(&node);
        let spec = node.spec.as_ref();
        let images = node.status.as_ref().and_then(|status| status.images.as_ref()).into_iter().flatten();
        let images = images.flat_map(|image| {
            let size = image.size_bytes.unwrap_or(0);
            image.names.iter().flatten().map(move |name| (name.clone(), size))
        });
        NodeInfo {
            slot,
            images: Arc::new(images.collect()),
            name: node.metadata.name.clone().unwrap_or_default(),
            allocatable,
            max_pods,
            unschedulable: spec.and_then(|s| s.unschedulable) == Some(true),
            taints: spec.and_then(|s| s.taints.clone()).unwrap_or_default(),
            node,
            load,
            supposed: Supposed::default(),
        }
    }

    /// Adds a hypothetical Pod.
    pub fn suppose(&mut self, pod: &Arc<PodInfo>) {
        let Supposed { came, left } = &mut self.supposed;
        match left.iter().position(|other| other.uid == pod.uid) {
            Some(place) => drop(left.swap_remove(place)),
            None => came.push(pod.clone()),
        }
        self.load.add(pod.clone());
    }

    /// Removes a Pod hypothetically.
    pub fn suppose_gone(&mut self, uid: &str) {
        let Some(pod) = self.load.remove(uid) else { return };
        let Supposed { came, left } = &mut self.supposed;
        match came.iter().position(|other| other.uid == uid) {
            Some(place) => drop(came.swap_remove(place)),
            None => left.push(pod),
        }
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.node.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }
}

/// The resources used on one node.
#[derive(Clone, Default)]
pub struct Load {
    pub requested: Amounts,
    /// Like `requested`, with assumptions for Pods without requests; for scores.
    pub assumed: Amounts,
    /// How many Pods use each port: the scheduler places only one, but others may not.
    pub ports: BTreeMap<HostPort, usize>,
    pods: HashMap<String, Arc<PodInfo>>,
}

impl Load {
    pub fn pods(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.pods.values()
    }
    pub fn pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pods.get(uid)
    }
    pub fn pod_count(&self) -> i64 {
        self.pods.len() as i64
    }

    pub(super) fn add(&mut self, pod: Arc<PodInfo>) {
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

    /// Updates a Pod with the same resources. False: they differ, or it is not here.
    pub(super) fn renew(&mut self, pod: &Arc<PodInfo>) -> bool {
        let known = self.pods.get_mut(&pod.uid).filter(|known| known.counts_as(pod));
        known.map(|known| *known = pod.clone()).is_some()
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let pod = self.pods.remove(uid)?;
        if self.requested.is_saturated() || self.assumed.is_saturated() {
            // A saturated sum cannot be undone by subtraction.
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
        Some(pod)
    }
}
