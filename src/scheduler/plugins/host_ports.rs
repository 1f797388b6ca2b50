//! NodePorts: no two Pods of a node share a host port.

use super::super::framework::{Plugin, Reason};
use crate::scheduler::{
    cluster::NodeInfo,
    pod::{HostPort, PodInfo},
    queue::Change,
};

pub const PLUGIN: Plugin = Plugin {
    name: "NodePorts",
    filter: Some(filter),
    score: None,
    wakes: |change| matches!(change, Change::NodeAdded | Change::PodRemoved),
};

/// The wildcard address collides with every address.
fn collide(a: &HostPort, b: &HostPort) -> bool {
    const ANY: [&str; 2] = ["0.0.0.0", "::"];
    let any = |address: &str| ANY.contains(&address);
    a.2 == b.2 && a.1 == b.1 && (a.0 == b.0 || any(&a.0) || any(&b.0))
}

fn filter(pod: &PodInfo, node: &NodeInfo) -> Vec<Reason> {
    let taken = pod.ports.iter().any(|wanted| node.load.ports.keys().any(|used| collide(wanted, used)));
    if taken { vec!["node(s) didn't have free ports for the requested pod ports".into()] } else { Vec::new() }
}
