//! The way to an address, as the kernel would send a packet there.

use std::net::IpAddr;

use futures::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};

use super::read::{index_of, list_links};
use crate::netlink::Route as Asker;
use crate::why::Route;
use crate::{Error, Family, Result};

/// The way to an address: for a packet of the node, or for one that comes `from` somebody by a link. Or why there is none: such a
/// source does not come by that link (EXDEV, EINVAL), or nothing leads there.
///
/// # Errors
///
/// The kernel cannot be asked.
pub fn way(
    asker: &mut Asker,
    from: Option<IpAddr>,
    link: Option<&str>,
    to: IpAddr,
) -> Result<std::result::Result<Route, String>> {
    let mut message = RouteMessage::default();
    let family = Family::of(&to);
    message.header.address_family = if family == Family::V4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.destination_prefix_length = family.bits();
    message.attributes = vec![RouteAttribute::Destination(to.into())];
    if let Some(from) = from {
        message.header.source_prefix_length = family.bits();
        message.attributes.push(RouteAttribute::Source(from.into()));
    }
    if let Some(link) = link {
        match index_of(asker, link) {
            Ok(index) => message.attributes.push(RouteAttribute::Iif(index)),
            Err(_) => return Ok(Err(format!("there is no link {link}"))),
        }
    }
    let what = format!("get route to {to}");
    let found = asker.call(format_args!("{what}"), |ask| ask.route().get(message).execute().try_collect::<Vec<_>>());
    let found = match found {
        Ok(found) => found,
        Err(Error::Call { source, .. }) if source.raw_os_error().is_some() => {
            return Ok(Err(why(source.raw_os_error(), from, link, &source)));
        }
        Err(error) => return Err(error),
    };
    let message = found.into_iter().next().ok_or(Error::Malformed("a route"))?;
    let mut route = Route { kind: kind(message.header.kind), ..Route::default() };
    let mut index = 0;
    for attribute in message.attributes {
        match attribute {
            RouteAttribute::Oif(link) => index = link,
            RouteAttribute::Gateway(RouteAddress::Inet(hop)) => route.next_hop = Some(hop.into()),
            RouteAttribute::Gateway(RouteAddress::Inet6(hop)) => route.next_hop = Some(hop.into()),
            RouteAttribute::PrefSource(RouteAddress::Inet(source)) => route.source = Some(source.into()),
            RouteAttribute::PrefSource(RouteAddress::Inet6(source)) => route.source = Some(source.into()),
            _ => {}
        }
    }
    let links = list_links(asker)?;
    route.link = links.into_iter().find(|link| link.index == index).map(|link| link.name).unwrap_or_default();
    Ok(Ok(route))
}

fn why(errno: Option<i32>, from: Option<IpAddr>, link: Option<&str>, error: &std::io::Error) -> String {
    match (errno, from, link) {
        (Some(libc::EXDEV | libc::EINVAL), Some(from), Some(link)) => {
            format!("the reverse path filter drops packets of {from} that come by {link}")
        }
        (Some(libc::ENETUNREACH), ..) => "no route".to_owned(),
        _ => error.to_string(),
    }
}

/// As `ip route` calls it.
fn kind(kind: RouteType) -> &'static str {
    match kind {
        RouteType::Unicast => "unicast",
        RouteType::Local => "local",
        RouteType::Broadcast => "broadcast",
        RouteType::Anycast => "anycast",
        RouteType::Multicast => "multicast",
        RouteType::BlackHole => "blackhole",
        RouteType::Unreachable => "unreachable",
        RouteType::Prohibit => "prohibit",
        _ => "unknown",
    }
}
