//! NodeResourcesFit: what the Pod requests must be free on the node.

use super::super::framework::{Plugin, Subject};
use crate::scheduler::{cluster::NodeInfo, queue::Change};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeResourcesFit",
    filter: Some(filter),
    score: None,
    wakes: |change| matches!(change, Change::NodeAdded | Change::NodeAllocatable | Change::PodRemoved),
};

fn filter(subject: &Subject<'_>, node: &NodeInfo) -> Vec<String> {
    let mut why = Vec::new();
    if node.pod_count() + 1 > node.max_pods {
        why.push("Too many pods".to_owned());
    }
    let named = ["cpu", "memory", "ephemeral-storage"];
    for name in named.into_iter().chain(subject.requests.others.keys().map(String::as_str)) {
        let wanted = subject.requests.get(name);
        if wanted > 0 && wanted > node.allocatable.get(name) - node.requested.get(name) {
            why.push(format!("Insufficient {name}"));
        }
    }
    why
}
