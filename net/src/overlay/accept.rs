//! What of other Nodes' objects is believed: no range and no address that would draw what is not its node's.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{Own, Peer};

/// No Pod's and no machine's addresses: unspecified, loopback, link-local, multicast, broadcast, and IPv4 within IPv6.
const SPECIAL: [IpNet; 10] = [
    v4([0, 0, 0, 0], 32),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([224, 0, 0, 0], 4),
    v4([255, 255, 255, 255], 32),
    v6(0, 128),
    v6(1, 128),
    v6(0xffff_0000_0000, 96),
    v6(0xfe80 << 112, 10),
    v6(0xff00 << 112, 8),
];

const fn v4([a, b, c, d]: [u8; 4], prefix: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix))
}

const fn v6(bits: u128, prefix: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::from_bits(bits), prefix))
}

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
        if range.prefix_len() == 0 || is_special(range) {
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
    !(is_own || is_special(&IpNet::from(*address)) || ranges.any(|range| range.contains(address)))
}

/// Whether any of a range is.
fn is_special(range: &IpNet) -> bool {
    SPECIAL.iter().any(|special| overlap(special, range))
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}
