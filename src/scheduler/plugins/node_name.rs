//! NodeName: a Pod that names a node gets that one or none.

use super::super::framework::{Plugin, Subject};
use crate::scheduler::{cluster::NodeInfo, queue::Change};

pub const PLUGIN: Plugin =
    Plugin { name: "NodeName", filter: Some(filter), score: None, wakes: |change| *change == Change::NodeAdded };

fn filter(subject: &Subject<'_>, node: &NodeInfo) -> Vec<String> {
    match subject.pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty()) {
        Some(wanted) if wanted != node.name() => vec!["node(s) didn't match the requested node name".into()],
        _ => Vec::new(),
    }
}
