//! What the dataplane is asked to do: Services with their frontends and endpoint lists, as plain data.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use serde::Serialize;

use crate::Family;
use crate::overlay::{Peer, TunnelId};

/// A transport protocol that Services balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
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

/// All frontends of one Service on one node. It is replaced as a whole; the difference is what reaches the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Service {
    /// Of several that name one address and port, the most senior one has it.
    pub seniority: Seniority,
    /// Who shares with whom: the clients that Services of one tenant remember have one map together.
    pub tenant: String,
    pub ports: Vec<ServicePort>,
}

/// Who was there first: the less, the more senior. Names say nothing of it, since everybody chooses his own.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Seniority {
    /// Since when there is a Service, in seconds since the epoch.
    pub since: i64,
    /// Decides between those of one second; nobody chooses his own.
    pub id: String,
}

/// Who wants something: in order of seniority, then of keys.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    pub seniority: Seniority,
    /// The Service's.
    pub key: String,
}

/// An address and port that a Service names and another one has.
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
    /// Unique among the Service's ports, and stable: with the Service's key and the family it gives the ids.
    pub name: String,
    pub family: Family,
    pub protocol: Protocol,
    /// The port on the ClusterIP and on external addresses.
    pub port: u16,
    pub cluster_ips: Vec<IpAddr>,
    /// Addresses outside the cluster's ranges (load balancers, externalIPs).
    pub external_ips: Vec<IpAddr>,
    /// Addresses of the node's own that it is on alone: host ports with an address.
    pub host_ips: Vec<IpAddr>,
    pub node_port: Option<u16>,
    /// Who answers on the ClusterIP.
    pub internal: Backends,
    /// Who answers on node port and external addresses; `None`: the same as `internal`.
    pub external: Option<Backends>,
    /// Who answers there to callers from outside the cluster; `None`: the same as `external`.
    pub outside: Option<Backends>,
    /// How long a client keeps its endpoint; `None`: each connection gets a random one.
    pub affinity: Option<Duration>,
    /// Who may use the external addresses; empty: everybody.
    pub source_ranges: Vec<IpNet>,
}

/// An endpoint list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backends {
    pub endpoints: Vec<SocketAddr>,
    /// What happens while the list is empty.
    pub empty: Empty,
}

/// What a client of an empty list sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Empty {
    /// Connection refused: there is no endpoint anywhere.
    Refuse,
    /// Silence: there are endpoints, but a Local policy keeps this node from using them.
    Drop,
}

/// What the rules must know about the node and its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeFacts {
    /// The ranges of this node's own Pods.
    pub pod_ranges: Vec<IpNet>,
    /// The ranges of all Pods of the cluster, and this node's addresses: Pods reach these with their own source address, and no
    /// external IP covers them.
    pub cluster_ranges: Vec<IpNet>,
    /// What other nodes say that their addresses are: no external IP covers them. It is their word, so they get nothing by it: what
    /// Pods send there goes as to anywhere outside.
    pub other_nodes: Vec<IpNet>,
    /// Where API servers are: no external IP covers them, or nodes would call whoever owns a Service.
    pub servers: Vec<IpNet>,
    /// The ranges ClusterIPs come from: what no Service claims there is refused.
    pub service_ranges: Vec<IpNet>,
    /// The other nodes, those first that were there first.
    pub peers: Vec<Peer>,
    /// How the packets of tunnels are known, where there may be some. The network knows it, whoever tells the rest.
    pub tunnel: Option<TunnelId>,
}

impl NodeFacts {
    /// The ranges of all Pods: a range of one address is that of a node.
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
