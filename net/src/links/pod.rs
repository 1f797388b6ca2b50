//! The link of one Pod: its two ends, their addresses, neighbours and routes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::IpNet;
use podwright_journal::JournalWriter;
use rtnetlink::packet_route::link::{AfSpecInet, AfSpecUnspec, InfoData, InfoVeth, LinkAttribute};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};

use super::names::{HOST_MAC, LOOPBACK, POD_LINK, default_of, link_name, pod_mac};
use super::read::{Link, get_link, is_vast, list_routes};
use super::requests::{add_address, add_neighbour, add_route, ignore, ipv6_available, set_mtu, set_up};
use super::settings::{generates_none, host_end_settings};
use super::{Links, PodLink};
use crate::netlink::Route;
use crate::{Error, Family, Result};

/// The group of links about to be removed.
const DYING: u32 = 0x7077_6400;

impl Links {
    /// Sets up the link and addresses of the Pod whose namespace is `pod`. Existing parts, from an interrupted attempt or complete,
    /// are kept. Fails if the kernel refuses.
    pub fn attach(
        &mut self,
        owner: &str,
        pod: BorrowedFd<'_>,
        addresses: &[IpAddr],
        journal: &JournalWriter,
    ) -> Result<PodLink> {
        self.recorded(journal, |links| links.wire(owner, pod, addresses, journal))
    }

    fn wire(
        &mut self,
        owner: &str,
        pod: BorrowedFd<'_>,
        addresses: &[IpAddr],
        journal: &JournalWriter,
    ) -> Result<PodLink> {
        let name = link_name(owner);
        // 1. Inside the Pod's namespace: its settings, and a socket that stays there.
        let mut inside = enter_pod(pod, journal)?;
        // 2. The pair, whose far end is created inside the Pod.
        let (host, peer) = self.pair(&name, owner, pod, &mut inside)?;
        if host.mtu != self.pod_mtu {
            // The Pod's end first: what it sends is not to be too long for the node's.
            set_mtu(&mut inside, peer, self.pod_mtu)?;
            set_mtu(&mut self.route, host.index, self.pod_mtu)?;
        }
        // 3. The host's end: alias, filter, up, and its permanent neighbour. If ARP was enabled until then, the kernel drops all
        //    neighbours, including permanent ones, and a running Pod is disconnected until they are restored, whatever fails below.
        self.host_end(host.index, owner)?;
        self.neighbours_of(host.index, owner, addresses)?;
        // 4. The Pod's end: up, with exactly these addresses, gateway and default route.
        pod_end(&mut inside, peer, addresses, is_vast(pod)?)?;
        // 5. The host's end came up before its peer, so the kernel enables transmission only in a later work item: up to a
        //    second later, dropping everything until then. Querying the link runs it at once (Linux 6.8).
        get_link(&mut self.route, &name)?;
        // 6. Routes to the Pod; from here on traffic flows.
        self.routes_to(host.index, addresses)?;
        Ok(PodLink {
            name,
            index: host.index,
            peer_index: peer,
            node: self.node.clone(),
            owner: owner.to_owned(),
            up: true,
            mtu: self.pod_mtu,
        })
    }

    /// Adds the routes to these Pods where their links are: the kernel removes all of them at once, with the address that is their
    /// source. What fails here is found by comparing.
    pub fn route_again(&mut self, pods: &BTreeMap<String, Vec<IpAddr>>) -> Result<()> {
        for link in self.list()? {
            if let Some(addresses) = pods.get(&link.owner)
                && let Err(error) = self.routes_to(link.index, addresses)
            {
                tracing::debug!(%error, owner = link.owner, "failed to add the routes to a Pod again");
            }
        }
        Ok(())
    }

    /// Removes several Pods' links at the cost of one: the kernel waits some 20 ms for readers (RCU) at each removal, however many
    /// links it covers. So they are put into a group, which is removed.
    pub fn detach_all(&mut self, names: &BTreeSet<String>, journal: &JournalWriter) -> Result<()> {
        self.recorded(journal, |links| links.remove_all(names))
    }

    fn remove_all(&mut self, names: &BTreeSet<String>) -> Result<()> {
        if let (Some(name), 1) = (names.first(), names.len()) {
            return self.remove(name);
        }
        for name in names {
            let doomed = LinkUnspec::new_with_name(name).link_group(DYING).build();
            let set =
                self.route.call(format_args!("set link {name} group {DYING}"), |to| to.link().change(doomed).execute());
            ignore(set, libc::ENODEV)?;
        }
        let what = format_args!("delete the {} links of group {DYING}", names.len());
        let group = LinkMessageBuilder::<LinkUnspec>::new().link_group(DYING).build();
        ignore(self.route.call(what, |to| to.link().del_with_message(group).execute()), libc::ENODEV)
    }

    /// Both ends of the pair, created if missing.
    fn pair(&mut self, name: &str, owner: &str, pod: BorrowedFd<'_>, inside: &mut Route) -> Result<(Link, u32)> {
        match self.add_pair(name, owner, pod) {
            Err(e) if e.errno() == Some(libc::EEXIST) => {}
            made => made?,
        }
        let (host, peer) = (get_link(&mut self.route, name)?, get_link(inside, POD_LINK)?);
        if let (Some(host), Some(peer)) = (host, peer)
            && (peer.peer_index, host.peer_index) == (host.index, peer.index)
        {
            return Ok((host, peer.index));
        }
        // The old end of a Pod whose namespace is gone, or about to be.
        self.remove(name)?;
        self.add_pair(name, owner, pod)?;
        let missing = || Error::Malformed("the link just made");
        let host = get_link(&mut self.route, name)?.ok_or_else(missing)?;
        let peer = get_link(inside, POD_LINK)?.ok_or_else(missing)?;
        Ok((host, peer.index))
    }

    fn add_pair(&mut self, name: &str, owner: &str, pod: BorrowedFd<'_>) -> Result<()> {
        let peer = LinkUnspec::new_with_name(POD_LINK).address(pod_mac(owner).to_vec()).setns_by_fd(pod.as_raw_fd());
        let peer = InfoData::Veth(InfoVeth::Peer(peer.build()));
        let pair = LinkVeth::new(name, POD_LINK).address(HOST_MAC.to_vec()).set_info_data(peer).build();
        let what = format_args!("add link {name} type veth peer {POD_LINK}");
        self.route.call(what, |to| to.link().add(pair).execute())
    }

    /// Up, labelled, and deaf to ARP: else the node learns each address that the Pod says to have, where the machine takes what it
    /// has not asked for (`conf.all.arp_accept`), and each takes a place in the one table that the kernel has for all neighbours.
    fn host_end(&mut self, index: u32, owner: &str) -> Result<()> {
        let mut families = vec![AfSpecUnspec::Inet(vec![AfSpecInet::Other(host_end_settings())])];
        if ipv6_available() {
            families.push(generates_none());
        }
        let alias = self.label(owner);
        let link = LinkUnspec::new_with_index(index).arp(false).up().alias(&alias);
        let link = link.append_extra_attribute(LinkAttribute::AfSpecUnspec(families)).build();
        self.route
            .call(format_args!("set link {index} up arp off alias {alias}"), |to| to.link().change(link).execute())
    }

    fn neighbours_of(&mut self, index: u32, owner: &str, addresses: &[IpAddr]) -> Result<()> {
        addresses.iter().try_for_each(|address| add_neighbour(&mut self.route, index, *address, &pod_mac(owner)))
    }

    fn routes_to(&mut self, index: u32, addresses: &[IpAddr]) -> Result<()> {
        for address in addresses {
            let source = self.sources.iter().find(|s| s.is_ipv4() == address.is_ipv4()).copied();
            add_route(&mut self.route, &IpNet::from(*address), index, None, source)?;
        }
        Ok(())
    }
}

/// Opens a socket in a Pod's namespace.
fn enter_pod(netns: BorrowedFd<'_>, journal: &JournalWriter) -> Result<Route> {
    let mut inside = Route::open_in(netns)?;
    inside.set_journal(journal.clone());
    Ok(inside)
}

fn pod_end(inside: &mut Route, index: u32, addresses: &[IpAddr], vast: bool) -> Result<()> {
    set_up(inside, LOOPBACK)?;
    no_address_of_its_own(inside, index)?;
    up_without_asking(inside, index)?;
    for address in addresses {
        add_address(inside, index, &IpNet::from(*address))?;
    }
    for family in Family::ALL {
        if addresses.iter().any(|a| Family::of(a) == family) {
            let (gateway, everywhere) = default_of(family);
            add_neighbour(inside, index, gateway, &HOST_MAC)?;
            // A Pod that may administer its network can have another default route, which is its own business.
            if !vast && !list_routes(inside)?.iter().any(|r| r.is_default() && Family::of_net(&r.net) == family) {
                add_route(inside, &everywhere, index, Some(gateway), None)?;
            }
        }
    }
    Ok(())
}

/// Keeps the kernel from adding an fe80::/64 address when the link comes up, and with it a route: no one is there, and each
/// destination address would take an entry for seconds in the kernel's single IPv6 neighbour table.
fn no_address_of_its_own(route: &mut Route, index: u32) -> Result<()> {
    if !ipv6_available() {
        return Ok(());
    }
    let link = LinkUnspec::new_with_index(index);
    let link = link.append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![generates_none()])).build();
    route.call(format_args!("set link {index} addrgenmode none"), |to| to.link().change(link).execute())
}

/// Brings a Pod's link up without neighbour resolution: both ends are permanent neighbours. With ARP, an unprivileged process can
/// make its kernel resolve each address that it sends to (SO_BINDTODEVICE and SO_DONTROUTE treat it as on-link), and each takes an
/// entry for seconds in the neighbour table shared by all namespaces. Without, such an entry is the first to be evicted.
fn up_without_asking(route: &mut Route, index: u32) -> Result<()> {
    let link = LinkUnspec::new_with_index(index).arp(false).up().build();
    route.call(format_args!("set link {index} up arp off"), |to| to.link().change(link).execute())
}
