//! NodeUnschedulable: a cordoned node takes no Pods but those that tolerate its being so.

use k8s_openapi::api::core::v1::Taint;

use super::{
    super::framework::{Plugin, Reason},
    taint_toleration::tolerated,
};
use crate::scheduler::{cluster::NodeInfo, pod::PodInfo, queue::Change};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeUnschedulable",
    filter: Some(filter),
    score: None,
    wakes: |change| matches!(change, Change::NodeAdded | Change::NodeUnschedulable),
};

fn filter(pod: &PodInfo, node: &NodeInfo) -> Vec<Reason> {
    if !node.unschedulable {
        return Vec::new();
    }
    let taint =
        Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() };
    if tolerated(pod, &taint) { Vec::new() } else { vec!["node(s) were unschedulable".into()] }
}
