//! What a Pod's link and its ends are called and addressed by.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::Family;

/// The Pod's default gateway: an address of no link; the permanent neighbour makes it reachable.
pub(super) const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
pub(super) const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// The name of a Pod's link, inside the Pod.
pub const POD_LINK: &str = "eth0";
/// Hardware address of the host's end of every Pod link (locally administered).
pub(super) const HOST_MAC: [u8; 6] = [0xee; 6];
/// The prefix of our links' aliases: `podwright/<node>/<owner>`.
pub(super) const ALIAS: &str = "podwright";

/// The index of `lo` in every namespace.
pub(super) const LOOPBACK: u32 = 1;

/// The name of the host's end: `pw` and twelve digits of the Pod's uid, or of a hash if it has none.
pub fn link_name(owner: &str) -> String {
    let digits: String = owner.chars().filter(|c| *c != '-').take(12).collect();
    if digits.len() == 12 && digits.chars().all(|c| c.is_ascii_hexdigit()) {
        return format!("pw{}", digits.to_ascii_lowercase());
    }
    format!("pw{:012x}", crate::dataplane::ids::fnv(owner.as_bytes()) >> 16)
}

/// Whether a link of the node's network is named like a Pod's.
pub fn is_pod_link(name: &str) -> bool {
    name.strip_prefix("pw").is_some_and(|digits| digits.len() == 12 && digits.chars().all(|c| c.is_ascii_hexdigit()))
}

/// The hardware address of the Pod's end: locally administered, from the owner's hash.
pub(super) fn pod_mac(owner: &str) -> [u8; 6] {
    let hash = crate::dataplane::ids::fnv(owner.as_bytes()).to_be_bytes();
    [0x02, hash[1], hash[2], hash[3], hash[4], hash[5]]
}

/// The gateway of a family, and the net that its default route covers.
pub(super) fn default_of(family: Family) -> (IpAddr, IpNet) {
    match family {
        Family::V4 => (GATEWAY_V4.into(), IpNet::V4(ipnet::Ipv4Net::default())),
        Family::V6 => (GATEWAY_V6.into(), IpNet::V6(ipnet::Ipv6Net::default())),
    }
}
