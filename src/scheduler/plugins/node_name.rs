//! NodeName: a Pod that names a node gets that one or none.

use super::super::framework::{Plugin, Reason};
use crate::scheduler::{cluster::NodeInfo, pod::PodInfo, pod::node_name, queue::Change};

pub const PLUGIN: Plugin =
    Plugin { name: "NodeName", filter: Some(filter), score: None, wakes: |change| *change == Change::NodeAdded };

fn filter(pod: &PodInfo, node: &NodeInfo) -> Vec<Reason> {
    match node_name(&pod.pod) {
        Some(wanted) if wanted != node.name => vec!["node(s) didn't match the requested node name".into()],
        _ => Vec::new(),
    }
}
