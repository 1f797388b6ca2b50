//! The Pods for which room is being made on a node.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::pod::PodInfo;

/// See the module.
#[derive(Default)]
pub struct Nominations {
    /// Each Pod's node, by uid.
    nodes: HashMap<String, String>,
    /// The Pods of each node, by uid.
    pods: HashMap<String, BTreeMap<String, Arc<PodInfo>>>,
}

impl Nominations {
    pub fn set(&mut self, pod: Arc<PodInfo>, node: &str) {
        self.remove(&pod.uid);
        self.nodes.insert(pod.uid.clone(), node.to_owned());
        self.pods.entry(node.to_owned()).or_default().insert(pod.uid.clone(), pod);
    }

    pub fn remove(&mut self, uid: &str) {
        let Some(node) = self.nodes.remove(uid) else { return };
        if let Some(pods) = self.pods.get_mut(&node) {
            pods.remove(uid);
            if pods.is_empty() {
                self.pods.remove(&node);
            }
        }
    }

    /// The node on which room is being made for a Pod.
    pub fn of(&self, uid: &str) -> Option<&str> {
        self.nodes.get(uid).map(String::as_str)
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Those for which room is being made on a node.
    pub fn on(&self, node: &str) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.pods.get(node).into_iter().flat_map(BTreeMap::values)
    }
}
