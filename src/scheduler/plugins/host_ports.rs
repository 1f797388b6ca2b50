//! NodePorts: no two Pods of a node share a host port.

use super::{
    super::framework::{Change, Kind, Plugin, Point, PreFilter, Rejection, Row, Wakes},
    plain,
};
use crate::scheduler::{
    cluster::Cluster,
    pod::{HostPort, PodInfo},
};

pub const ROW: Row = Row {
    name: "NodePorts",
    weight: 0,
    points: &[Point::PreFilter, Point::Filter],
    hears: &[Kind::NodeAdded, Kind::PodRemoved],
    make: plain::<NodePorts>,
};

#[derive(Default)]
struct NodePorts;

/// The wildcard address collides with every address.
fn collide(a: &HostPort, b: &HostPort) -> bool {
    const ANY: [&str; 2] = ["0.0.0.0", "::"];
    let any = |address: &str| ANY.contains(&address);
    a.2 == b.2 && a.1 == b.1 && (a.0 == b.0 || any(&a.0) || any(&b.0))
}

impl Plugin for NodePorts {
    fn pre_filter<'c>(&'c self, pod: &'c PodInfo, _: &'c Cluster) -> PreFilter<'c> {
        if pod.ports.is_empty() {
            return PreFilter::Skip;
        }
        PreFilter::Check(Box::new(|node| {
            let taken = pod.ports.iter().any(|wanted| node.load.ports.keys().any(|used| collide(wanted, used)));
            taken.then(|| Rejection::now("node(s) didn't have free ports for the requested pod ports"))
        }))
    }

    fn wakes(&self, pod: &PodInfo, change: &Change) -> Wakes {
        let frees = |other: &PodInfo| pod.ports.iter().any(|a| other.ports.iter().any(|b| collide(a, b)));
        match change {
            Change::PodRemoved(other) => Wakes::here(frees(other)),
            _ => Wakes::Here,
        }
    }
}
