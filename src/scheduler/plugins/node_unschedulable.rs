//! NodeUnschedulable: a cordoned node only accepts Pods that tolerate it.

use k8s_openapi::api::core::v1::Taint;

use super::{
    super::framework::{ClusterEventKind, Plugin, Point, PreFilter, Rejection, Row},
    plain,
    taint_toleration::tolerated,
};
use crate::{cluster::Cluster, pod::PodInfo};

pub const ROW: Row = Row {
    name: "NodeUnschedulable",
    weight: 0,
    points: &[Point::Filter],
    events_to_register: &[ClusterEventKind::NodeAdded, ClusterEventKind::NodeUnschedulable],
    make: plain::<NodeUnschedulable>,
};

#[derive(Default)]
struct NodeUnschedulable;

impl Plugin for NodeUnschedulable {
    fn pre_filter<'c>(&'c self, pod: &'c PodInfo, _: &'c Cluster) -> PreFilter<'c> {
        let taint =
            Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() };
        if tolerated(pod, &taint) {
            return PreFilter::Skip;
        }
        PreFilter::Check(Box::new(|node| node.unschedulable.then(|| Rejection::always("node(s) were unschedulable"))))
    }
}
