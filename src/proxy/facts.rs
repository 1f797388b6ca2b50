//! Facts about the cluster's nodes for the rules.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use podwright_api::node_networks;
use podwright_net::IpNet;
use podwright_net::dataplane::NodeFacts;
use podwright_net::overlay::Peer;

/// The facts of the node named `own`, from all Nodes and the cluster's Service ranges. An address of `dns` outside all of them is
/// treated like a range: no external address, host port or node port covers it, and its clients are rate-limited. One of the node's
/// own addresses is not, since its host ports and node ports are there. `addresses`: the node's, before its Node lists them.
pub fn facts(
    nodes: &[impl AsRef<Node>],
    own: &str,
    addresses: &[IpAddr],
    service_ranges: &[IpNet],
    dns: &[IpAddr],
) -> NodeFacts {
    let said = nodes.iter().map(AsRef::as_ref).filter(|node| node.metadata.name.as_deref() == Some(own));
    let mut own_addresses: Vec<IpAddr> = said.flat_map(node_addresses).collect();
    own_addresses.extend(addresses);
    let is_known = |address: &&IpAddr| {
        own_addresses.contains(*address) || service_ranges.iter().any(|range| range.contains(*address))
    };
    let beside = dns.iter().filter(|address| !is_known(address)).copied().map(IpNet::from);
    let service_ranges = service_ranges.iter().copied().chain(beside).collect();
    let cluster_ranges = own_addresses.iter().copied().map(IpNet::from).collect();
    let mut facts = NodeFacts { service_ranges, cluster_ranges, ..NodeFacts::default() };
    for node in nodes.iter().map(AsRef::as_ref) {
        let ranges = pod_ranges(node);
        if node.metadata.name.as_deref() == Some(own) {
            facts.pod_ranges = ranges.clone();
            facts.networks = node_networks::published(node);
        } else {
            facts.other_nodes.extend(node_addresses(node).into_iter().map(IpNet::from));
        }
        facts.cluster_ranges.extend(ranges);
    }
    facts.peers = peers(nodes, own);
    for ranges in [&mut facts.cluster_ranges, &mut facts.other_nodes] {
        ranges.sort();
        ranges.dedup();
    }
    facts
}

/// The other nodes, those first that were there first: of two that want one range it has that.
fn peers(nodes: &[impl AsRef<Node>], own: &str) -> Vec<Peer> {
    let age = |node: &Node| (node.metadata.creation_timestamp.clone(), node.metadata.uid.clone());
    let mut others: Vec<&Node> = nodes.iter().map(AsRef::as_ref).collect();
    others.retain(|node| node.metadata.name.as_deref() != Some(own));
    others.sort_by_cached_key(|node| age(node));
    let peer = |node: &Node| Peer {
        name: node.metadata.name.clone().unwrap_or_default(),
        addresses: node_addresses(node),
        pod_ranges: pod_ranges(node),
        networks: node_networks::published(node),
    };
    others.into_iter().map(peer).collect()
}

/// Where API servers are: as the Service `kubernetes` says, and as this node was told.
pub fn servers(slices: &[impl AsRef<EndpointSlice>], told: &[IpAddr]) -> Vec<IpNet> {
    let endpoints = slices.iter().flat_map(|slice| &slice.as_ref().endpoints);
    let addresses = endpoints.flat_map(|endpoint| &endpoint.addresses).filter_map(|address| address.parse().ok());
    let all: BTreeSet<IpAddr> = addresses.chain(told.iter().copied()).collect();
    all.into_iter().map(IpNet::from).collect()
}

/// The ranges of a node's Pods, as the control plane has given them.
pub fn pod_ranges(node: &Node) -> Vec<IpNet> {
    let spec = node.spec.as_ref();
    let all = spec.and_then(|s| s.pod_cidrs.clone()).unwrap_or_default();
    let one = spec.and_then(|s| s.pod_cidr.clone()).filter(|_| all.is_empty());
    all.iter().chain(&one).filter_map(|c| c.parse().ok()).collect()
}

/// A node's addresses, without names.
pub fn node_addresses(node: &Node) -> Vec<IpAddr> {
    let addresses = node.status.as_ref().and_then(|s| s.addresses.as_deref()).unwrap_or_default();
    addresses.iter().filter(|a| a.type_ != "Hostname").filter_map(|a| a.address.parse().ok()).collect()
}
