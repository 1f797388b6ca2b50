//! One node and what is on it, as the rules ask about it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, Taint};

use super::pod::{HostPort, PodInfo};
use podwright_api::pod_resources::{self, Amounts};

/// One node and what is on it.
#[derive(Clone)]
pub struct NodeInfo {
    /// Its number in the cluster, the same for as long as it exists.
    pub slot: usize,
    pub node: Arc<Node>,
    pub name: String,
    pub allocatable: Amounts,
    pub max_pods: i64,
    pub unschedulable: bool,
    pub taints: Vec<Taint>,
    /// The sizes of the images it has, by each of their names.
    pub images: Arc<HashMap<String, i64>>,
    pub load: Load,
    /// Nothing, but in a copy of which a question is asked.
    pub supposed: Supposed,
}

/// Which Pods a node's load has beside those that the cluster's counts have there, and which it lacks: whoever asks those
/// counts for more than the node itself has to add this.
#[derive(Clone, Default)]
pub struct Supposed {
    came: Vec<Arc<PodInfo>>,
    left: Vec<Arc<PodInfo>>,
}

impl Supposed {
    /// The sum of something over those that came, less that over those that left.
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

    /// The node with such a Pod on it, for a question.
    pub fn suppose(&mut self, pod: &Arc<PodInfo>) {
        let Supposed { came, left } = &mut self.supposed;
        match left.iter().position(|other| other.uid == pod.uid) {
            Some(place) => drop(left.swap_remove(place)),
            None => came.push(pod.clone()),
        }
        self.load.add(pod.clone());
    }

    /// The node without one of its Pods, for a question.
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

/// What the Pods of one node take.
#[derive(Clone, Default)]
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

    /// Takes in the newer form of a Pod that counts for all that the one here does. False: it does not, or is not here.
    pub(super) fn renew(&mut self, pod: &Arc<PodInfo>) -> bool {
        let known = self.pods.get_mut(&pod.uid).filter(|known| known.counts_as(pod));
        known.map(|known| *known = pod.clone()).is_some()
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let pod = self.pods.remove(uid)?;
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
        Some(pod)
    }
}
