//! Nominated Pods, for which room is being made on a node.

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
    given_up: Vec<(Arc<PodInfo>, String)>,
}

impl Nominations {
    pub fn set(&mut self, pod: Arc<PodInfo>, node: &str) {
        self.settle(&pod.uid, node);
        self.nodes.insert(pod.uid.clone(), node.to_owned());
        self.pods.entry(node.to_owned()).or_default().insert(pod.uid.clone(), pod);
    }

    /// Updates a Pod, if it is nominated.
    pub fn renew(&mut self, pod: &Arc<PodInfo>) {
        let pods = self.nodes.get(&pod.uid).and_then(|node| self.pods.get_mut(node));
        if let Some(known) = pods.and_then(|pods| pods.get_mut(&pod.uid)) {
            *known = pod.clone();
        }
    }

    /// Removes a Pod's nomination: others may take the room.
    pub fn remove(&mut self, uid: &str) {
        let taken = self.take(uid);
        self.given_up.extend(taken);
    }

    /// The Pod was placed on a node, and needs no nomination any more.
    pub fn settle(&mut self, uid: &str, node: &str) {
        let taken = self.take(uid).filter(|(_, nominated)| nominated != node);
        self.given_up.extend(taken);
    }

    /// The Pods that have lost their nomination since the last call, with their nodes.
    pub fn take_given_up(&mut self) -> Vec<(Arc<PodInfo>, String)> {
        std::mem::take(&mut self.given_up)
    }

    fn take(&mut self, uid: &str) -> Option<(Arc<PodInfo>, String)> {
        let node = self.nodes.remove(uid)?;
        let pods = self.pods.get_mut(&node)?;
        let pod = pods.remove(uid);
        if pods.is_empty() {
            self.pods.remove(&node);
        }
        Some((pod?, node))
    }

    /// A Pod's nominated node.
    pub fn of(&self, uid: &str) -> Option<&str> {
        self.nodes.get(uid).map(String::as_str)
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The Pods that are nominated for a node.
    pub fn on(&self, node: &str) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.pods.get(node).into_iter().flat_map(BTreeMap::values)
    }

    /// Those nominated for a node that take precedence over another Pod.
    pub fn rivals<'a>(&'a self, pod: &'a PodInfo, node: &str) -> impl Iterator<Item = &'a Arc<PodInfo>> {
        self.on(node).filter(|other| other.priority >= pod.priority && other.uid != pod.uid)
    }
}
