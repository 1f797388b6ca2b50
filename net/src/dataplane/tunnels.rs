//! What of VXLAN is let through: a peer's packets from the peer's own machine, with a source among the peer's own Pods.
//!
//! VXLAN itself says nothing of who has sent a packet. So the outer source and the inner one are looked up together: a node that
//! forges the addresses of another's Pods is not heard, nor is who is no node. (Who can forge the outer source as well is heard:
//! only encryption keeps him out.) A Pod's own VXLAN would leave with its node's address, and be taken for the node's: it goes no
//! further, neither does what comes by a Service.
//!
//! The packets of tunnels are not tracked: no Service, host port or node port ever draws them.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;

use ipnet::IpNet;

use super::model::NodeFacts;
use super::table::{TABLE, nft_family};
use crate::Family;

/// Sets of who may send what, by the family of the inner packets: outer source . inner network, as [`key`] writes it. Bits are counted
/// from UDP's header on: 8 bytes of it, 8 of VXLAN's, 14 of Ethernet's.
pub const SETS: [(&str, &str); 2] =
    [("tunnels-v4", "set { typeof IP saddr . @th,336,32; }"), ("tunnels-v6", "set { typeof IP saddr . @th,304,128; }")];

/// `(name, hook)` of the chains that have rules while there are tunnels.
pub const CHAINS: [(&str, &str); 4] = [
    ("untracked-in", "type filter hook prerouting priority raw;"),
    ("untracked-out", "type filter hook output priority raw;"),
    ("tunnels-in", "type filter hook input priority -150;"),
    ("tunnels-forward", "type filter hook forward priority -30;"),
];

/// Replaces what the table of one family knows of tunnels.
pub fn script(facts: &NodeFacts, family: Family) -> String {
    let ip = nft_family(family);
    let mut text = String::new();
    for (set, _) in SETS {
        let _ = writeln!(text, "flush set {ip} {TABLE} {set}");
    }
    for (chain, _) in CHAINS {
        let _ = writeln!(text, "flush chain {ip} {TABLE} {chain}");
    }
    let Some(tunnel) = facts.tunnel else { return text };
    let mut lengths = BTreeSet::new();
    for (set, inner) in [("tunnels-v4", Family::V4), ("tunnels-v6", Family::V6)] {
        let mut elements = BTreeSet::new();
        for (from, range) in senders(facts, family, inner) {
            let Some((_, key)) = key(&range) else { continue };
            lengths.insert((inner, range.prefix_len()));
            elements.insert(format!("{from} . {key}"));
        }
        if !elements.is_empty() {
            let elements = elements.into_iter().collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "add element {ip} {TABLE} {set} {{ {elements} }}");
        }
    }
    let of_tunnels = format!("udp dport {} @th,96,24 {}", tunnel.port, tunnel.vni);
    let mut rule = |chain: &str, rule: &str| {
        let _ = writeln!(text, "add rule {ip} {TABLE} {chain} {of_tunnels} {rule}");
    };
    rule("untracked-in", "fib daddr type local notrack");
    rule("untracked-out", "notrack");
    for (inner, length) in lengths {
        let (kind, source, set) = match inner {
            Family::V4 => ("0x0800", "@th,336,32", "tunnels-v4"),
            Family::V6 => ("0x86dd", "@th,304,128", "tunnels-v6"),
        };
        // There is a network of that length.
        let Some((mask, one)) = IpNet::new(any(inner), length).ok().and_then(|net| key(&net)) else { continue };
        rule("tunnels-in", &format!("@th,224,16 {kind} {ip} saddr . {source} & {mask} | {one} @{set} accept"));
    }
    rule("tunnels-in", "drop");
    rule("tunnels-forward", "iifname \"pw*\" drop");
    rule("tunnels-forward", "ct status dnat drop");
    text
}

/// Whose machines may send packets of which Pods.
fn senders(facts: &NodeFacts, outer: Family, inner: Family) -> impl Iterator<Item = (IpAddr, IpNet)> {
    facts.peers.iter().flat_map(move |peer| {
        let addresses = peer.addresses.iter().filter(move |address| Family::of(address) == outer);
        let ranges = move || peer.pod_ranges.iter().filter(move |range| Family::of_net(range) == inner);
        addresses.flat_map(move |address| ranges().map(|range| (*address, range.trunc())))
    })
}

fn any(family: Family) -> IpAddr {
    if family == Family::V4 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) }
}

/// A network's mask, and the network as a number that no network of another length has: its prefix, then a one, then zeros. So a source
/// is looked up once for each length that there is, and found for none but its own. A network of one address has no room for the one.
fn key(net: &IpNet) -> Option<(String, String)> {
    let host_bits = net.max_prefix_len() - net.prefix_len();
    let one = 1u128.checked_shl(u32::from(host_bits.checked_sub(1)?))?;
    let key = match net.network() {
        IpAddr::V4(network) => IpAddr::V4((network.to_bits() | u32::try_from(one).ok()?).into()),
        IpAddr::V6(network) => IpAddr::V6((network.to_bits() | one).into()),
    };
    Some((number(&net.netmask()), number(&key)))
}

/// An address as the integer that nft compares bits with.
fn number(address: &IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("{:#010x}", address.to_bits()),
        IpAddr::V6(address) => format!("{:#034x}", address.to_bits()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::{Peer, TunnelId};

    #[test]
    fn each_machine_may_send_what_its_own_pods_do() {
        let peer = Peer {
            name: "b".into(),
            addresses: vec!["192.168.1.2".parse().unwrap(), "fd00:50::2".parse().unwrap()],
            pod_ranges: vec!["10.244.2.0/24".parse().unwrap(), "fd00:244:2::/64".parse().unwrap()],
            networks: Vec::new(),
        };
        let facts = NodeFacts { peers: vec![peer], ..NodeFacts::default() };
        assert!(!script(&facts, Family::V4).contains("add"), "there is no tunnel");
        let facts = NodeFacts { tunnel: Some(TunnelId { vni: 28791, port: 8472 }), ..facts };
        let text = script(&facts, Family::V4);
        for line in [
            "add element ip podwright tunnels-v4 { 192.168.1.2 . 0x0af40280 }",
            "add element ip podwright tunnels-v6 { 192.168.1.2 . 0xfd000244000200008000000000000000 }",
            "add rule ip podwright tunnels-in udp dport 8472 @th,96,24 28791 @th,224,16 0x0800 ip saddr . @th,336,32 & 0xffffff00 | 0x00000080 @tunnels-v4 accept",
            "add rule ip podwright tunnels-in udp dport 8472 @th,96,24 28791 drop",
        ] {
            assert!(text.lines().any(|has| has == line), "{line}\n{text}");
        }
        assert!(script(&facts, Family::V6).contains("tunnels-v4 { fd00:50::2 . 0x0af40280 }"));
    }

    #[test]
    fn a_network_is_told_from_those_of_other_lengths() {
        let key = |net: &str| key(&net.parse().unwrap()).map(|(_, key)| key);
        let nested = ["10.244.0.0/14", "10.244.0.0/16", "10.244.0.0/24", "10.244.0.0/25", "10.244.0.0/31"];
        let keys: BTreeSet<_> = nested.into_iter().map(key).collect();
        assert_eq!(keys.len(), nested.len(), "{keys:?}");
        assert_eq!(key("0.0.0.0/0").as_deref(), Some("0x80000000"));
        assert_eq!(key("::/0").as_deref(), Some("0x80000000000000000000000000000000"));
        assert_eq!(key("fd00::/127").as_deref(), Some("0xfd000000000000000000000000000001"));
        assert_eq!((key("10.244.0.1/32"), key("fd00::1/128")), (None, None));
    }
}
