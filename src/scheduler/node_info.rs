//! One node and what is on it, as the rules ask about it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, Taint};

use super::pod::{HostPort, PodInfo};
use crate::api::pod_resources::{self, Amounts};

/// One node and what is on it.
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
    pub images: HashMap<String, i64>,
    pub load: Load,
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
            images: images.collect(),
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
