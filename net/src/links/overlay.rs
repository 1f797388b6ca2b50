//! The driver of [`Overlay`]: compares it with the kernel's links, addresses, neighbours, forwarding entries and routes, and mends these.
//!
//! What is the overlay's own is known without a record: its links by their names, with all that is on them, its routes by their
//! protocol. So what nobody wants any more is found, whoever has made it and when. New ways are there before old ones go.

use std::collections::BTreeSet;
use std::net::IpAddr;

use futures::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{AfSpecInet, AfSpecUnspec, LinkAttribute};
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteProtocol, RouteScope, RouteType};
use rtnetlink::{LinkUnspec, LinkVxlan};

use super::Links;
use super::check::list_neighbours;
use super::names::LOOPBACK;
use super::read::{Link, MainRoute, list_addresses, list_links, list_routes};
use super::requests::{add_address, add_neighbour, ignore, ipv6_available, new_route, route_to};
use super::settings::{generates_none, host_end_settings};
use crate::netlink::{Route, leads_to_containers};
use crate::overlay::{Hop, LEAST_MTU, MOST_MTU, Mac, Over, Overlay, Tunnel, Uplink};
use crate::{Family, Result, message};

/// Who has made a route (rtm_protocol): this node, for the overlay.
const PROTOCOL: u8 = 0x70;

/// One change. Links are known by their indexes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    SetMtu { link: u32, mtu: u32 },
    SetUp { link: u32 },
    AddAddress { link: u32, address: IpAddr },
    AddEnd { link: u32, mac: Mac, remote: IpAddr },
    AddNeighbour { link: u32, address: IpAddr, mac: Mac },
    AddRoute { net: IpNet, link: u32, gateway: IpAddr, source: Option<IpAddr> },
    RemoveRoute { net: IpNet, link: u32, gateway: Option<IpAddr> },
    RemoveNeighbour { link: u32, address: IpAddr },
    RemoveEnd { link: u32, mac: Mac, remote: IpAddr },
    RemoveAddress { link: u32, address: IpNet },
    RemoveLink { name: String },
}

/// What the kernel has that is or may be the overlay's.
#[derive(Default)]
pub(super) struct Found {
    links: Vec<Link>,
    addresses: Vec<(u32, IpNet)>,
    routes: Vec<MainRoute>,
    /// Permanent ones.
    neighbours: Vec<(u32, IpAddr, Vec<u8>)>,
    /// The forwarding entries of tunnels.
    ends: Vec<(u32, Vec<u8>, IpAddr)>,
}

impl Links {
    /// The links that may lead to other machines: those that are neither the node's own nor a Pod's.
    ///
    /// # Errors
    ///
    /// The kernel does not list them.
    pub fn uplinks(&mut self) -> Result<Vec<Uplink>> {
        let addresses = list_addresses(&mut self.route)?;
        let is_uplink = |link: &Link| {
            link.index != LOOPBACK && !link.name.starts_with("pw") && Tunnel::family_of(&link.name).is_none()
        };
        let uplink = |link: Link| {
            let own = addresses.iter().filter(|(index, _)| *index == link.index).map(|(_, net)| *net);
            let is_of_containers = leads_to_containers(&link.name);
            Uplink { index: link.index, mtu: link.mtu, addresses: own.collect(), is_of_containers }
        };
        let all = list_links(&mut self.route)?.into_iter().filter(is_uplink).map(uplink);
        Ok(all.filter(|link| !link.addresses.is_empty()).collect())
    }

    /// The MTU of Pods' links as an earlier agent had it, as tunnels and links tell: until the peers are known.
    ///
    /// # Errors
    ///
    /// The kernel does not list them.
    pub fn former_pod_mtu(&mut self, own: &[IpAddr]) -> Result<u32> {
        let tunnels = list_links(&mut self.route)?.into_iter().filter(|link| Tunnel::family_of(&link.name).is_some());
        let mut all: Vec<u32> = tunnels.map(|link| link.mtu).collect();
        let has_own = |link: &Uplink| link.addresses.iter().any(|net| own.contains(&net.addr()));
        all.extend(self.uplinks()?.into_iter().filter(has_own).map(|link| link.mtu));
        Ok(all.into_iter().min().unwrap_or(MOST_MTU).clamp(LEAST_MTU, MOST_MTU))
    }

    /// Makes links, routes, neighbours and forwarding entries be as wanted; what was not, in words.
    ///
    /// # Errors
    ///
    /// The first thing that the kernel refuses; the others are done nevertheless.
    pub fn set_overlay(&mut self, wanted: &Overlay) -> Result<Vec<String>> {
        let mut failed = None;
        // 1. Links, as all else is on them. One with other settings is made anew.
        let mut done = Vec::new();
        for family in Family::ALL {
            let Some(tunnel) = wanted.tunnels.get(&family) else { continue };
            match self.ensure_tunnel(family, tunnel) {
                Ok(true) => done.push(format!("link {}", Tunnel::name(family))),
                Ok(false) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        // 2. What is on them, and the routes.
        for step in Found::read(&mut self.route)?.steps(wanted) {
            match self.take(&step) {
                Ok(()) => done.push(step.to_string()),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(done), Err)
    }

    /// Makes the tunnel's link, where it is not there as wanted; whether it was not.
    fn ensure_tunnel(&mut self, family: Family, tunnel: &Tunnel) -> Result<bool> {
        let name = Tunnel::name(family);
        if let Some(link) = super::read::get_link(&mut self.route, name)? {
            if link.is_tunnel(tunnel) {
                return Ok(false);
            }
            self.remove(name)?;
        }
        let link = LinkVxlan::new(name, tunnel.vni).port(tunnel.port).learning(false);
        let link = match tunnel.local {
            IpAddr::V4(local) => link.local(local),
            IpAddr::V6(local) => link.local6(local),
        };
        let link = link.address(tunnel.mac.to_vec()).mtu(tunnel.mtu).build();
        let what = format_args!(
            "add link {name} type vxlan id {} local {} dstport {} nolearning",
            tunnel.vni, tunnel.local, tunnel.port
        );
        self.route.call(what, |to| to.link().add(link).execute())?;
        let index = super::read::index_of(&mut self.route, name)?;
        self.tunnel_up(index)?;
        Ok(true)
    }

    /// Up, deaf to ARP, and strict about sources, as the node's end of a Pod's link.
    fn tunnel_up(&mut self, index: u32) -> Result<()> {
        let mut families = vec![AfSpecUnspec::Inet(vec![AfSpecInet::Other(host_end_settings())])];
        if ipv6_available() {
            families.push(generates_none());
        }
        let link = LinkUnspec::new_with_index(index).arp(false).up();
        let link = link.append_extra_attribute(LinkAttribute::AfSpecUnspec(families)).build();
        self.route.call(format_args!("set link {index} up arp off"), |to| to.link().change(link).execute())
    }

    fn take(&mut self, step: &Step) -> Result<()> {
        let route = &mut self.route;
        match step {
            Step::SetMtu { link, mtu } => {
                let change = LinkUnspec::new_with_index(*link).mtu(*mtu).build();
                route.call(format_args!("set link {link} mtu {mtu}"), |to| to.link().change(change).execute())
            }
            Step::SetUp { link } => self.tunnel_up(*link),
            Step::AddAddress { link, address } => add_address(route, *link, &IpNet::from(*address)),
            Step::AddEnd { link, mac, remote } => {
                let what = format_args!("add forwarding entry {} to link {link} dst {remote}", text(mac));
                route.call(what, |to| {
                    let add = to.neighbours().add_bridge(*link, mac).flags(NeighbourFlags::Own);
                    add.destination(*remote).replace().execute()
                })
            }
            Step::AddNeighbour { link, address, mac } => add_neighbour(route, *link, *address, mac),
            Step::AddRoute { net, link, gateway, source } => add_route(route, net, *link, *gateway, *source),
            Step::RemoveRoute { net, link, gateway } => remove_route(route, net, *link, *gateway),
            Step::RemoveNeighbour { link, address } => {
                let mut gone = NeighbourMessage::default();
                gone.header.family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
                gone.header.ifindex = *link;
                gone.attributes = vec![NeighbourAttribute::Destination(neighbour_address(address))];
                let what = format_args!("delete neighbour {address} from link {link}");
                ignore(route.call(what, |to| to.neighbours().del(gone).execute()), libc::ENOENT)
            }
            Step::RemoveEnd { link, mac, remote } => {
                let mut gone = NeighbourMessage::default();
                gone.header.family = AddressFamily::Bridge;
                gone.header.ifindex = *link;
                gone.header.flags = NeighbourFlags::Own;
                let to = NeighbourAttribute::Destination(neighbour_address(remote));
                gone.attributes = vec![NeighbourAttribute::LinkLayerAddress(mac.to_vec()), to];
                let what = format_args!("delete forwarding entry {} from link {link} dst {remote}", text(mac));
                ignore(route.call(what, |to| to.neighbours().del(gone).execute()), libc::ENOENT)
            }
            Step::RemoveAddress { link, address } => {
                let what = format_args!("delete address {address} from link {link}");
                let found: Vec<_> = route.call(what, |to| {
                    let all = to.address().get().set_link_index_filter(*link);
                    all.set_address_filter(address.addr()).execute().try_collect()
                })?;
                for message in found {
                    ignore(route.call(what, |to| to.address().del(message).execute()), libc::EADDRNOTAVAIL)?;
                }
                Ok(())
            }
            Step::RemoveLink { name } => self.remove(name),
        }
    }
}

impl Found {
    fn read(route: &mut Route) -> Result<Found> {
        let links = list_links(route)?;
        let tunnels: BTreeSet<u32> =
            links.iter().filter(|link| Tunnel::family_of(&link.name).is_some()).map(|l| l.index).collect();
        let ends = if tunnels.is_empty() { Vec::new() } else { list_ends(route, &tunnels)? };
        Ok(Found {
            links,
            addresses: list_addresses(route)?,
            routes: list_routes(route)?,
            neighbours: list_neighbours(route)?,
            ends,
        })
    }

    fn tunnel(&self, family: Family) -> Option<&Link> {
        self.links.iter().find(|link| link.name == Tunnel::name(family))
    }

    /// What is to be done, in order.
    fn steps(&self, wanted: &Overlay) -> Vec<Step> {
        let mut steps = Vec::new();
        for family in Family::ALL {
            match (self.tunnel(family), wanted.tunnels.get(&family)) {
                (Some(link), Some(tunnel)) => self.on_tunnel(link, tunnel, &mut steps),
                (Some(link), None) => steps.push(Step::RemoveLink { name: link.name.clone() }),
                // It could not be made.
                (None, _) => {}
            }
        }
        self.of_routes(wanted, &mut steps);
        steps.sort();
        steps
    }

    fn on_tunnel(&self, link: &Link, tunnel: &Tunnel, steps: &mut Vec<Step>) {
        let index = link.index;
        if link.mtu != tunnel.mtu {
            steps.push(Step::SetMtu { link: index, mtu: tunnel.mtu });
        }
        if !link.up || link.asks {
            steps.push(Step::SetUp { link: index });
        }
        let addresses: BTreeSet<IpNet> = tunnel.addresses.iter().copied().map(IpNet::from).collect();
        let has: BTreeSet<IpNet> = self.addresses.iter().filter(|(on, _)| *on == index).map(|(_, net)| *net).collect();
        steps.extend(addresses.difference(&has).map(|net| Step::AddAddress { link: index, address: net.addr() }));
        steps.extend(has.difference(&addresses).map(|net| Step::RemoveAddress { link: index, address: *net }));

        let ends: BTreeSet<(Mac, IpAddr)> = tunnel.ends.iter().map(|(mac, end)| (*mac, end.remote)).collect();
        let has: BTreeSet<(Mac, IpAddr)> = self
            .ends
            .iter()
            .filter(|(on, ..)| *on == index)
            .filter_map(|(_, mac, to)| Some((mac_in(mac)?, *to)))
            .collect();
        steps.extend(ends.difference(&has).map(|(mac, remote)| Step::AddEnd {
            link: index,
            mac: *mac,
            remote: *remote,
        }));
        steps.extend(has.difference(&ends).map(|(mac, remote)| Step::RemoveEnd {
            link: index,
            mac: *mac,
            remote: *remote,
        }));

        let of_end =
            |(mac, end): (&Mac, &crate::overlay::End)| end.gateways.iter().map(|ip| (*ip, *mac)).collect::<Vec<_>>();
        let neighbours: BTreeSet<(IpAddr, Mac)> = tunnel.ends.iter().flat_map(of_end).collect();
        let on_link = || self.neighbours.iter().filter(|(on, ..)| *on == index);
        let has: BTreeSet<(IpAddr, Mac)> = on_link().filter_map(|(_, ip, mac)| Some((*ip, mac_in(mac)?))).collect();
        steps.extend(neighbours.difference(&has).map(|(address, mac)| Step::AddNeighbour {
            link: index,
            address: *address,
            mac: *mac,
        }));
        let foreign = on_link().filter(|(_, ip, _)| !neighbours.iter().any(|(address, _)| address == ip));
        steps.extend(foreign.map(|(_, address, _)| Step::RemoveNeighbour { link: index, address: *address }));
    }

    fn of_routes(&self, wanted: &Overlay, steps: &mut Vec<Step>) {
        let mut routes = BTreeSet::new();
        for (net, Hop { over, gateway, source }) in &wanted.routes {
            let link = match over {
                // The kernel has no routes over a link that is down.
                Over::Uplink(index) => self.links.iter().find(|link| link.index == *index && link.up),
                Over::Tunnel(family) => self.tunnel(*family),
            };
            let Some(link) = link else { continue };
            routes.insert((*net, link.index, Some(*gateway)));
            let is_it = |route: &&MainRoute| {
                (route.net, route.link, route.gateway, route.source)
                    == (*net, Some(link.index), Some(*gateway), *source)
                    && route.protocol == PROTOCOL
            };
            if !self.routes.iter().any(|route| is_it(&route)) {
                steps.push(Step::AddRoute { net: *net, link: link.index, gateway: *gateway, source: *source });
            }
        }
        for route in self.routes.iter().filter(|route| route.protocol == PROTOCOL) {
            let Some(link) = route.link else { continue };
            if !routes.contains(&(route.net, link, route.gateway)) {
                steps.push(Step::RemoveRoute { net: route.net, link, gateway: route.gateway });
            }
        }
    }
}

impl Link {
    /// Whether it is this tunnel, but for what can be set later.
    fn is_tunnel(&self, tunnel: &Tunnel) -> bool {
        self.mac == tunnel.mac
            && self.vxlan.as_ref().is_some_and(|has| {
                (has.id, has.port, has.local) == (tunnel.vni, tunnel.port, Some(tunnel.local))
                    && !has.learning
                    && !has.floods
            })
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::SetMtu { mtu, .. } => write!(f, "the MTU {mtu} of the tunnel"),
            Step::SetUp { .. } => write!(f, "the tunnel, which was down or asked for neighbours"),
            Step::AddAddress { address, .. } => write!(f, "address {address} of the tunnel"),
            Step::AddEnd { mac, remote, .. } => write!(f, "forwarding entry {} dst {remote}", text(mac)),
            Step::AddNeighbour { address, .. } => write!(f, "neighbour {address} of the tunnel"),
            Step::AddRoute { net, gateway, .. } => write!(f, "route {net} via {gateway}"),
            Step::RemoveRoute { net, .. } => write!(f, "route {net}, which nobody wants"),
            Step::RemoveNeighbour { address, .. } => write!(f, "neighbour {address} of the tunnel, which nobody wants"),
            Step::RemoveEnd { mac, remote, .. } => {
                write!(f, "forwarding entry {} dst {remote}, which nobody wants", text(mac))
            }
            Step::RemoveAddress { address, .. } => write!(f, "address {address} of the tunnel, which nobody wants"),
            Step::RemoveLink { name } => write!(f, "link {name}, which nobody wants"),
        }
    }
}

fn add_route(route: &mut Route, net: &IpNet, link: u32, gateway: IpAddr, source: Option<IpAddr>) -> Result<()> {
    let mut new = new_route(net, link, Some(gateway), source);
    new.header.protocol = RouteProtocol::Other(PROTOCOL);
    let what = format_args!("add route {net} via {gateway} to link {link}");
    route.call(what, |to| to.route().add(new).replace().execute())
}

fn remove_route(route: &mut Route, net: &IpNet, link: u32, gateway: Option<IpAddr>) -> Result<()> {
    let mut gone = route_to(net, link);
    gone.header.scope = RouteScope::NoWhere;
    gone.header.kind = RouteType::Unspec;
    gone.header.protocol = RouteProtocol::Other(PROTOCOL);
    gone.attributes.extend(gateway.map(|gateway| RouteAttribute::Gateway(gateway.into())));
    let what = format_args!("delete route {net} from link {link}");
    ignore(route.call(what, |to| to.route().del(gone).execute()), libc::ESRCH)
}

fn list_ends(route: &mut Route, tunnels: &BTreeSet<u32>) -> Result<Vec<(u32, Vec<u8>, IpAddr)>> {
    let get = |to: &rtnetlink::Handle| {
        to.neighbours().get().set_address_family(AddressFamily::Bridge).execute().try_collect::<Vec<_>>()
    };
    let all = route.call(format_args!("list forwarding entries"), get)?;
    let parse = |message: NeighbourMessage| {
        let (mut mac, mut to) = (None, None);
        for attribute in message.attributes {
            match attribute {
                NeighbourAttribute::LinkLayerAddress(bytes) => mac = Some(bytes),
                NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => to = Some(IpAddr::V4(v4)),
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => to = Some(IpAddr::V6(v6)),
                NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => to = message::address(&bytes),
                _ => {}
            }
        }
        let index = message.header.ifindex;
        tunnels.contains(&index).then_some((index, mac?, to?))
    };
    Ok(all.into_iter().filter_map(parse).collect())
}

fn neighbour_address(address: &IpAddr) -> NeighbourAddress {
    match address {
        IpAddr::V4(v4) => NeighbourAddress::Inet(*v4),
        IpAddr::V6(v6) => NeighbourAddress::Inet6(*v6),
    }
}

fn mac_in(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok()
}

fn text(mac: &Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::read::Vxlan;
    use crate::overlay::{OverlayConfig, Own, Peer, Transport, plan};

    fn nets(all: &[&str]) -> Vec<IpNet> {
        all.iter().map(|net| net.parse().unwrap()).collect()
    }

    fn wanted(transport: Transport, peers: usize) -> Overlay {
        let own = Own {
            addresses: vec!["192.168.50.1".parse().unwrap()],
            pod_ranges: nets(&["10.244.1.0/24"]),
            service_ranges: nets(&["10.96.0.0/16"]),
            networks: nets(&["192.168.50.1/24"]),
            uplinks: vec![Uplink { index: 7, mtu: 1500, addresses: nets(&["192.168.50.1/24"]), ..Uplink::default() }],
        };
        let peer = |n: usize| Peer {
            name: format!("peer{n}"),
            addresses: vec![format!("192.168.50.{n}").parse().unwrap()],
            pod_ranges: nets(&[&format!("10.244.{n}.0/24")]),
            networks: nets(&[&format!("192.168.50.{n}/24")]),
        };
        let peers: Vec<Peer> = (2..2 + peers).map(peer).collect();
        plan(&own, &peers, &OverlayConfig { transport, ..OverlayConfig::default() })
    }

    fn link(index: u32, name: &str) -> Link {
        Link { index, name: name.to_owned(), up: true, mtu: 1450, ..Link::default() }
    }

    /// The kernel after those steps.
    fn applied(mut found: Found, steps: &[Step]) -> Found {
        for step in steps.iter().cloned() {
            match step {
                Step::AddAddress { link, address } => found.addresses.push((link, IpNet::from(address))),
                Step::AddEnd { link, mac, remote } => found.ends.push((link, mac.to_vec(), remote)),
                Step::AddNeighbour { link, address, mac } => found.neighbours.push((link, address, mac.to_vec())),
                Step::AddRoute { net, link, gateway, source } => {
                    found.routes.push(MainRoute::of(net, link, Some(gateway), source, PROTOCOL));
                }
                other => panic!("{other:?}"),
            }
        }
        found
    }

    #[test]
    fn what_is_as_wanted_needs_no_step_and_what_nobody_wants_goes() {
        let links = || vec![link(7, "eth0"), link(8, Tunnel::name(Family::V4))];
        for transport in [Transport::Routes, Transport::Vxlan] {
            let both = wanted(transport, 2);
            let mut found = Found { links: links(), ..Found::default() };
            if transport == Transport::Routes {
                found.links.pop();
            }
            let made = applied(found, &both.steps_from(Found { links: links(), ..Found::default() }));
            assert_eq!(made.steps(&both), [], "{transport:?}");
            // A route of others to other nets is theirs.
            let one = made.steps(&wanted(transport, 1));
            let expected = if transport == Transport::Routes { 1 } else { 3 };
            assert_eq!(one.len(), expected, "{one:?}");
            assert!(one.iter().all(|step| step.to_string().ends_with("which nobody wants")), "{one:?}");
        }
    }

    impl Overlay {
        /// The steps that add, of those that make it of what was found.
        fn steps_from(&self, found: Found) -> Vec<Step> {
            let steps = found.steps(self);
            steps.into_iter().filter(|step| !matches!(step, Step::RemoveLink { .. })).collect()
        }
    }

    #[test]
    fn routes_of_others_stay_and_none_leads_over_a_link_that_is_down() {
        let of_other = MainRoute::of("10.9.0.0/16".parse().unwrap(), 7, None, None, 4);
        let mut found = Found { links: vec![link(7, "eth0")], routes: vec![of_other], ..Found::default() };
        assert_eq!(found.steps(&Overlay::default()), []);
        found.links[0].up = false;
        assert_eq!(found.steps(&wanted(Transport::Routes, 1)), []);
    }

    #[test]
    fn a_tunnel_with_other_settings_is_another_one() {
        let overlay = wanted(Transport::Vxlan, 1);
        let tunnel = &overlay.tunnels[&Family::V4];
        let vxlan =
            Vxlan { id: tunnel.vni, port: tunnel.port, local: Some(tunnel.local), learning: false, floods: false };
        let made = |vxlan: Vxlan| Link { mac: tunnel.mac.to_vec(), vxlan: Some(vxlan), ..link(8, "podwright-vx4") };
        assert!(made(vxlan.clone()).is_tunnel(tunnel));
        for other in [
            Vxlan { id: 1, ..vxlan.clone() },
            Vxlan { port: 4789, ..vxlan.clone() },
            Vxlan { local: None, ..vxlan.clone() },
            Vxlan { learning: true, ..vxlan.clone() },
            Vxlan { floods: true, ..vxlan.clone() },
        ] {
            assert!(!made(other.clone()).is_tunnel(tunnel), "{other:?}");
        }
        assert!(!Link { mac: vec![2; 6], ..made(vxlan) }.is_tunnel(tunnel));
    }
}
