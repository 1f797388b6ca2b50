//! Reads the kernel's links, addresses and routes.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use futures::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::Handle;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{
    AfSpecInet, AfSpecUnspec, InfoData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage};
use serde::Serialize;

use super::PodLink;
use super::names::{ALIAS, POD_LINK, default_of};
use super::settings::{IPV4_DEVCONF_FORWARDING, IPV4_DEVCONF_RP_FILTER, IPV4_DEVCONF_SEND_REDIRECTS};
use crate::netlink::{self, Route};
use crate::{Error, Family, Result};

/// Maximum number of links, addresses, routes or neighbours read in a Pod's namespace: their number is up to the Pod.
pub const MOST: usize = 4096;

/// A link with its addresses and routes, for `inspect`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkDetails {
    pub name: String,
    pub index: u32,
    pub peer_index: u32,
    pub mac: String,
    pub mtu: u32,
    pub up: bool,
    pub addresses: Vec<IpNet>,
    /// In the format of `ip route`.
    pub routes: Vec<String>,
}

/// A Pod's end of its link, for `inspect`; `None` if the namespace has none. For a [vast](is_vast) one only the link.
pub fn pod_details(netns: BorrowedFd<'_>) -> Result<Option<LinkDetails>> {
    let mut route = Route::open_in(netns)?;
    if is_vast(netns)? {
        let link = get_link(&mut route, POD_LINK)?;
        let routes = vec![format!("more than {MOST} links, addresses, routes or neighbours")];
        return Ok(link.map(|link| link.details(Vec::new(), routes)));
    }
    details(&mut route, POD_LINK)
}

/// Whether a Pod's namespace has more than is read. Its administrator can create millions of routes in seconds, and the agent would
/// read them repeatedly, while all other Pods' links wait.
pub(super) fn is_vast(netns: BorrowedFd<'_>) -> Result<bool> {
    netlink::has_more_than(netns, MOST)
}

/// A link as reported by the kernel.
#[derive(Default)]
pub(super) struct Link {
    pub name: String,
    pub index: u32,
    pub peer_index: u32,
    pub alias: String,
    pub mac: Vec<u8>,
    pub mtu: u32,
    pub up: bool,
    /// Whether it resolves neighbours: ARP, neighbour discovery.
    pub asks: bool,
    /// Its current values of the settings in [`super::settings::HOST_END`], in that order.
    pub settings: Option<Vec<(u16, u32)>>,
    /// Of a tunnel.
    pub vxlan: Option<Vxlan>,
}

/// How a tunnel is set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Vxlan {
    pub id: u32,
    pub port: u16,
    pub local: Option<IpAddr>,
    /// Whether it takes senders' words for where hardware addresses are.
    pub learning: bool,
    /// Whether it sends to somebody what it has no entry for.
    pub floods: bool,
}

impl From<LinkMessage> for Link {
    fn from(message: LinkMessage) -> Link {
        let (index, flags) = (message.header.index, message.header.flags);
        let (up, asks) = (flags.contains(LinkFlags::Up), !flags.contains(LinkFlags::Noarp));
        let mut link = Link { index, up, asks, ..Link::default() };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Link(index) => link.peer_index = index,
                LinkAttribute::IfAlias(alias) => link.alias = alias,
                LinkAttribute::Address(mac) => link.mac = mac,
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::AfSpecUnspec(families) => link.settings = families.into_iter().find_map(settings),
                LinkAttribute::LinkInfo(infos) => link.vxlan = infos.into_iter().find_map(vxlan),
                _ => {}
            }
        }
        link
    }
}

fn vxlan(info: LinkInfo) -> Option<Vxlan> {
    let LinkInfo::Data(InfoData::Vxlan(all)) = info else { return None };
    let mut vxlan = Vxlan::default();
    for info in all {
        match info {
            InfoVxlan::Id(id) => vxlan.id = id,
            InfoVxlan::Port(port) => vxlan.port = port,
            InfoVxlan::Local(local) => vxlan.local = Some(local.into()),
            InfoVxlan::Local6(local) => vxlan.local = Some(local.into()),
            InfoVxlan::Learning(learning) => vxlan.learning = learning,
            InfoVxlan::Group(to) => vxlan.floods = !to.is_unspecified(),
            InfoVxlan::Group6(to) => vxlan.floods = !to.is_unspecified(),
            _ => {}
        }
    }
    Some(vxlan)
}

fn settings(family: AfSpecUnspec) -> Option<Vec<(u16, u32)>> {
    let AfSpecUnspec::Inet(all) = family else { return None };
    all.into_iter().find_map(|inet| match inet {
        AfSpecInet::DevConf(has) => Some(vec![
            (IPV4_DEVCONF_FORWARDING, has.forwarding as u32),
            (IPV4_DEVCONF_SEND_REDIRECTS, has.send_redirects as u32),
            (IPV4_DEVCONF_RP_FILTER, has.rp_filter as u32),
        ]),
        _ => None,
    })
}

impl Link {
    fn details(self, addresses: Vec<IpNet>, routes: Vec<String>) -> LinkDetails {
        let mac: Vec<String> = self.mac.iter().map(|b| format!("{b:02x}")).collect();
        LinkDetails {
            addresses,
            routes,
            mac: mac.join(":"),
            name: self.name,
            index: self.index,
            peer_index: self.peer_index,
            mtu: self.mtu,
            up: self.up,
        }
    }

    /// One of our links, by its alias.
    pub(super) fn pod_link(self) -> Option<PodLink> {
        let (node, owner) = self.alias.strip_prefix(ALIAS)?.strip_prefix('/')?.split_once('/')?;
        Some(PodLink {
            node: node.to_owned(),
            owner: owner.to_owned(),
            name: self.name,
            index: self.index,
            peer_index: self.peer_index,
            up: self.up,
            mtu: self.mtu,
        })
    }
}

pub(super) fn get_link(route: &mut Route, name: &str) -> Result<Option<Link>> {
    let get = |to: &Handle| to.link().get().match_name(name).execute().try_collect::<Vec<_>>();
    match route.call(format_args!("get link {name}"), get) {
        Ok(links) => Ok(links.into_iter().next().map(Link::from)),
        Err(e) if e.errno() == Some(libc::ENODEV) => Ok(None),
        Err(e) => Err(e),
    }
}

pub(super) fn index_of(route: &mut Route, name: &str) -> Result<u32> {
    let missing = || Error::call(format!("get link {name}"), io::Error::from_raw_os_error(libc::ENODEV));
    Ok(get_link(route, name)?.ok_or_else(missing)?.index)
}

pub(super) fn list_links(route: &mut Route) -> Result<Vec<Link>> {
    let get = |to: &Handle| to.link().get().execute().try_collect::<Vec<_>>();
    Ok(route.call(format_args!("list links"), get)?.into_iter().map(Link::from).collect())
}

pub(super) fn list_addresses(route: &mut Route) -> Result<Vec<(u32, IpNet)>> {
    let get = |to: &Handle| to.address().get().execute().try_collect::<Vec<_>>();
    let all = route.call(format_args!("list addresses"), get)?;
    let parse = |message: AddressMessage| {
        let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
        // On a point-to-point link `Address` is the other end's.
        let local = find(|a| if let AddressAttribute::Local(ip) = a { Some(*ip) } else { None });
        let address =
            local.or_else(|| find(|a| if let AddressAttribute::Address(ip) = a { Some(*ip) } else { None }))?;
        Some((message.header.index, IpNet::new(address, message.header.prefix_len).ok()?))
    };
    Ok(all.into_iter().filter_map(parse).collect())
}

/// A route of the main table.
pub(super) struct MainRoute {
    pub net: IpNet,
    pub link: Option<u32>,
    pub gateway: Option<IpAddr>,
    pub source: Option<IpAddr>,
    pub priority: u32,
    /// Who has made it.
    pub protocol: u8,
}

impl MainRoute {
    #[cfg(test)]
    pub(super) fn new(net: IpNet, link: u32, source: Option<IpAddr>) -> MainRoute {
        MainRoute::of(net, link, None, source, 0)
    }

    #[cfg(test)]
    pub(super) fn of(
        net: IpNet,
        link: u32,
        gateway: Option<IpAddr>,
        source: Option<IpAddr>,
        protocol: u8,
    ) -> MainRoute {
        MainRoute { net, link: Some(link), gateway, source, priority: 0, protocol }
    }

    fn parse(message: RouteMessage) -> Option<MainRoute> {
        let family = match message.header.address_family {
            AddressFamily::Inet => Family::V4,
            AddressFamily::Inet6 => Family::V6,
            _ => return None,
        };
        let (everywhere, mut table) = (default_of(family).1, u32::from(message.header.table));
        let protocol = message.header.protocol.into();
        let mut route = MainRoute { net: everywhere, link: None, gateway: None, source: None, priority: 0, protocol };
        for attribute in message.attributes {
            match attribute {
                RouteAttribute::Table(id) => table = id,
                RouteAttribute::Destination(to) => {
                    route.net = IpNet::new(ip(to)?, message.header.destination_prefix_length).ok()?;
                }
                RouteAttribute::Oif(index) => route.link = Some(index),
                RouteAttribute::Gateway(gateway) => route.gateway = ip(gateway),
                RouteAttribute::PrefSource(source) => route.source = ip(source),
                RouteAttribute::Priority(priority) => route.priority = priority,
                _ => {}
            }
        }
        (table == u32::from(RouteHeader::RT_TABLE_MAIN)).then_some(route)
    }

    pub(super) fn is_default(&self) -> bool {
        self.net.prefix_len() == 0
    }

    /// In the format of `ip route`, without the link.
    fn text(&self) -> String {
        let mut text = match (self.is_default(), self.net.prefix_len() == self.net.max_prefix_len()) {
            (true, _) => "default".to_owned(),
            (_, true) => self.net.addr().to_string(),
            _ => self.net.to_string(),
        };
        for (word, address) in [("via", self.gateway), ("src", self.source)] {
            if let Some(address) = address {
                text += &format!(" {word} {address}");
            }
        }
        text
    }
}

fn ip(address: RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(v4.into()),
        RouteAddress::Inet6(v6) => Some(v6.into()),
        _ => None,
    }
}

pub(super) fn list_routes(route: &mut Route) -> Result<Vec<MainRoute>> {
    let get = |to: &Handle| to.route().get(RouteMessage::default()).execute().try_collect::<Vec<_>>();
    let all = route.call(format_args!("list routes"), get)?;
    Ok(all.into_iter().filter_map(MainRoute::parse).collect())
}

pub(super) fn details(route: &mut Route, name: &str) -> Result<Option<LinkDetails>> {
    let Some(link) = get_link(route, name)? else { return Ok(None) };
    let addresses = list_addresses(route)?.into_iter().filter(|(index, _)| *index == link.index).map(|(_, net)| net);
    let addresses = addresses.collect();
    let routes = list_routes(route)?.into_iter().filter(|r| r.link == Some(link.index)).map(|r| r.text()).collect();
    Ok(Some(link.details(addresses, routes)))
}
