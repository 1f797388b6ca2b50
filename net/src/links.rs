//! One routed veth a Pod, and the node's own address and routes, over rtnetlink.
//!
//! The host's end has no address: a /32 (/128) route leads each Pod address to it. Both ends know the other's hardware
//! address beforehand (permanent neighbours), so there is no ARP or neighbour discovery on such a link, and no proxy_arp.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::IpNet;
use libc::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST};
use podwright_journal::Scribe;
use serde::Serialize;

use crate::message::{self, Writer, attribute, attributes, string, u32_at};
use crate::netlink::{self, Protocol, Socket};
use crate::{Error, Family, Result};

/// The Pod's default gateway: an address that no link has; the permanent neighbour makes it reachable.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// The name of a Pod's link, inside the Pod.
pub const POD_LINK: &str = "eth0";
/// Hardware address of the host's end of every Pod link (locally administered).
const HOST_MAC: [u8; 6] = [0xee; 6];
/// Every link of ours has an alias that starts with this: `podwright/<node>/<owner>`.
const ALIAS: &str = "podwright";

/// The group of links that are about to be removed.
const DYING: u32 = 0x7077_6400;

/// A Pod's link as the kernel has it on the node's side.
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

/// A link with its addresses and routes, as `inspect` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkDetails {
    pub name: String,
    pub index: u32,
    pub peer_index: u32,
    pub mac: String,
    pub mtu: u32,
    pub up: bool,
    pub addresses: Vec<IpNet>,
    /// As `ip route` writes them.
    pub routes: Vec<String>,
}

/// Sets links up and takes them down, in the namespace its socket was opened in.
pub struct Links {
    node: String,
    socket: Socket,
    /// The node's own address of each family: the source of what the node sends to Pods.
    sources: Vec<IpAddr>,
}

impl Links {
    pub fn new(node: &str, socket: Socket, sources: Vec<IpAddr>) -> Links {
        Links { node: node.to_owned(), socket, sources }
    }

    /// Gives the Pod whose namespace is `pod` its link and addresses. What is there already, from an attempt that was
    /// interrupted or as a whole, is kept or finished.
    pub fn attach(
        &mut self,
        owner: &str,
        pod: BorrowedFd<'_>,
        addresses: &[IpAddr],
        scribe: &Scribe,
    ) -> Result<PodLink> {
        let name = link_name(owner);
        let mut inside = Socket::open_in(pod, Protocol::Route)?;
        inside.set_scribe(scribe.clone());
        self.socket.set_scribe(scribe.clone());
        // 1. The pair, its far end born inside the Pod.
        let (host, peer) = self.pair(&name, owner, pod, &mut inside)?;
        // 2. The host's end: labelled, filtered, up.
        self.host_end(host.index, owner)?;
        // 3. The Pod's end: up, with addresses, gateway and default route.
        pod_end(&mut inside, peer, owner, addresses)?;
        // 4. The host's end came up before its peer, so the kernel lets it send only after a work item has run: up to a
        //    second later, with everything dropped until then. Asking for the link does that work at once (Linux 6.8).
        get_link(&mut self.socket, &name)?;
        // 5. Routes to the Pod; from here on traffic flows.
        self.routes_to(host.index, owner, addresses)?;
        Ok(PodLink {
            name,
            index: host.index,
            peer_index: peer,
            node: self.node.clone(),
            owner: owner.to_owned(),
            up: true,
            mtu: host.mtu,
        })
    }

    /// Removes several Pods' links for the price of one: the kernel waits some 20 ms for readers (RCU) at each removal,
    /// however many links go. So they are put into a group of their own, and the group is removed.
    pub fn detach_all(&mut self, names: &BTreeSet<String>, scribe: &Scribe) -> Result<()> {
        self.socket.set_scribe(scribe.clone());
        if let (Some(name), 1) = (names.first(), names.len()) {
            return self.remove(name);
        }
        for name in names {
            let mut w = Writer::new();
            w.message(libc::RTM_NEWLINK, request(0), &ifinfo(0, 0, 0)).str(libc::IFLA_IFNAME, name);
            w.u32(libc::IFLA_GROUP, DYING);
            ignore(self.socket.request(&format!("set link {name} group {DYING}"), w), libc::ENODEV)?;
        }
        let mut w = Writer::new();
        w.message(libc::RTM_DELLINK, request(0), &ifinfo(0, 0, 0)).u32(libc::IFLA_GROUP, DYING);
        ignore(self.socket.request(&format!("delete the {} links of group {DYING}", names.len()), w), libc::ENODEV)
    }

    /// Whether there is a link of this name.
    pub fn exists(&mut self, name: &str) -> Result<bool> {
        Ok(get_link(&mut self.socket, name)?.is_some())
    }

    /// Removes a link by name; none is not an error.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let mut w = Writer::new();
        w.message(libc::RTM_DELLINK, request(0), &ifinfo(0, 0, 0)).str(libc::IFLA_IFNAME, name);
        ignore(self.socket.request(&format!("delete link {name}"), w), libc::ENODEV)
    }

    /// Every Pod link of this node, found by its label.
    pub fn list(&mut self) -> Result<Vec<PodLink>> {
        let links = dump_links(&mut self.socket)?;
        Ok(links.into_iter().filter_map(|l| l.pod_link()).filter(|l| l.node == self.node).collect())
    }

    /// An address of the node on `link` (`lo` for an isolated node and for the cluster's DNS address).
    pub fn add_address(&mut self, link: &str, address: &IpNet) -> Result<()> {
        let index = index_of(&mut self.socket, link)?;
        let mut w = Writer::new();
        address_message(&mut w, index, address);
        self.socket.request(&format!("add address {address} to {link}"), w)
    }

    pub fn remove_address(&mut self, link: &str, address: &IpNet) -> Result<()> {
        let index = index_of(&mut self.socket, link)?;
        let mut w = Writer::new();
        w.message(libc::RTM_DELADDR, request(0), &ifaddr(address, index)).ip(libc::IFA_LOCAL, &address.addr());
        ignore(self.socket.request(&format!("delete address {address} from {link}"), w), libc::EADDRNOTAVAIL)
    }

    /// The addresses of all links of the node's namespace, with their link's index.
    pub fn addresses(&mut self) -> Result<Vec<(u32, IpNet)>> {
        dump_addresses(&mut self.socket)
    }

    /// A route of the node: `net dev link [via gateway] [src source]`, replacing one to the same net.
    pub fn add_route(&mut self, net: &IpNet, link: &str, via: Option<IpAddr>, source: Option<IpAddr>) -> Result<()> {
        let index = index_of(&mut self.socket, link)?;
        let mut w = Writer::new();
        route_message(&mut w, libc::RTM_NEWROUTE, net, index, via, source);
        self.socket.request(&format!("add route {net} dev {link}"), w)
    }

    pub fn remove_route(&mut self, net: &IpNet, link: &str) -> Result<()> {
        let index = index_of(&mut self.socket, link)?;
        let mut w = Writer::new();
        route_message(&mut w, libc::RTM_DELROUTE, net, index, None, None);
        ignore(self.socket.request(&format!("delete route {net} dev {link}"), w), libc::ESRCH)
    }

    /// The address that the node would use to reach the outside, for each family that has a default route.
    pub fn default_sources(&mut self) -> Result<Vec<IpAddr>> {
        let links = self.addresses()?;
        let routes = dump_routes(&mut self.socket)?;
        let of = |family: Family| {
            let mut defaults: Vec<_> = routes.iter().filter(|r| r.is_default() && r.family == family).collect();
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

    /// The link `name` with its addresses and the routes that lead to it.
    pub fn details(&mut self, name: &str) -> Result<Option<LinkDetails>> {
        details(&mut self.socket, name)
    }

    fn pair(&mut self, name: &str, owner: &str, pod: BorrowedFd<'_>, inside: &mut Socket) -> Result<(Link, u32)> {
        if let Some(host) = get_link(&mut self.socket, name)? {
            match get_link(inside, POD_LINK)? {
                Some(peer) if peer.peer_index == host.index && host.peer_index == peer.index => {
                    return Ok((host, peer.index));
                }
                // The old end of a Pod whose namespace is gone, or not quite yet.
                _ => self.remove(name)?,
            }
        }
        let mut w = Writer::new();
        w.message(libc::RTM_NEWLINK, request(NLM_F_CREATE | NLM_F_EXCL), &ifinfo(0, 0, 0));
        w.str(libc::IFLA_IFNAME, name).attr(libc::IFLA_ADDRESS, &HOST_MAC);
        let info = w.open(libc::IFLA_LINKINFO);
        w.str(libc::IFLA_INFO_KIND, "veth");
        let data = w.open(libc::IFLA_INFO_DATA);
        const VETH_INFO_PEER: u16 = 1;
        let peer = w.open(VETH_INFO_PEER);
        w.raw(&ifinfo(0, 0, 0)).str(libc::IFLA_IFNAME, POD_LINK).attr(libc::IFLA_ADDRESS, &pod_mac(owner));
        w.u32(libc::IFLA_NET_NS_FD, pod.as_raw_fd() as u32);
        w.close(peer);
        w.close(data);
        w.close(info);
        self.socket.request(&format!("add link {name} type veth peer {POD_LINK}"), w)?;
        let missing = || Error::Malformed("the link just made");
        let host = get_link(&mut self.socket, name)?.ok_or_else(missing)?;
        let peer = get_link(inside, POD_LINK)?.ok_or_else(missing)?;
        Ok((host, peer.index))
    }

    fn host_end(&mut self, index: u32, owner: &str) -> Result<()> {
        let mut w = Writer::new();
        w.message(libc::RTM_NEWLINK, request(0), &ifinfo(index, libc::IFF_UP as u32, libc::IFF_UP as u32));
        w.str(libc::IFLA_IFALIAS, &format!("{ALIAS}/{}/{owner}", self.node));
        let spec = w.open(libc::IFLA_AF_SPEC);
        let inet = w.open(libc::AF_INET as u16);
        let conf = w.open(IFLA_INET_CONF);
        for (setting, value) in HOST_END {
            w.u32(*setting, *value);
        }
        w.close(conf);
        w.close(inet);
        if ipv6_available() {
            let inet6 = w.open(libc::AF_INET6 as u16);
            w.attr(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
            w.close(inet6);
        }
        w.close(spec);
        self.socket.request(&format!("set link {index} up"), w)
    }

    fn routes_to(&mut self, index: u32, owner: &str, addresses: &[IpAddr]) -> Result<()> {
        let mut w = Writer::new();
        for address in addresses {
            neighbour_message(&mut w, index, address, &pod_mac(owner));
            let source = self.sources.iter().find(|s| s.is_ipv4() == address.is_ipv4()).copied();
            route_message(&mut w, libc::RTM_NEWROUTE, &IpNet::from(*address), index, None, source);
        }
        self.socket.request(&format!("route {addresses:?} to link {index}"), w)
    }
}

// linux/rtnetlink.h, linux/if_link.h, linux/ip.h
const RTNH_F_ONLINK: u32 = 4;
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
const IPV4_DEVCONF_FORWARDING: u16 = 1;
const IPV4_DEVCONF_SEND_REDIRECTS: u16 = 6;
const IPV4_DEVCONF_RP_FILTER: u16 = 8;

/// How the host's end behaves: it forwards, says nothing of better ways, and takes from the Pod only what has the Pod's
/// own source address (the only route to that address leads back over this link).
const HOST_END: &[(u16, u32)] =
    &[(IPV4_DEVCONF_FORWARDING, 1), (IPV4_DEVCONF_SEND_REDIRECTS, 0), (IPV4_DEVCONF_RP_FILTER, 1)];

/// The name of the host's end: `pw` and twelve digits of the Pod's uid, or of a hash where it has none.
pub fn link_name(owner: &str) -> String {
    let digits: String = owner.chars().filter(|c| *c != '-').take(12).collect();
    if digits.len() == 12 && digits.chars().all(|c| c.is_ascii_hexdigit()) {
        return format!("pw{}", digits.to_ascii_lowercase());
    }
    format!("pw{:012x}", crate::dataplane::ids::fnv(owner.as_bytes()) >> 16)
}

/// The hardware address of the Pod's end: locally administered, from the owner's hash.
fn pod_mac(owner: &str) -> [u8; 6] {
    let hash = crate::dataplane::ids::fnv(owner.as_bytes()).to_be_bytes();
    [0x02, hash[1], hash[2], hash[3], hash[4], hash[5]]
}

/// Brings `lo` of a namespace up, which gives it 127.0.0.1 and ::1.
pub fn loopback_up(netns: BorrowedFd<'_>) -> Result<()> {
    let mut socket = Socket::open_in(netns, Protocol::Route)?;
    let mut w = Writer::new();
    up_message(&mut w, 1);
    socket.request("set link lo up", w)
}

/// A Pod's end of its link, as `inspect` shows it; `None` where the namespace has none.
pub fn pod_details(netns: BorrowedFd<'_>) -> Result<Option<LinkDetails>> {
    details(&mut Socket::open_in(netns, Protocol::Route)?, POD_LINK)
}

/// What containerd gives every Pod's namespace: ping and low ports without privilege.
pub fn pod_sysctls(netns: BorrowedFd<'_>, scribe: &Scribe) -> Result<()> {
    netlink::in_netns(netns, || {
        netlink::sysctl(scribe, "net/ipv4/ip_unprivileged_port_start", "0")?;
        netlink::sysctl(scribe, "net/ipv4/ping_group_range", "0 2147483647")
    })?
}

fn pod_end(inside: &mut Socket, index: u32, owner: &str, addresses: &[IpAddr]) -> Result<()> {
    let mut w = Writer::new();
    up_message(&mut w, 1);
    up_message(&mut w, index);
    for address in addresses {
        address_message(&mut w, index, &IpNet::from(*address));
    }
    for family in Family::ALL {
        if addresses.iter().any(|a| Family::of(a) == family) {
            let (gateway, everywhere) = default_of(family);
            neighbour_message(&mut w, index, &gateway, &HOST_MAC);
            route_message(&mut w, libc::RTM_NEWROUTE, &everywhere, index, Some(gateway), None);
        }
    }
    inside.request(&format!("set up {POD_LINK} of {owner} with {addresses:?}"), w)
}

fn default_of(family: Family) -> (IpAddr, IpNet) {
    match family {
        Family::V4 => (GATEWAY_V4.into(), IpNet::V4(ipnet::Ipv4Net::default())),
        Family::V6 => (GATEWAY_V6.into(), IpNet::V6(ipnet::Ipv6Net::default())),
    }
}

fn up_message(w: &mut Writer, index: u32) {
    w.message(libc::RTM_NEWLINK, request(0), &ifinfo(index, libc::IFF_UP as u32, libc::IFF_UP as u32));
}

fn address_message(w: &mut Writer, index: u32, address: &IpNet) {
    w.message(libc::RTM_NEWADDR, request(NLM_F_CREATE | NLM_F_REPLACE), &ifaddr(address, index));
    w.ip(libc::IFA_LOCAL, &address.addr()).ip(libc::IFA_ADDRESS, &address.addr());
    if address.addr().is_ipv6() {
        // Nobody else is on this link: duplicate address detection would only delay the Pod's first packet.
        w.u32(libc::IFA_FLAGS, libc::IFA_F_NODAD);
    }
}

fn neighbour_message(w: &mut Writer, index: u32, address: &IpAddr, mac: &[u8; 6]) {
    // struct ndmsg
    let mut header = vec![family_byte(address), 0, 0, 0];
    header.extend(index.to_ne_bytes());
    header.extend(libc::NUD_PERMANENT.to_ne_bytes());
    header.extend([0, 0]);
    w.message(libc::RTM_NEWNEIGH, request(NLM_F_CREATE | NLM_F_REPLACE), &header);
    w.ip(libc::NDA_DST, address).attr(libc::NDA_LLADDR, mac);
}

fn route_message(w: &mut Writer, kind: u16, net: &IpNet, index: u32, via: Option<IpAddr>, source: Option<IpAddr>) {
    let new = kind == libc::RTM_NEWROUTE;
    let scope = match via {
        _ if !new => libc::RT_SCOPE_NOWHERE,
        None => libc::RT_SCOPE_LINK,
        Some(_) => libc::RT_SCOPE_UNIVERSE,
    };
    let onlink = if via.is_some() { RTNH_F_ONLINK } else { 0 };
    let protocol = if new { libc::RTPROT_STATIC } else { libc::RTPROT_UNSPEC };
    // struct rtmsg
    let mut header = vec![family_byte(&net.addr()), net.prefix_len(), 0, 0];
    header.extend([libc::RT_TABLE_MAIN, protocol, scope, if new { libc::RTN_UNICAST } else { libc::RTN_UNSPEC }]);
    header.extend(onlink.to_ne_bytes());
    let flags = if new { NLM_F_CREATE | NLM_F_REPLACE } else { 0 };
    w.message(kind, request(flags), &header);
    if net.prefix_len() > 0 {
        w.ip(libc::RTA_DST, &net.network());
    }
    w.u32(libc::RTA_OIF, index);
    if let Some(gateway) = via {
        w.ip(libc::RTA_GATEWAY, &gateway);
    }
    if let Some(source) = source {
        w.ip(libc::RTA_PREFSRC, &source);
    }
}

/// A link as `RTM_GETLINK` answers.
struct Link {
    name: String,
    index: u32,
    peer_index: u32,
    alias: String,
    mac: Vec<u8>,
    mtu: u32,
    up: bool,
}

impl Link {
    fn parse(payload: &[u8]) -> Option<Link> {
        let attrs = payload.get(16..)?;
        let text = |kind| attribute(attrs, kind).map(string).unwrap_or_default();
        let number = |kind| attribute(attrs, kind).map_or(0, |v| u32_at(v, 0));
        Some(Link {
            name: text(libc::IFLA_IFNAME),
            index: u32_at(payload, 4),
            peer_index: number(libc::IFLA_LINK),
            alias: text(libc::IFLA_IFALIAS),
            mac: attribute(attrs, libc::IFLA_ADDRESS).unwrap_or_default().to_vec(),
            mtu: number(libc::IFLA_MTU),
            up: u32_at(payload, 8) & libc::IFF_UP as u32 != 0,
        })
    }

    fn pod_link(self) -> Option<PodLink> {
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

fn get_link(socket: &mut Socket, name: &str) -> Result<Option<Link>> {
    let mut w = Writer::new();
    w.message(libc::RTM_GETLINK, request(0), &ifinfo(0, 0, 0)).str(libc::IFLA_IFNAME, name);
    match socket.dump(&format!("get link {name}"), w) {
        Ok(answers) => Ok(answers.iter().find_map(|a| Link::parse(&a.payload))),
        Err(e) if e.errno() == Some(libc::ENODEV) => Ok(None),
        Err(e) => Err(e),
    }
}

fn index_of(socket: &mut Socket, name: &str) -> Result<u32> {
    let missing = || Error::call(format!("get link {name}"), std::io::Error::from_raw_os_error(libc::ENODEV));
    Ok(get_link(socket, name)?.ok_or_else(missing)?.index)
}

fn dump_links(socket: &mut Socket) -> Result<Vec<Link>> {
    let mut w = Writer::new();
    w.message(libc::RTM_GETLINK, (libc::NLM_F_REQUEST | NLM_F_DUMP) as u16, &ifinfo(0, 0, 0));
    Ok(socket.dump("list links", w)?.iter().filter_map(|a| Link::parse(&a.payload)).collect())
}

fn dump_addresses(socket: &mut Socket) -> Result<Vec<(u32, IpNet)>> {
    let mut w = Writer::new();
    w.message(libc::RTM_GETADDR, (NLM_F_REQUEST | NLM_F_DUMP) as u16, &[0; 8]);
    let parse = |payload: &[u8]| {
        let attrs = payload.get(8..)?;
        let value = attribute(attrs, libc::IFA_LOCAL).or_else(|| attribute(attrs, libc::IFA_ADDRESS))?;
        Some((u32_at(payload, 4), IpNet::new(message::address(value)?, payload[1]).ok()?))
    };
    Ok(socket.dump("list addresses", w)?.iter().filter_map(|a| parse(&a.payload)).collect())
}

/// A route of the main table.
struct Route {
    family: Family,
    net: IpNet,
    link: Option<u32>,
    gateway: Option<IpAddr>,
    source: Option<IpAddr>,
    priority: u32,
}

impl Route {
    fn parse(payload: &[u8]) -> Option<Route> {
        let attrs = payload.get(12..)?;
        let family = if i32::from(payload[0]) == libc::AF_INET6 { Family::V6 } else { Family::V4 };
        let find = |kind| attributes(attrs).find(|(k, _)| *k == kind).map(|(_, v)| v);
        let table = find(libc::RTA_TABLE).map_or(u32::from(payload[4]), |v| u32_at(v, 0));
        if table != u32::from(libc::RT_TABLE_MAIN) {
            return None;
        }
        let net = match find(libc::RTA_DST).and_then(message::address) {
            Some(address) => IpNet::new(address, payload[1]).ok()?,
            None => default_of(family).1,
        };
        Some(Route {
            family,
            net,
            link: find(libc::RTA_OIF).map(|v| u32_at(v, 0)),
            gateway: find(libc::RTA_GATEWAY).and_then(message::address),
            source: find(libc::RTA_PREFSRC).and_then(message::address),
            priority: find(libc::RTA_PRIORITY).map_or(0, |v| u32_at(v, 0)),
        })
    }

    fn is_default(&self) -> bool {
        self.net.prefix_len() == 0
    }

    /// As `ip route` writes it, without the link.
    fn text(&self) -> String {
        let mut text = match (self.is_default(), self.net.prefix_len() == self.family.bits()) {
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

fn dump_routes(socket: &mut Socket) -> Result<Vec<Route>> {
    let mut w = Writer::new();
    w.message(libc::RTM_GETROUTE, (NLM_F_REQUEST | NLM_F_DUMP) as u16, &[0; 12]);
    Ok(socket.dump("list routes", w)?.iter().filter_map(|a| Route::parse(&a.payload)).collect())
}

fn details(socket: &mut Socket, name: &str) -> Result<Option<LinkDetails>> {
    let Some(link) = get_link(socket, name)? else { return Ok(None) };
    let addresses = dump_addresses(socket)?.into_iter().filter(|(index, _)| *index == link.index).map(|(_, net)| net);
    let routes = dump_routes(socket)?.into_iter().filter(|r| r.link == Some(link.index)).map(|r| r.text());
    let mac: Vec<String> = link.mac.iter().map(|b| format!("{b:02x}")).collect();
    Ok(Some(LinkDetails {
        addresses: addresses.collect(),
        routes: routes.collect(),
        mac: mac.join(":"),
        name: link.name,
        index: link.index,
        peer_index: link.peer_index,
        mtu: link.mtu,
        up: link.up,
    }))
}

/// `struct ifinfomsg`.
fn ifinfo(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

/// `struct ifaddrmsg`.
fn ifaddr(address: &IpNet, index: u32) -> [u8; 8] {
    let index = index.to_ne_bytes();
    [family_byte(&address.addr()), address.prefix_len(), 0, 0, index[0], index[1], index[2], index[3]]
}

fn family_byte(address: &IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn request(flags: i32) -> u16 {
    (NLM_F_REQUEST | NLM_F_ACK | flags) as u16
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

/// Whether the kernel has IPv6 at all (`ipv6.disable=1` takes it away).
pub fn ipv6_available() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}
