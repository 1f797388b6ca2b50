//! One routed veth per Pod, and the node's own address and routes, through rtnetlink.
//!
//! The host's end has no address: each Pod address has a /32 (/128) route to it. Both ends have the other's hardware address
//! configured (permanent neighbours), so there is no ARP or neighbour discovery on such a link, and no proxy_arp.
//!
//! ```text
//! names     what links, their ends and gateways are called
//! read      what the kernel has                       requests   single changes of that
//! pod       the link of one Pod                       check      compares all of it with what is wanted
//! own       the node's own addresses and routes       overlay    links and routes to other nodes
//! mark      whose a namespace is                      settings   what the kernel is to do with a link
//! way       where a packet would go
//! ```

mod check;
mod mark;
mod names;
mod overlay;
mod own;
mod pod;
mod read;
mod requests;
mod settings;
mod way;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use ipnet::IpNet;
use podwright_journal::JournalWriter;
use rtnetlink::LinkUnspec;
use serde::Serialize;

pub use mark::{give_up_netns, take_netns};
pub use names::{POD_LINK, is_pod_link, link_name};
pub use read::{LinkDetails, MOST, pod_details};
pub use requests::ipv6_available;
pub use way::way;

use crate::Result;
use crate::netlink::Route;
use crate::overlay::MOST_MTU;
use check::View;
use names::{ALIAS, LOOPBACK};
use read::{Link, details, get_link, is_vast, list_addresses, list_links, list_routes};
use requests::{ignore, set_up};

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

    /// Compares the node's side of Pods' links, and addresses and routes of `lo`, with the kernel's state. Fails if it cannot be
    /// read.
    pub fn compare(&mut self, wanted: &LinkState) -> Result<Lacks> {
        Ok(View::read(&mut self.route)?.lacks(wanted, |owner| self.label(owner), &self.sources, self.pod_mtu))
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

    /// The link `name` with its addresses and the routes that lead to it.
    pub fn details(&mut self, name: &str) -> Result<Option<LinkDetails>> {
        details(&mut self.route, name)
    }
}

/// The addresses of all links of a namespace.
pub fn addresses_in(netns: BorrowedFd<'_>) -> Result<Vec<IpAddr>> {
    let all = list_addresses(&mut Route::open_in(netns)?)?;
    Ok(all.into_iter().map(|(_, net)| net.addr()).collect())
}

/// Brings `lo` of a namespace up, which gives it 127.0.0.1 and ::1.
pub fn loopback_up(netns: BorrowedFd<'_>) -> Result<()> {
    set_up(&mut Route::open_in(netns)?, LOOPBACK)
}
