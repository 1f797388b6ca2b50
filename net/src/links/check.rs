//! Compares the kernel's state with the desired Pod links and the node's own addresses and routes: read once, compared purely.
//!
//! Ours must exist; additions by others are kept. So a Pod that may administer its own network can add anything, have another
//! default route, or rename its link and move its configuration.

use std::collections::BTreeMap;
use std::net::IpAddr;

use futures::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};

use super::names::{GATEWAY_V4, GATEWAY_V6, HOST_MAC, LOOPBACK, POD_LINK, link_name, pod_mac};
use super::read::{Link, MainRoute, list_addresses, list_links, list_routes};
use super::settings::HOST_END;
use super::{Lacks, LinkState};
use crate::netlink::Route;
use crate::overlay::Tunnel;
use crate::{Family, Result};

/// The links of one network namespace with their configuration.
pub(super) struct View {
    links: BTreeMap<u32, Link>,
    by_name: BTreeMap<String, u32>,
    addresses: Vec<(u32, IpNet)>,
    routes: Vec<MainRoute>,
    /// Permanent ones: link, address, hardware address.
    neighbours: Vec<(u32, IpAddr, Vec<u8>)>,
}

impl View {
    pub fn read(route: &mut Route) -> Result<View> {
        let links: BTreeMap<u32, Link> = list_links(route)?.into_iter().map(|link| (link.index, link)).collect();
        let by_name = links.values().map(|link| (link.name.clone(), link.index)).collect();
        Ok(View {
            links,
            by_name,
            addresses: list_addresses(route)?,
            routes: list_routes(route)?,
            neighbours: list_neighbours(route)?,
        })
    }

    fn link(&self, name: &str) -> Option<&Link> {
        self.links.get(self.by_name.get(name)?)
    }

    /// The indexes of links with this name prefix.
    fn indexes(&self, prefix: &str) -> impl Iterator<Item = u32> {
        self.by_name.iter().filter(move |(name, _)| name.starts_with(prefix)).map(|(_, index)| *index)
    }

    fn is_up(&self, index: u32) -> bool {
        self.links.get(&index).is_some_and(|link| link.up)
    }
    fn has_address(&self, index: u32, address: &IpAddr) -> bool {
        self.addresses.iter().any(|(on, net)| *on == index && net.addr() == *address)
    }
    fn has_route(&self, net: &IpNet, index: u32, source: Option<IpAddr>) -> bool {
        self.routes.iter().any(|r| r.net == *net && r.link == Some(index) && (r.source == source || source.is_none()))
    }
    fn has_neighbour(&self, index: u32, address: IpAddr, mac: &[u8]) -> bool {
        self.neighbours.iter().any(|(on, ip, has)| (*on, *ip) == (index, address) && has == mac)
    }
    /// Whether there is a default route of this family, wherever it leads.
    fn has_default(&self, family: Family) -> bool {
        self.routes.iter().any(|r| r.is_default() && Family::of_net(&r.net) == family)
    }

    /// What the node lacks of what is wanted. `label`: the alias of an owner's link; `sources`: the node's own addresses; `mtu`: of
    /// Pods' links.
    pub fn lacks(&self, wanted: &LinkState, label: impl Fn(&str) -> String, sources: &[IpAddr], mtu: u32) -> Lacks {
        let of_pod = |(owner, addresses): (&String, &Vec<IpAddr>)| {
            let lack = self.lacks_on_host(owner, &label(owner), addresses, sources, mtu)?;
            Some((owner.clone(), lack))
        };
        Lacks {
            node: self.lacks_of_node(&wanted.addresses, &wanted.routes),
            pods: wanted.pods.iter().filter_map(of_pod).collect(),
            indexes: self.indexes("pw").chain(self.tunnels()).collect(),
        }
    }

    fn tunnels(&self) -> impl Iterator<Item = u32> {
        self.links.values().filter(|link| Tunnel::family_of(&link.name).is_some()).map(|link| link.index)
    }

    /// What the node's side of a Pod's link lacks, in words; `None`: nothing. `label`: the link's alias.
    fn lacks_on_host(
        &self,
        owner: &str,
        label: &str,
        addresses: &[IpAddr],
        sources: &[IpAddr],
        mtu: u32,
    ) -> Option<String> {
        let name = link_name(owner);
        let Some(link) = self.link(&name) else { return Some(format!("link {name}")) };
        if !link.up {
            return Some(format!("link {name}, which was down"));
        }
        if link.asks {
            return Some(format!("link {name}, which listened to ARP"));
        }
        if link.mtu != mtu {
            return Some(format!("the MTU of link {name}, which was {}", link.mtu));
        }
        if link.alias != label {
            return Some(format!("the alias of link {name}"));
        }
        if link.settings.as_ref().is_some_and(|has| has.iter().ne(HOST_END)) {
            return Some(format!("the settings of link {name}"));
        }
        addresses.iter().find_map(|address| {
            if !self.has_neighbour(link.index, *address, &pod_mac(owner)) {
                return Some(format!("neighbour {address} dev {name}"));
            }
            let source = sources.iter().find(|s| s.is_ipv4() == address.is_ipv4()).copied();
            let routed = self.has_route(&IpNet::from(*address), link.index, source);
            (!routed).then(|| format!("route {address} dev {name}"))
        })
    }

    /// What the Pod's side of its link lacks, read in its namespace; `host`: the current node's side.
    pub fn lacks_in_pod(&self, host: &Link, addresses: &[IpAddr]) -> Option<String> {
        let Some(link) = self.links.get(&host.peer_index).filter(|link| link.peer_index == host.index) else {
            return Some(format!("link {POD_LINK} of the Pod"));
        };
        if link.name != POD_LINK {
            return None;
        }
        if !self.is_up(LOOPBACK) || !link.up {
            return Some("links of the Pod, which were down".to_owned());
        }
        if link.asks {
            return Some(format!("link {POD_LINK} of the Pod, which asked for neighbours"));
        }
        if let Some(address) = addresses.iter().find(|address| !self.has_address(link.index, address)) {
            return Some(format!("address {address} of the Pod"));
        }
        let families = Family::ALL.into_iter().filter(|f| addresses.iter().any(|a| Family::of(a) == *f));
        families.into_iter().find_map(|family| {
            let gateway: IpAddr = if family == Family::V4 { GATEWAY_V4.into() } else { GATEWAY_V6.into() };
            match (self.has_default(family), self.has_neighbour(link.index, gateway, &HOST_MAC)) {
                (false, _) => Some("the default route of the Pod".to_owned()),
                (_, false) => Some(format!("neighbour {gateway} of the Pod")),
                _ => None,
            }
        })
    }

    /// What the node itself lacks: addresses of `lo`, routes over `lo` with their sources.
    fn lacks_of_node(&self, addresses: &[IpAddr], routes: &[(IpNet, Option<IpAddr>)]) -> Vec<String> {
        let mut lacks = Vec::new();
        if !self.is_up(LOOPBACK) {
            lacks.push("link lo, which was down".to_owned());
        }
        let gone = addresses.iter().filter(|address| !self.has_address(LOOPBACK, address));
        lacks.extend(gone.map(|address| format!("address {address} dev lo")));
        let gone = routes.iter().filter(|(net, source)| !self.has_route(net, LOOPBACK, *source));
        lacks.extend(gone.map(|(net, _)| format!("route {net} dev lo")));
        lacks
    }
}

pub(super) fn list_neighbours(route: &mut Route) -> Result<Vec<(u32, IpAddr, Vec<u8>)>> {
    let all: Vec<NeighbourMessage> =
        route.call(format_args!("list neighbours"), |to| to.neighbours().get().execute().try_collect())?;
    let parse = |message: NeighbourMessage| {
        let (mut address, mut mac) = (None, None);
        for attribute in message.attributes {
            match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => address = Some(IpAddr::V4(v4)),
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => address = Some(IpAddr::V6(v6)),
                NeighbourAttribute::LinkLayerAddress(bytes) => mac = Some(bytes),
                _ => {}
            }
        }
        (message.header.state == NeighbourState::Permanent).then_some((message.header.ifindex, address?, mac?))
    };
    Ok(all.into_iter().filter_map(parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: &str = "1f2e3d4c-5b6a-4000-8000-000000000000";
    const MTU: u32 = 1450;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn link(index: u32, name: &str, peer_index: u32) -> Link {
        let settings = Some(HOST_END.to_vec());
        Link {
            index,
            name: name.to_owned(),
            peer_index,
            alias: "podwright/n/o".into(),
            up: true,
            mtu: MTU,
            settings,
            ..Link::default()
        }
    }

    fn view(links: Vec<Link>) -> View {
        let by_name = links.iter().map(|l| (l.name.clone(), l.index)).collect();
        let links = links.into_iter().map(|l| (l.index, l)).collect();
        View { links, by_name, addresses: Vec::new(), routes: Vec::new(), neighbours: Vec::new() }
    }

    fn on_host(view: &View) -> Option<String> {
        view.lacks_on_host(OWNER, "podwright/n/o", &[ip("10.0.0.2")], &[ip("192.0.2.1")], MTU)
    }

    #[test]
    fn each_thing_that_the_nodes_side_lacks_is_named() {
        let mut seen = view(Vec::new());
        assert_eq!(on_host(&seen).unwrap(), "link pw1f2e3d4c5b6a");
        seen = view(vec![link(7, "pw1f2e3d4c5b6a", 2)]);
        assert_eq!(on_host(&seen).unwrap(), "neighbour 10.0.0.2 dev pw1f2e3d4c5b6a");
        seen.neighbours.push((7, ip("10.0.0.2"), pod_mac(OWNER).to_vec()));
        let net = IpNet::from(ip("10.0.0.2"));
        seen.routes.push(MainRoute::new(net, 7, None));
        assert_eq!(on_host(&seen).unwrap(), "route 10.0.0.2 dev pw1f2e3d4c5b6a", "it has another source");
        seen.routes.push(MainRoute::new(net, 7, Some(ip("192.0.2.1"))));
        assert_eq!(on_host(&seen), None);
        let damage: [(&str, fn(&mut Link)); 5] = [
            ("link pw1f2e3d4c5b6a, which listened to ARP", |link| link.asks = true),
            ("the MTU of link pw1f2e3d4c5b6a, which was 576", |link| link.mtu = 576),
            ("link pw1f2e3d4c5b6a, which was down", |link| link.up = false),
            ("the alias of link pw1f2e3d4c5b6a", |link| link.alias.clear()),
            ("the settings of link pw1f2e3d4c5b6a", |link| link.settings = Some(vec![(1, 0)])),
        ];
        for (words, damage) in damage {
            let mut other = link(7, "pw1f2e3d4c5b6a", 2);
            damage(&mut other);
            seen.links.insert(7, other);
            assert_eq!(on_host(&seen).as_deref(), Some(words));
        }
    }

    #[test]
    fn a_pod_keeps_what_it_has_made_of_its_own_network() {
        let host = link(7, "pw1f2e3d4c5b6a", 2);
        let lacks = |view: &View| view.lacks_in_pod(&host, &[ip("10.0.0.2")]);
        let mut seen = view(vec![link(1, "lo", 0)]);
        assert_eq!(lacks(&seen).unwrap(), "link eth0 of the Pod");
        seen = view(vec![link(1, "lo", 0), link(2, "eth0", 7)]);
        assert_eq!(lacks(&seen).unwrap(), "address 10.0.0.2 of the Pod");
        seen.addresses.push((2, IpNet::from(ip("10.0.0.2"))));
        assert_eq!(lacks(&seen).unwrap(), "the default route of the Pod");
        // Through a tunnel of its own.
        seen.routes.push(MainRoute::new("0.0.0.0/0".parse().unwrap(), 9, None));
        assert_eq!(lacks(&seen).unwrap(), "neighbour 169.254.1.1 of the Pod");
        seen.neighbours.push((2, GATEWAY_V4.into(), HOST_MAC.to_vec()));
        assert_eq!(lacks(&seen), None);
        seen = view(vec![link(1, "lo", 0), Link { asks: true, ..link(2, "eth0", 7) }]);
        assert_eq!(lacks(&seen).unwrap(), "link eth0 of the Pod, which asked for neighbours");
        // Its link was renamed and is a bridge port: its configuration has moved.
        assert_eq!(lacks(&view(vec![link(1, "lo", 0), link(2, "port0", 7)])), None);
    }

    #[test]
    fn the_nodes_own_addresses_and_routes() {
        let mut seen = view(vec![link(1, "lo", 0)]);
        let (address, net) = (ip("192.0.2.1"), "10.96.0.0/16".parse().unwrap());
        let lacks = |view: &View| view.lacks_of_node(&[address], &[(net, Some(address))]);
        assert_eq!(lacks(&seen), ["address 192.0.2.1 dev lo", "route 10.96.0.0/16 dev lo"]);
        seen.addresses.push((1, IpNet::from(address)));
        seen.routes.push(MainRoute::new(net, 1, Some(address)));
        assert_eq!(lacks(&seen), [""; 0]);
    }

    #[test]
    fn what_is_wanted_of_all_links_is_compared_at_once() {
        let address = ip("192.0.2.1");
        let wanted = LinkState {
            pods: BTreeMap::from([(OWNER.to_owned(), vec![ip("10.0.0.2")]), ("other".to_owned(), Vec::new())]),
            addresses: vec![address],
            routes: Vec::new(),
        };
        let mut seen = view(vec![link(1, "lo", 0), link(7, &link_name(OWNER), 2), link(8, &link_name("other"), 2)]);
        seen.links.entry(8).and_modify(|other| other.up = false);
        seen.addresses.push((1, IpNet::from(address)));
        seen.neighbours.push((7, ip("10.0.0.2"), pod_mac(OWNER).to_vec()));
        seen.routes.push(MainRoute::new(IpNet::from(ip("10.0.0.2")), 7, Some(address)));
        let lacks =
            |seen: &View, wanted: &LinkState| seen.lacks(wanted, |_| "podwright/n/o".to_owned(), &[address], MTU);
        let down = format!("link {}, which was down", link_name("other"));
        let pods = BTreeMap::from([("other".to_owned(), down)]);
        assert_eq!(lacks(&seen, &wanted), Lacks { pods, indexes: [7, 8].into(), ..Lacks::default() });
        // Nothing desired, nothing lacking.
        let none = Lacks { indexes: [7, 8].into(), ..Lacks::default() };
        assert_eq!(lacks(&seen, &LinkState::default()), none);
    }
}
