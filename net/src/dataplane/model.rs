//! The dataplane's input: Services with their frontends and endpoint lists, as plain data.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use serde::Serialize;

use crate::Family;
use crate::overlay::{Peer, TunnelId};

/// A transport protocol supported by Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    pub const ALL: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

    /// Its number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => libc::IPPROTO_TCP as u8,
            Protocol::Udp => libc::IPPROTO_UDP as u8,
            Protocol::Sctp => libc::IPPROTO_SCTP as u8,
        }
    }
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }
}

/// All frontends of one Service on one node. Replaced as a whole; only differences reach the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Service {
    /// If several claim an address and port, the most senior one gets it.
    pub seniority: Seniority,
    /// The sharing unit: remembered clients of one tenant's Services share one map.
    pub tenant: String,
    pub ports: Vec<ServicePort>,
    /// Those of its external addresses on which nothing else is: what it does not serve there is refused.
    pub whole: Vec<IpAddr>,
}

/// Age: smaller is more senior. Names play no role, since users choose them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Seniority {
    /// The Service's creation time, in seconds since the epoch.
    pub since: i64,
    /// Breaks ties within one second; users cannot choose it.
    pub id: String,
}

/// A claimant: ordered by seniority, then by key.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    pub seniority: Seniority,
    /// The Service's.
    pub key: String,
}

/// An address and port that a Service claims and another one holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The Service's key.
    pub key: String,
    pub protocol: Protocol,
    /// `None`: on all addresses of the node.
    pub address: Option<IpAddr>,
    pub port: u16,
}

/// One port of a Service in one family. A dual-stack Service has two with the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServicePort {
    /// Unique among the Service's ports, and stable: determines the ids, together with the Service's key and the family.
    pub name: String,
    pub family: Family,
    pub protocol: Protocol,
    /// The port on the ClusterIP and on external addresses.
    pub port: u16,
    pub cluster_ips: Vec<IpAddr>,
    /// Addresses outside the cluster's ranges (load balancers, externalIPs).
    pub external_ips: Vec<IpAddr>,
    /// The node's own addresses to which it is restricted: host ports with an address.
    pub host_ips: Vec<IpAddr>,
    pub node_port: Option<u16>,
    /// Endpoints for the ClusterIP.
    pub internal: Backends,
    /// Endpoints for node port and external addresses; `None`: the same as `internal`.
    pub external: Option<Backends>,
    /// Endpoints there for callers outside the cluster; `None`: the same as `external`.
    pub outside: Option<Backends>,
    /// How long a client keeps its endpoint; `None`: each connection picks a random one.
    pub affinity: Option<Duration>,
    /// Permitted sources for the external addresses; empty: everyone.
    pub source_ranges: Vec<IpNet>,
}

/// An endpoint list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backends {
    pub endpoints: Vec<SocketAddr>,
    /// The behaviour while the list is empty.
    pub empty: Empty,
}

/// What clients of an empty list get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Empty {
    /// Connection refused: there is no endpoint anywhere.
    Refuse,
    /// Dropped: there are endpoints, but a Local policy excludes them on this node.
    Drop,
}

/// Facts about the node and its cluster that the rules need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeFacts {
    /// The ranges of this node's own Pods.
    pub pod_ranges: Vec<IpNet>,
    /// Those of them whose Pods are attached by plugins. The network knows it, whoever tells the rest.
    pub plugged: Vec<IpNet>,
    /// The ranges of all Pods of the cluster, and this node's addresses: Pods reach these with their own source address, and no
    /// external IP may cover them.
    pub cluster_ranges: Vec<IpNet>,
    /// Other nodes' self-reported addresses: no external IP may cover them. Since they are only claims, they grant nothing: Pods'
    /// traffic to them is treated like any traffic to the outside.
    pub other_nodes: Vec<IpNet>,
    /// Addresses of API servers: no external IP may cover them, or nodes would connect to a Service owner instead.
    pub servers: Vec<IpNet>,
    /// The ClusterIP ranges: unclaimed addresses in them are rejected.
    pub service_ranges: Vec<IpNet>,
    /// This node's addresses with the prefixes of their links, as its Node has them: what its peers know of them.
    pub networks: Vec<IpNet>,
    /// The other nodes, those first that were there first.
    pub peers: Vec<Peer>,
    /// How the packets of tunnels are known, where there may be some. The network knows it, whoever tells the rest.
    pub tunnel: Option<TunnelId>,
}

impl NodeFacts {
    /// The ranges of all Pods: a single-address range is a node.
    pub fn all_pods(&self) -> Vec<IpNet> {
        let wide = self.cluster_ranges.iter().filter(|range| range.prefix_len() < range.max_prefix_len());
        wide.chain(&self.pod_ranges).copied().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Whether an address is one of this node's.
    pub fn is_node(&self, address: &IpAddr) -> bool {
        self.cluster_ranges.contains(&IpNet::from(*address))
    }

    /// Whether an address is one of this node's own Pods.
    pub fn is_local(&self, address: &IpAddr) -> bool {
        self.pod_ranges.iter().any(|range| range.contains(address))
    }
}

impl Serialize for Family {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if *self == Family::V4 { "IPv4" } else { "IPv6" })
    }
}

/// A port for tests: 80 by TCP at an external address, with these endpoints.
#[cfg(test)]
pub(super) fn port_at(address: &str, endpoints: &[SocketAddr]) -> ServicePort {
    ServicePort {
        name: String::new(),
        family: Family::V4,
        protocol: Protocol::Tcp,
        port: 80,
        cluster_ips: Vec::new(),
        external_ips: vec![address.parse().unwrap()],
        host_ips: Vec::new(),
        node_port: None,
        internal: Backends { endpoints: endpoints.to_vec(), empty: Empty::Refuse },
        external: None,
        outside: None,
        affinity: None,
        source_ranges: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_all_nodes_are_charged_and_nodes_are_not() {
        let ranges = ["10.244.1.0/24", "10.244.2.0/24", "192.168.50.1/32", "fd00:1::/64", "fd00:9::1/128"];
        let facts = NodeFacts {
            pod_ranges: vec!["10.244.1.0/24".parse().unwrap()],
            cluster_ranges: ranges.iter().map(|r| r.parse().unwrap()).collect(),
            ..NodeFacts::default()
        };
        let charged: Vec<String> = facts.all_pods().iter().map(ToString::to_string).collect();
        assert_eq!(charged, ["10.244.1.0/24", "10.244.2.0/24", "fd00:1::/64"]);
    }
}
