//! The decision for each peer: a route, a tunnel, or why there is neither.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use ipnet::IpNet;

use super::accept::{Accepted, is_reachable_at};
use super::{
    End, Hop, LEAST_MTU, MOST_MTU, Mac, Over, Overlay, OverlayConfig, Own, Peer, Transport, Tunnel, Uplink,
    first_address, mac_of,
};
use crate::Family;

/// What a node should have for the Pods of its peers, of which those come first whose Nodes were there first.
pub fn plan(own: &Own, peers: &[Peer], config: &OverlayConfig) -> Overlay {
    let mut overlay = Overlay::default();
    let mut accepted = Accepted::default();
    for peer in peers {
        let mut ranges = Vec::new();
        for range in peer.pod_ranges.iter().map(IpNet::trunc) {
            match accepted.take(own, peer, &range) {
                Ok(()) => ranges.push(range),
                Err(why) => overlay.refused.push(why),
            }
        }
        let tunnelled: Vec<IpNet> =
            ranges.into_iter().filter(|range| !route(&mut overlay, own, peer, range, config)).collect();
        if !tunnelled.is_empty() && config.transport != Transport::Routes {
            tunnel(&mut overlay, own, peer, tunnelled, config);
        }
    }
    overlay.pod_mtu = pod_mtu(own, &overlay);
    overlay
}

/// Leads a range to a peer that is on a link of the node's; whether that is its way.
fn route(overlay: &mut Overlay, own: &Own, peer: &Peer, range: &IpNet, config: &OverlayConfig) -> bool {
    let family = Family::of_net(range);
    let mut all = addresses(own, peer, family);
    let gateway = match config.transport {
        Transport::Vxlan => None,
        Transport::Routes => all.find(|address| link_to(own, address).is_some()),
        Transport::Auto => all.find(|address| share_a_link(&own.networks, &peer.networks, address)),
    };
    let Some(gateway) = gateway else { return false };
    let Some(link) = link_to(own, &gateway) else {
        // The other end sends by its link all the same, so a tunnel would not help.
        let why =
            format!("node {}: both publish that they share a link, but none of this node's has {gateway}", peer.name);
        overlay.refused.push(why);
        return true;
    };
    let hop = Hop { over: Over::Uplink(link.index), gateway, source: address_of(&own.addresses, family) };
    overlay.routes.insert(*range, hop);
    true
}

/// Leads ranges to a peer through the tunnel of the first family that both nodes have: both decide the same.
fn tunnel(overlay: &mut Overlay, own: &Own, peer: &Peer, ranges: Vec<IpNet>, config: &OverlayConfig) {
    // The control plane has not given it yet.
    let Some(of_own) = own.pod_ranges.first() else { return };
    let both =
        |family: Family| Some((family, address_of(&own.addresses, family)?, addresses(own, peer, family).next()?));
    let Some((family, local, remote)) = Family::ALL.into_iter().find_map(both) else {
        return overlay.refused.push(format!("node {}: it reports no address that this node can reach", peer.name));
    };
    let Some(of_peer) = peer.pod_ranges.first() else { return };
    let mac = mac_of(of_peer);
    let tunnel = overlay.tunnels.entry(family).or_insert_with(|| Tunnel {
        vni: config.vni,
        port: config.port,
        local,
        mtu: (mtu_of(own, &local) - Tunnel::overhead(family)).max(LEAST_MTU),
        mac: mac_of(of_own),
        addresses: own.pod_ranges.iter().map(first_address).collect(),
        ends: BTreeMap::<Mac, End>::new(),
    });
    let Entry::Vacant(vacant) = tunnel.ends.entry(mac) else {
        return overlay.refused.push(format!("node {}: another one has the hardware address of its tunnel", peer.name));
    };
    vacant.insert(End { remote, gateways: ranges.iter().map(first_address).collect() });
    for range in ranges {
        let source = address_of(&tunnel.addresses, Family::of_net(&range));
        overlay.routes.insert(range, Hop { over: Over::Tunnel(family), gateway: first_address(&range), source });
    }
}

/// What a Pod's link may carry: no more than any link that leads to other machines.
fn pod_mtu(own: &Own, overlay: &Overlay) -> u32 {
    let uplinks = overlay.routes.values().filter_map(|hop| match hop.over {
        Over::Uplink(index) => own.uplinks.iter().find(|link| link.index == index).map(|link| link.mtu),
        Over::Tunnel(_) => None,
    });
    let tunnels = overlay.tunnels.values().map(|tunnel| tunnel.mtu);
    let outside = own.addresses.iter().map(|address| mtu_of(own, address));
    let least = uplinks.chain(tunnels).chain(outside).min().unwrap_or(MOST_MTU);
    least.clamp(LEAST_MTU, MOST_MTU)
}

/// The addresses of this family that a peer can be reached at.
fn addresses<'a>(own: &'a Own, peer: &'a Peer, family: Family) -> impl Iterator<Item = IpAddr> + 'a {
    let of_family = peer.addresses.iter().filter(move |address| Family::of(address) == family);
    of_family.filter(|address| is_reachable_at(own, address)).copied()
}

/// Whether two nodes share the link at which the second has this address: each has an address in the other's network, so that both say
/// so, or neither (as Calico's `CrossSubnet`). An address alone in its network (`/32`) is on no link.
fn share_a_link(one: &[IpNet], other: &[IpNet], address: &IpAddr) -> bool {
    let mut there = other.iter().filter(|net| net.addr() == *address);
    there.any(|there| one.iter().any(|here| here.contains(address) && there.contains(&here.addr())))
}

fn address_of(addresses: &[IpAddr], family: Family) -> Option<IpAddr> {
    addresses.iter().find(|address| Family::of(address) == family).copied()
}

/// The link that an address is on.
fn link_to<'a>(own: &'a Own, address: &IpAddr) -> Option<&'a Uplink> {
    let is_on = |net: &IpNet| net.prefix_len() < net.max_prefix_len() && net.contains(address);
    own.uplinks.iter().find(|link| link.addresses.iter().any(is_on))
}

/// The MTU of the link that has an address of the node's. Another machine is not behind `lo`.
fn mtu_of(own: &Own, address: &IpAddr) -> u32 {
    let has = |link: &&Uplink| link.addresses.iter().any(|net| net.addr() == *address);
    own.uplinks.iter().find(has).map_or(MOST_MTU, |link| link.mtu).max(LEAST_MTU)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }
    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }
    fn nets(all: &[&str]) -> Vec<IpNet> {
        all.iter().map(|text| net(text)).collect()
    }

    fn own(ranges: &[&str]) -> Own {
        let uplink =
            Uplink { index: 7, mtu: 1500, addresses: nets(&["192.168.50.1/24", "fd00:50::1/64"]), ..Uplink::default() };
        Own {
            addresses: vec![ip("192.168.50.1"), ip("fd00:50::1")],
            pod_ranges: nets(ranges),
            service_ranges: nets(&["10.96.0.0/16", "fd00:96::/112"]),
            networks: uplink.addresses.clone(),
            uplinks: vec![uplink],
        }
    }

    fn peer(name: &str, addresses: &[&str], ranges: &[&str]) -> Peer {
        let addresses: Vec<IpAddr> = addresses.iter().map(|text| ip(text)).collect();
        Peer { name: name.to_owned(), networks: networks(&addresses), addresses, pod_ranges: nets(ranges) }
    }

    /// Those of links as most have them.
    fn networks(addresses: &[IpAddr]) -> Vec<IpNet> {
        let length = |address: &IpAddr| if address.is_ipv4() { 24 } else { 64 };
        addresses.iter().map(|address| IpNet::new(*address, length(address)).unwrap()).collect()
    }

    fn planned(own: &Own, peers: &[Peer], transport: Transport) -> Overlay {
        plan(own, peers, &OverlayConfig { transport, ..OverlayConfig::default() })
    }

    #[test]
    fn each_peer_is_reached_by_the_way_that_leads_to_it() {
        let own = own(&["10.244.1.0/24"]);
        let near = peer("near", &["192.168.50.2"], &["10.244.2.0/24"]);
        let far = peer("far", &["198.51.100.7"], &["10.244.3.0/24"]);
        let route = Hop { over: Over::Uplink(7), gateway: ip("192.168.50.2"), source: Some(ip("192.168.50.1")) };
        let through = |gateway: &str| Hop {
            over: Over::Tunnel(Family::V4),
            gateway: ip(gateway),
            source: Some(ip("10.244.1.1")),
        };
        let of = |transport| planned(&own, &[near.clone(), far.clone()], transport);

        let auto = of(Transport::Auto);
        let routes =
            BTreeMap::from([(net("10.244.2.0/24"), route.clone()), (net("10.244.3.0/24"), through("10.244.3.1"))]);
        assert_eq!((auto.routes, auto.pod_mtu, auto.refused), (routes, 1450, Vec::new()));
        let tunnel = &auto.tunnels[&Family::V4];
        assert_eq!((tunnel.local, tunnel.mtu, &tunnel.addresses), (ip("192.168.50.1"), 1450, &vec![ip("10.244.1.1")]));
        assert_eq!(tunnel.mac, [0x0e, 0x70, 10, 244, 1, 1]);
        let end = End { remote: ip("198.51.100.7"), gateways: vec![ip("10.244.3.1")] };
        assert_eq!(tunnel.ends, BTreeMap::from([([0x0e, 0x70, 10, 244, 3, 1], end)]));

        let alone = of(Transport::Routes);
        assert_eq!(alone.routes, BTreeMap::from([(net("10.244.2.0/24"), route)]));
        assert_eq!((alone.tunnels.len(), alone.pod_mtu), (0, 1500));

        let vxlan = of(Transport::Vxlan);
        assert_eq!(vxlan.routes[&net("10.244.2.0/24")], through("10.244.2.1"));
        assert_eq!(vxlan.tunnels[&Family::V4].ends.len(), 2);
    }

    #[test]
    fn both_families_have_their_ways_and_one_tunnel_carries_both() {
        let own = own(&["10.244.1.0/24", "fd00:244:1::/64"]);
        let ranges = ["10.244.2.0/24", "fd00:244:2::/64"];
        let near = planned(&own, &[peer("b", &["192.168.50.2", "fd00:50::2"], &ranges)], Transport::Auto);
        assert_eq!(near.routes[&net(ranges[1])].gateway, ip("fd00:50::2"));
        assert_eq!(near.tunnels.len(), 0);
        let far = planned(&own, &[peer("b", &["198.51.100.7", "2001:db8::7"], &ranges)], Transport::Auto);
        assert_eq!(far.tunnels.keys().collect::<Vec<_>>(), [&Family::V4]);
        assert_eq!(far.routes[&net(ranges[1])].source, Some(ip("fd00:244:1::1")));
        let early = Own { pod_ranges: Vec::new(), ..own.clone() };
        let early = planned(&early, &[peer("b", &["198.51.100.7"], &ranges)], Transport::Auto);
        assert_eq!(early, Overlay { pod_mtu: 1500, ..Overlay::default() }, "it is too early");
        let six = planned(&own, &[peer("b", &["2001:db8::7"], &ranges)], Transport::Auto);
        assert_eq!((six.tunnels[&Family::V6].mtu, six.pod_mtu), (1430, 1430));
        assert_eq!(six.routes[&net(ranges[0])].over, Over::Tunnel(Family::V6));
    }

    /// What a node knows of itself and of another, whose links have these networks; the first one publishes an address of it.
    fn pair(here: &[&str], there: &[&str]) -> (Own, Peer) {
        let node = |links: &[&str]| (net(links[0]).addr(), nets(&links[..1]));
        let ((address, published), (remote, networks)) = (node(here), node(there));
        let uplink =
            |(link, index): (&&str, u32)| Uplink { index, mtu: 1500, addresses: nets(&[link]), ..Uplink::default() };
        let uplinks = here.iter().zip(7..).map(uplink);
        let own = Own {
            addresses: vec![address],
            pod_ranges: nets(&[&format!("10.244.{}.0/24", last_byte(address))]),
            networks: published,
            uplinks: uplinks.collect(),
            ..Own::default()
        };
        let pod_ranges = nets(&[&format!("10.244.{}.0/24", last_byte(remote))]);
        (own, Peer { name: "peer".to_owned(), addresses: vec![remote], pod_ranges, networks })
    }

    fn last_byte(address: IpAddr) -> u8 {
        let IpAddr::V4(address) = address else { panic!("{address}") };
        address.octets()[3]
    }

    #[test]
    fn both_ends_decide_alike_whether_they_share_a_link() {
        let by_route = |here: &[&str], there: &[&str]| {
            let (own, peer) = pair(here, there);
            let overlay = planned(&own, &[peer], Transport::Auto);
            assert_eq!((overlay.routes.len(), overlay.refused.len()), (1, 0), "{here:?} {there:?}");
            overlay.tunnels.is_empty()
        };
        for (one, other, share) in [
            (&["192.168.50.1/24"][..], &["192.168.50.2/24"][..], true),
            (&["192.168.50.1/16"], &["192.168.50.2/24"], true),
            // Only one of them has the other in its network.
            (&["192.168.50.1/16"], &["192.168.60.2/24"], false),
            (&["192.168.50.1/24"], &["192.168.50.2/32"], false),
            (&["10.0.0.1/32"], &["10.0.0.2/32"], false),
            // A bridge of one machine's own has the same range as the other's network.
            (&["192.168.50.1/24", "172.17.0.1/16"], &["172.17.0.5/16"], false),
            (&["192.168.50.1/24", "172.17.0.1/16"], &["172.17.0.5/16", "172.18.0.1/16"], false),
        ] {
            assert_eq!((by_route(one, other), by_route(other, one)), (share, share), "{one:?} {other:?}");
        }
        // Who publishes nothing is on no link, whatever links there are; also of itself.
        let (own, peer) = pair(&["192.168.50.1/24"], &["192.168.50.2/24"]);
        let silent = Peer { networks: Vec::new(), ..peer.clone() };
        assert_eq!(planned(&own, &[silent], Transport::Auto).tunnels.len(), 1);
        let unheard = Own { networks: Vec::new(), ..own.clone() };
        assert_eq!(planned(&unheard, &[peer.clone()], Transport::Auto).tunnels.len(), 1);
        // The other end does not wait for links of ours: neither does what it sends come through a tunnel.
        let early = planned(&Own { uplinks: Vec::new(), ..own }, &[peer], Transport::Auto);
        assert_eq!((early.routes.len(), early.tunnels.len(), early.refused.len()), (0, 0, 1));
    }

    #[test]
    fn the_mtu_follows_the_links() {
        let mut own = own(&["10.244.1.0/24"]);
        assert_eq!(planned(&own, &[], Transport::Auto).pod_mtu, 1500);
        own.uplinks[0].mtu = 1400;
        assert_eq!(planned(&own, &[], Transport::Auto).pod_mtu, 1400);
        let far = peer("far", &["198.51.100.7"], &["10.244.3.0/24"]);
        assert_eq!(planned(&own, &[far.clone()], Transport::Auto).pod_mtu, 1350);
        own.uplinks[0].mtu = 9000;
        let large = planned(&own, &[far], Transport::Auto);
        assert_eq!((large.tunnels[&Family::V4].mtu, large.pod_mtu), (8950, 1500));
    }

    #[test]
    fn nobody_draws_what_is_anothers() {
        let own = own(&["10.244.1.0/24"]);
        let claims = [
            ("10.244.1.128/25", "it overlaps this node's own"),
            ("10.244.0.0/16", "it overlaps this node's own"),
            ("10.96.7.0/24", "it overlaps the Services'"),
            ("0.0.0.0/0", "it is no range for Pods"),
            ("127.0.0.0/8", "it is no range for Pods"),
            ("126.0.0.0/7", "it is no range for Pods"),
            ("168.0.0.0/6", "it is no range for Pods"),
            ("fe00::/8", "it is no range for Pods"),
            ("::/8", "it is no range for Pods"),
            ("192.168.50.0/24", "this node's own address is in it"),
            ("10.244.7.2/32", "it has no room for Pods beside the node itself"),
            ("fd00:244:7::2/128", "it has no room for Pods beside the node itself"),
            ("10.244.2.0/25", "node honest has it"),
            ("10.244.2.0/23", "node honest has it"),
        ];
        let honest = peer("honest", &["192.168.50.2"], &["10.244.2.0/24"]);
        for (range, why) in claims {
            let overlay = planned(&own, &[honest.clone(), peer("evil", &["192.168.50.66"], &[range])], Transport::Auto);
            assert_eq!(overlay.routes.keys().collect::<Vec<_>>(), [&net("10.244.2.0/24")], "{range}");
            assert!(overlay.refused[0].ends_with(why), "{range}: {:?}", overlay.refused);
        }
        // Its own range, but addresses of others.
        for address in ["10.96.0.10", "192.168.50.1", "127.0.0.1", "169.254.1.1", "224.0.0.1", "10.244.1.9", "0.0.0.0"]
        {
            let evil = peer("evil", &[address], &["10.244.66.0/24"]);
            let overlay = planned(&own, &[evil], Transport::Auto);
            assert_eq!((overlay.routes.len(), overlay.tunnels.len(), overlay.refused.len()), (0, 0, 1), "{address}");
        }
        // Another peer's address leads there what is the claimant's own, and nothing else.
        let overlay =
            planned(&own, &[honest.clone(), peer("evil", &["192.168.50.2"], &["10.244.66.0/24"])], Transport::Auto);
        assert_eq!(overlay.routes.len(), 2);
        assert_eq!(
            overlay.routes[&net("10.244.2.0/24")],
            planned(&own, &[honest], Transport::Auto).routes[&net("10.244.2.0/24")]
        );
    }
}
