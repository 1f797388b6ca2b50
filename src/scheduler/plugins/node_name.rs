//! NodeName: a Pod with a node name can only use that node.

use super::{
    super::framework::{ClusterEventKind, Plugin, Point, PreFilter, Rejection, Row},
    plain,
};
use crate::{cluster::Cluster, pod::PodInfo, pod::node_name};

pub const ROW: Row = Row {
    name: "NodeName",
    weight: 0,
    points: &[Point::Filter],
    events_to_register: &[ClusterEventKind::NodeAdded],
    make: plain::<NodeName>,
};

#[derive(Default)]
struct NodeName;

impl Plugin for NodeName {
    fn pre_filter<'c>(&'c self, pod: &'c PodInfo, _: &'c Cluster) -> PreFilter<'c> {
        let Some(wanted) = node_name(&pod.pod) else { return PreFilter::Skip };
        PreFilter::Check(Box::new(move |node| {
            (node.name != wanted).then(|| Rejection::always("node(s) didn't match the requested node name"))
        }))
    }
}
