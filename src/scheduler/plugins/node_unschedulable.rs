//! NodeUnschedulable: a cordoned node takes no Pods but those that tolerate its being so.

use k8s_openapi::api::core::v1::Taint;

use super::{
    super::framework::{Plugin, Subject},
    taint_toleration::tolerated,
};
use crate::scheduler::{cluster::NodeInfo, queue::Change};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeUnschedulable",
    filter: Some(filter),
    score: None,
    wakes: |change| matches!(change, Change::NodeAdded | Change::NodeUnschedulable),
};

fn filter(subject: &Subject<'_>, node: &NodeInfo) -> Vec<String> {
    if node.node.spec.as_ref().and_then(|s| s.unschedulable) != Some(true) {
        return Vec::new();
    }
    let taint =
        Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() };
    if tolerated(subject.pod, &taint) { Vec::new() } else { vec!["node(s) were unschedulable".into()] }
}
