//! Single requests to rtnetlink, in one network namespace.

use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::LinkUnspec;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};

use crate::netlink::Route;
use crate::{Family, Result};

/// By itself: below 1280 a link has no IPv6, and takes none of its settings until it has more.
pub(super) fn set_mtu(route: &mut Route, index: u32, mtu: u32) -> Result<()> {
    let link = LinkUnspec::new_with_index(index).mtu(mtu).build();
    route.call(format_args!("set link {index} mtu {mtu}"), |to| to.link().change(link).execute())
}

pub(super) fn set_up(route: &mut Route, index: u32) -> Result<()> {
    let up = LinkUnspec::new_with_index(index).up().build();
    route.call(format_args!("set link {index} up"), |to| to.link().change(up).execute())
}

pub(super) fn add_address(route: &mut Route, index: u32, address: &IpNet) -> Result<()> {
    route.call(format_args!("add address {address} to link {index}"), |to| {
        let mut request = to.address().add(index, address.addr(), address.prefix_len()).replace();
        if address.addr().is_ipv6() {
            // No one else is on this link: duplicate address detection would only delay the Pod's first packet.
            request.message_mut().attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        request.execute()
    })
}

/// A permanent neighbour, without resolution.
pub(super) fn add_neighbour(route: &mut Route, index: u32, address: IpAddr, mac: &[u8; 6]) -> Result<()> {
    route.call(format_args!("add neighbour {address} to link {index}"), |to| {
        to.neighbours().add(index, address).link_layer_address(mac).replace().execute()
    })
}

/// Adds or replaces `net dev <index> [via gateway onlink] [src source]`.
pub(super) fn add_route(
    route: &mut Route,
    net: &IpNet,
    index: u32,
    via: Option<IpAddr>,
    source: Option<IpAddr>,
) -> Result<()> {
    let new = new_route(net, index, via, source);
    let through = via.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    let what = format_args!("add route {net}{through} to link {index}");
    route.call(what, |to| to.route().add(new).replace().execute())
}

/// `net dev <index> [via gateway onlink] [src source]`.
pub(super) fn new_route(net: &IpNet, index: u32, via: Option<IpAddr>, source: Option<IpAddr>) -> RouteMessage {
    let mut new = route_to(net, index);
    new.header.protocol = RouteProtocol::Static;
    new.header.kind = RouteType::Unicast;
    new.header.scope = RouteScope::Link;
    if let Some(gateway) = via {
        new.header.scope = RouteScope::Universe;
        new.header.flags |= RouteFlags::Onlink;
        new.attributes.push(RouteAttribute::Gateway(gateway.into()));
    }
    new.attributes.extend(source.map(|address| RouteAttribute::PrefSource(address.into())));
    new
}

/// Identifies a route of the main table: its destination and link.
pub(super) fn route_to(net: &IpNet, index: u32) -> RouteMessage {
    let mut route = RouteMessage::default();
    route.header.address_family = match Family::of_net(net) {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    route.header.destination_prefix_length = net.prefix_len();
    route.header.table = RouteHeader::RT_TABLE_MAIN;
    route.attributes = vec![RouteAttribute::Destination(net.network().into()), RouteAttribute::Oif(index)];
    route
}

pub(super) fn ignore(result: Result<()>, errno: i32) -> Result<()> {
    match result {
        Err(e) if e.errno() == Some(errno) => Ok(()),
        other => other,
    }
}

/// Whether the kernel has IPv6 at all (`ipv6.disable=1` removes it).
pub fn ipv6_available() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}
