//! What of other Nodes' objects is believed: no range and no address that would draw what is not its node's.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Own, Peer};

/// The ranges that have been accepted, of which no two overlap: the first address of each to its last one and whose it is.
#[derive(Default)]
pub(super) struct Accepted<'a>(BTreeMap<IpAddr, (IpAddr, &'a str)>);

impl<'a> Accepted<'a> {
    /// Takes a range of a peer. Who comes first has it.
    ///
    /// # Errors
    ///
    /// The range is others' as well; why, in words.
    pub fn take(&mut self, own: &Own, peer: &'a Peer, range: &IpNet) -> Result<(), String> {
        let refuse = |why: &str| Err(format!("the Pod range {range} of node {}: {why}", peer.name));
        if range.prefix_len() == 0 || is_special(&range.network()) {
            return refuse("it is no range for Pods");
        }
        if range.prefix_len() == range.max_prefix_len() {
            return refuse("it has no room for Pods beside the node itself");
        }
        if own.pod_ranges.iter().any(|of_own| overlap(of_own, range)) {
            return refuse("it overlaps this node's own");
        }
        if own.service_ranges.iter().any(|services| overlap(services, range)) {
            return refuse("it overlaps the Services'");
        }
        let on_links = own.uplinks.iter().flat_map(|link| &link.addresses).map(IpNet::addr);
        if own.addresses.iter().copied().chain(on_links).any(|address| range.contains(&address)) {
            return refuse("this node's own address is in it");
        }
        let (first, last) = (range.network(), range.broadcast());
        // Of the ranges that begin before this one ends only the last can reach into it.
        if let Some((_, (end, of))) = self.0.range(..=last).next_back()
            && end.is_ipv4() == first.is_ipv4()
            && *end >= first
        {
            return refuse(&format!("node {of} has it"));
        }
        self.0.insert(first, (last, &peer.name));
        Ok(())
    }
}

/// Whether a peer may be reached at an address: one that leads to no machine, to this one, or to Pods or Services, is none of its own.
pub(super) fn is_reachable_at(own: &Own, address: &IpAddr) -> bool {
    let on_links = own.uplinks.iter().flat_map(|link| &link.addresses).map(IpNet::addr);
    let is_own = own.addresses.iter().copied().chain(on_links).any(|it| it == *address);
    let mut ranges = own.service_ranges.iter().chain(&own.pod_ranges);
    !(is_own || is_special(address) || ranges.any(|range| range.contains(address)))
}

fn is_special(address: &IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local() || address.to_ipv4_mapped().is_some(),
    };
    address.is_unspecified() || address.is_loopback() || address.is_multicast() || is_link_local
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}
