//! One routed veth per Pod, and the node's own address and routes, through rtnetlink.
//!
//! The host's end has no address: each Pod address has a /32 (/128) route to it. Both ends have the other's hardware address
//! configured (permanent neighbours), so there is no ARP or neighbour discovery on such a link, and no proxy_arp.

mod check;
mod overlay;
mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use futures::TryStreamExt;
use ipnet::IpNet;
use podwright_journal::JournalWriter;
use rtnetlink::packet_core::{DefaultNla, Emitable, NLA_F_NESTED};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoVeth, LinkAttribute,
};
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};
use serde::Serialize;

pub use read::{LinkDetails, MOST, pod_details};

use crate::netlink::Route;
use crate::overlay::MOST_MTU;
use crate::{Error, Family, Result};
use check::View;
use read::{Link, details, get_link, index_of, is_vast, list_addresses, list_links, list_routes};

/// The Pod's default gateway: an address of no link; the permanent neighbour makes it reachable.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// The name of a Pod's link, inside the Pod.
pub const POD_LINK: &str = "eth0";
/// Hardware address of the host's end of every Pod link (locally administered).
const HOST_MAC: [u8; 6] = [0xee; 6];
/// The prefix of our links' aliases: `podwright/<node>/<owner>`.
const ALIAS: &str = "podwright";
/// The alias of `lo` in a namespace that a node has taken: `podwright-node/<mark>`.
const NODE_ALIAS: &str = "podwright-node/";

/// The index of `lo` in every namespace.
const LOOPBACK: u32 = 1;

/// The group of links about to be removed.
const DYING: u32 = 0x7077_6400;

/// A Pod's link on the node's side, as read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodLink {
    pub name: String,
    pub index: u32,
    /// Index of the other end, in the Pod's namespace.
    pub peer_index: u32,
    pub node: String,
    /// The Pod's uid.
    pub owner: String,
    pub up: bool,
    pub mtu: u32,
}

/// The desired state of a node's links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// The addresses of each Pod's link, by its owner.
    pub pods: BTreeMap<String, Vec<IpAddr>>,
    /// Those of `lo`.
    pub addresses: Vec<IpAddr>,
    /// Those over `lo`, with their sources.
    pub routes: Vec<(IpNet, Option<IpAddr>)>,
}

/// What the kernel lacks compared with a [`LinkState`], in words.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lacks {
    /// The node's own addresses and routes.
    pub node: Vec<String>,
    /// The first problem of each Pod's link on the node's side, by owner.
    pub pods: BTreeMap<String, String>,
    /// The links of Pods, by index.
    pub indexes: BTreeSet<u32>,
}

/// Sets links up and takes them down, in one network namespace.
pub struct Links {
    node: String,
    route: Route,
    /// The node's own address of each family: the source of what the node sends to Pods.
    pub sources: Vec<IpAddr>,
    /// The longest packet of a Pod's link, in bytes.
    pub pod_mtu: u32,
}

impl Links {
    pub fn open(node: &str, netns: BorrowedFd<'_>) -> Result<Links> {
        Ok(Links { node: node.to_owned(), route: Route::open_in(netns)?, sources: Vec::new(), pod_mtu: MOST_MTU })
    }

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

    /// Compares the node's side of Pods' links, and addresses and routes of `lo`, with the kernel's state. Fails if it cannot be
    /// read.
    pub fn compare(&mut self, wanted: &LinkState) -> Result<Lacks> {
        Ok(View::read(&mut self.route)?.lacks(wanted, |owner| self.label(owner), &self.sources, self.pod_mtu))
    }

    /// Adds the desired addresses and routes of `lo`; existing ones stay.
    pub fn set_own(&mut self, wanted: &LinkState) -> Result<()> {
        wanted.addresses.iter().try_for_each(|address| self.add_address("lo", &IpNet::from(*address)))?;
        wanted.routes.iter().try_for_each(|(net, source)| self.add_route(net, "lo", None, *source))
    }

    /// What the Pod's side of its link lacks, in words; `pod` is the Pod's namespace. One that is too large to read lacks nothing.
    pub fn lacks_in_pod(&mut self, owner: &str, pod: BorrowedFd<'_>, addresses: &[IpAddr]) -> Result<Option<String>> {
        let name = link_name(owner);
        let Some(host) = get_link(&mut self.route, &name)? else { return Ok(Some(format!("link {name}"))) };
        if is_vast(pod)? {
            return Ok(None);
        }
        Ok(View::read(&mut Route::open_in(pod)?)?.lacks_in_pod(&host, addresses))
    }

    /// The addresses routed over our links, by the links' owners: what Pods really have.
    pub fn routed(&mut self) -> Result<BTreeMap<String, Vec<IpAddr>>> {
        let owners: BTreeMap<u32, String> = self.list()?.into_iter().map(|link| (link.index, link.owner)).collect();
        let mut routed: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        for route in list_routes(&mut self.route)?.iter().filter(|r| r.net.prefix_len() == r.net.max_prefix_len()) {
            if let Some(owner) = route.link.and_then(|index| owners.get(&index)) {
                routed.entry(owner.clone()).or_default().push(route.net.addr());
            }
        }
        Ok(routed)
    }

    /// The alias of a Pod's link.
    fn label(&self, owner: &str) -> String {
        format!("{ALIAS}/{}/{owner}", self.node)
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

    /// Runs something on behalf of a Pod, recorded in its journal.
    fn recorded<T>(&mut self, journal: &JournalWriter, act: impl FnOnce(&mut Links) -> Result<T>) -> Result<T> {
        self.route.set_journal(journal.clone());
        let done = act(self);
        self.route.set_journal(JournalWriter::none());
        done
    }

    /// Removes a link by name; succeeds if it does not exist.
    fn remove(&mut self, name: &str) -> Result<()> {
        let link = LinkUnspec::new_with_name(name).build();
        let what = format_args!("delete link {name}");
        ignore(self.route.call(what, |to| to.link().del_with_message(link).execute()), libc::ENODEV)
    }

    /// Every Pod link of this node, found by its alias.
    pub fn list(&mut self) -> Result<Vec<PodLink>> {
        let ours = list_links(&mut self.route)?.into_iter().filter_map(Link::pod_link);
        Ok(ours.filter(|link| link.node == self.node).collect())
    }

    /// Adds an address of the node on `link` (`lo` for an isolated node and for the cluster's DNS address).
    pub fn add_address(&mut self, link: &str, address: &IpNet) -> Result<()> {
        let index = index_of(&mut self.route, link)?;
        add_address(&mut self.route, index, address)
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

    /// Those of these addresses that are on `lo`.
    pub fn addresses_of_loopback<'a>(&mut self, wanted: impl Iterator<Item = &'a IpAddr>) -> Result<Vec<IpAddr>> {
        let all = self.addresses()?;
        let has = |address: &&IpAddr| all.iter().any(|(on, net)| *on == LOOPBACK && net.addr() == **address);
        Ok(wanted.filter(has).copied().collect())
    }

    /// A route of the node: `net dev link [via gateway] [src source]`, replacing one to the same net.
    pub fn add_route(&mut self, net: &IpNet, link: &str, via: Option<IpAddr>, source: Option<IpAddr>) -> Result<()> {
        let index = index_of(&mut self.route, link)?;
        add_route(&mut self.route, net, index, via, source)
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
        let on_links: Vec<IpAddr> = self.uplinks()?.iter().flat_map(|link| &link.addresses).map(IpNet::addr).collect();
        for address in on_links.into_iter().filter(|address| !is_link_local(address)) {
            if !all.iter().any(|has| Family::of(has) == Family::of(&address)) {
                all.push(address);
            }
        }
        if all.is_empty() { Err(Error::NoAddress) } else { Ok(all) }
    }

    /// The link `name` with its addresses and the routes that lead to it.
    pub fn details(&mut self, name: &str) -> Result<Option<LinkDetails>> {
        details(&mut self.route, name)
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

// linux/if_link.h, linux/ip.h
const IFLA_INET_CONF: u16 = 1;
const IPV4_DEVCONF_FORWARDING: u16 = 1;
const IPV4_DEVCONF_SEND_REDIRECTS: u16 = 6;
const IPV4_DEVCONF_RP_FILTER: u16 = 8;

/// Settings of the host's end: it forwards, sends no redirects, and accepts from the Pod only packets with its own source address
/// (the only one routed back over this link).
const HOST_END: &[(u16, u32)] =
    &[(IPV4_DEVCONF_FORWARDING, 1), (IPV4_DEVCONF_SEND_REDIRECTS, 0), (IPV4_DEVCONF_RP_FILTER, 1)];

/// [`HOST_END`] as an attribute; the crate's own type (`DevConfRequest`) cannot express 0.
fn host_end_settings() -> DefaultNla {
    let settings = HOST_END.iter().map(|(setting, value)| DefaultNla::new(*setting, value.to_ne_bytes().to_vec()));
    let settings: Vec<DefaultNla> = settings.collect();
    let mut bytes = vec![0; settings.as_slice().buffer_len()];
    settings.as_slice().emit(&mut bytes);
    DefaultNla::new(IFLA_INET_CONF | NLA_F_NESTED, bytes)
}

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
fn pod_mac(owner: &str) -> [u8; 6] {
    let hash = crate::dataplane::ids::fnv(owner.as_bytes()).to_be_bytes();
    [0x02, hash[1], hash[2], hash[3], hash[4], hash[5]]
}

/// The addresses of all links of a namespace.
pub fn addresses_in(netns: BorrowedFd<'_>) -> Result<Vec<IpAddr>> {
    let all = list_addresses(&mut Route::open_in(netns)?)?;
    Ok(all.into_iter().map(|(_, net)| net.addr()).collect())
}

/// Marks a namespace as a node's, on its `lo`. `mark`: another one's is refused while `is_there` says that the other one is there.
///
/// # Errors
///
/// It is another node's, whose mark is given; or the kernel refuses it.
pub fn take_netns(netns: BorrowedFd<'_>, mark: &str, is_there: impl Fn(&str) -> bool) -> Result<()> {
    let mut route = Route::open_in(netns)?;
    let has = mark_of(&mut route)?;
    if let Some(other) = has.as_deref().filter(|has| *has != mark && is_there(has)) {
        return Err(Error::NetnsInUse(other.to_owned()));
    }
    if has.as_deref() == Some(mark) { Ok(()) } else { set_mark(&mut route, &format!("{NODE_ALIAS}{mark}")) }
}

/// Takes a node's mark away; another one's stays.
///
/// # Errors
///
/// The kernel refuses it.
pub fn give_up_netns(netns: BorrowedFd<'_>, mark: &str) -> Result<()> {
    let mut route = Route::open_in(netns)?;
    if mark_of(&mut route)?.as_deref() == Some(mark) { set_mark(&mut route, "") } else { Ok(()) }
}

fn mark_of(route: &mut Route) -> Result<Option<String>> {
    let lo = get_link(route, "lo")?;
    Ok(lo.and_then(|lo| Some(lo.alias.strip_prefix(NODE_ALIAS)?.to_owned())))
}

fn set_mark(route: &mut Route, alias: &str) -> Result<()> {
    let link = LinkUnspec::new_with_index(LOOPBACK).alias(alias).build();
    route.call(format_args!("set link lo alias {alias}"), |to| to.link().change(link).execute())
}

/// Brings `lo` of a namespace up, which gives it 127.0.0.1 and ::1.
pub fn loopback_up(netns: BorrowedFd<'_>) -> Result<()> {
    set_up(&mut Route::open_in(netns)?, LOOPBACK)
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

fn generates_none() -> AfSpecUnspec {
    AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)])
}

fn default_of(family: Family) -> (IpAddr, IpNet) {
    match family {
        Family::V4 => (GATEWAY_V4.into(), IpNet::V4(ipnet::Ipv4Net::default())),
        Family::V6 => (GATEWAY_V6.into(), IpNet::V6(ipnet::Ipv6Net::default())),
    }
}

/// By itself: below 1280 a link has no IPv6, and takes none of its settings until it has more.
fn set_mtu(route: &mut Route, index: u32, mtu: u32) -> Result<()> {
    let link = LinkUnspec::new_with_index(index).mtu(mtu).build();
    route.call(format_args!("set link {index} mtu {mtu}"), |to| to.link().change(link).execute())
}

fn set_up(route: &mut Route, index: u32) -> Result<()> {
    let up = LinkUnspec::new_with_index(index).up().build();
    route.call(format_args!("set link {index} up"), |to| to.link().change(up).execute())
}

fn add_address(route: &mut Route, index: u32, address: &IpNet) -> Result<()> {
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
fn add_neighbour(route: &mut Route, index: u32, address: IpAddr, mac: &[u8; 6]) -> Result<()> {
    route.call(format_args!("add neighbour {address} to link {index}"), |to| {
        to.neighbours().add(index, address).link_layer_address(mac).replace().execute()
    })
}

/// Adds or replaces `net dev <index> [via gateway onlink] [src source]`.
fn add_route(route: &mut Route, net: &IpNet, index: u32, via: Option<IpAddr>, source: Option<IpAddr>) -> Result<()> {
    let new = new_route(net, index, via, source);
    let through = via.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    let what = format_args!("add route {net}{through} to link {index}");
    route.call(what, |to| to.route().add(new).replace().execute())
}

/// `net dev <index> [via gateway onlink] [src source]`.
fn new_route(net: &IpNet, index: u32, via: Option<IpAddr>, source: Option<IpAddr>) -> RouteMessage {
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
fn route_to(net: &IpNet, index: u32) -> RouteMessage {
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

fn ignore(result: Result<()>, errno: i32) -> Result<()> {
    match result {
        Err(e) if e.errno() == Some(errno) => Ok(()),
        other => other,
    }
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    }
}

/// Whether the kernel has IPv6 at all (`ipv6.disable=1` removes it).
pub fn ipv6_available() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}
