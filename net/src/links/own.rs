//! The node's own addresses and routes.

use std::net::IpAddr;

use futures::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::route::RouteScope;

use super::names::LOOPBACK;
use super::read::{index_of, list_addresses, list_routes};
use super::requests::{self, ignore, route_to};
use super::{LinkState, Links};
use crate::{Error, Family, Result};

impl Links {
    /// Adds the desired addresses and routes of `lo`; existing ones stay.
    pub fn set_own(&mut self, wanted: &LinkState) -> Result<()> {
        wanted.addresses.iter().try_for_each(|address| self.add_address("lo", &IpNet::from(*address)))?;
        wanted.routes.iter().try_for_each(|(net, source)| self.add_route(net, "lo", None, *source))
    }

    /// Adds an address of the node on `link` (`lo` for an isolated node and for the cluster's DNS address).
    pub fn add_address(&mut self, link: &str, address: &IpNet) -> Result<()> {
        let index = index_of(&mut self.route, link)?;
        requests::add_address(&mut self.route, index, address)
    }

    pub fn remove_address(&mut self, link: &str, address: &IpNet) -> Result<()> {
        let index = index_of(&mut self.route, link)?;
        let what = format_args!("delete address {address} from {link}");
        let found: Vec<_> = self.route.call(format_args!("list addresses of {link}"), |to| {
            let all = to.address().get().set_link_index_filter(index);
            all.set_address_filter(address.addr())
                .set_prefix_length_filter(address.prefix_len())
                .execute()
                .try_collect()
        })?;
        for message in found {
            ignore(self.route.call(what, |to| to.address().del(message).execute()), libc::EADDRNOTAVAIL)?;
        }
        Ok(())
    }

    /// The addresses of all links of the node's namespace, with their link's index.
    pub fn addresses(&mut self) -> Result<Vec<(u32, IpNet)>> {
        list_addresses(&mut self.route)
    }

    /// Whether a link, by its index, is `lo`.
    pub fn is_loopback(index: u32) -> bool {
        index == LOOPBACK
    }

    /// A route of the node: `net dev link [via gateway] [src source]`, replacing one to the same net.
    pub fn add_route(&mut self, net: &IpNet, link: &str, via: Option<IpAddr>, source: Option<IpAddr>) -> Result<()> {
        let index = index_of(&mut self.route, link)?;
        requests::add_route(&mut self.route, net, index, via, source)
    }

    pub fn remove_route(&mut self, net: &IpNet, link: &str) -> Result<()> {
        let index = index_of(&mut self.route, link)?;
        let mut route = route_to(net, index);
        route.header.scope = RouteScope::NoWhere;
        let what = format_args!("delete route {net} dev {link}");
        ignore(self.route.call(what, |to| to.route().del(route).execute()), libc::ESRCH)
    }

    /// The node's source address for connections to the outside, for each family with a default route.
    pub fn default_sources(&mut self) -> Result<Vec<IpAddr>> {
        let links = self.addresses()?;
        let routes = list_routes(&mut self.route)?;
        let of = |family: Family| {
            let mut defaults: Vec<_> =
                routes.iter().filter(|r| r.is_default() && Family::of_net(&r.net) == family).collect();
            defaults.sort_by_key(|r| r.priority);
            defaults.iter().find_map(|route| {
                let own = |(index, net): &&(u32, IpNet)| {
                    Some(*index) == route.link && Family::of_net(net) == family && !is_link_local(&net.addr())
                };
                route.source.or_else(|| links.iter().find(own).map(|(_, net)| net.addr()))
            })
        };
        Ok(Family::ALL.into_iter().filter_map(of).collect())
    }

    /// For each family the address that the node would use to reach the outside, or else the first one of a link that leads to other
    /// machines.
    ///
    /// # Errors
    ///
    /// No link has any, or the kernel does not list them.
    pub fn first_addresses(&mut self) -> Result<Vec<IpAddr>> {
        let mut all = self.default_sources()?;
        let links = self.uplinks()?.into_iter().filter(|link| !link.is_of_containers);
        let on_links: Vec<IpAddr> = links.flat_map(|link| link.addresses).map(|net| net.addr()).collect();
        for address in on_links.into_iter().filter(|address| !is_link_local(address)) {
            if !all.iter().any(|has| Family::of(has) == Family::of(&address)) {
                all.push(address);
            }
        }
        if all.is_empty() { Err(Error::NoAddress) } else { Ok(all) }
    }
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    }
}
