//! NodePorts: no two Pods of a node share a host port.

use std::collections::{HashMap, HashSet};

use super::{
    super::framework::{ClusterEvent, ClusterEventKind, Plugin, Point, PreFilter, QueueingHint, Rejection, Row},
    plain,
};
use crate::{
    cluster::Cluster,
    pod::{HostPort, PodInfo},
};

pub const ROW: Row = Row {
    name: "NodePorts",
    weight: 0,
    points: &[Point::PreFilter, Point::Filter],
    events_to_register: &[ClusterEventKind::NodeAdded, ClusterEventKind::PodRemoved],
    make: plain::<NodePorts>,
};

#[derive(Default)]
struct NodePorts;

/// The addresses for each port that a Pod wants, of which there may be many, as of those on the node.
struct Wanted<'a>(HashMap<(&'a str, i32), HashSet<&'a str>>);

impl<'a> Wanted<'a> {
    fn by(pod: &'a PodInfo) -> Wanted<'a> {
        let mut wanted: HashMap<_, HashSet<&str>> = HashMap::new();
        for (address, protocol, port) in &pod.ports {
            wanted.entry((&**protocol, *port)).or_default().insert(address);
        }
        Wanted(wanted)
    }

    /// The wildcard address conflicts with every address.
    fn collides(&self, (address, protocol, port): &HostPort) -> bool {
        const ANY: [&str; 2] = ["0.0.0.0", "::"];
        let at = self.0.get(&(&**protocol, *port));
        at.is_some_and(|at| {
            ANY.contains(&&**address) || at.contains(&**address) || ANY.iter().any(|any| at.contains(any))
        })
    }
}

impl Plugin for NodePorts {
    fn pre_filter<'c>(&'c self, pod: &'c PodInfo, _: &'c Cluster) -> PreFilter<'c> {
        if pod.ports.is_empty() {
            return PreFilter::Skip;
        }
        let wanted = Wanted::by(pod);
        PreFilter::Check(Box::new(move |node| {
            let taken = node.load.ports.keys().any(|used| wanted.collides(used));
            taken.then(|| Rejection::now("node(s) didn't have free ports for the requested pod ports"))
        }))
    }

    fn queueing_hint(&self, pod: &PodInfo, change: &ClusterEvent) -> QueueingHint {
        match change {
            ClusterEvent::PodRemoved(other) => {
                let wanted = Wanted::by(pod);
                QueueingHint::here(other.ports.iter().any(|port| wanted.collides(port)))
            }
            _ => QueueingHint::Here,
        }
    }
}
