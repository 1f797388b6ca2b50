//! The network of a node: namespaces, links, routes, addresses, nftables Services and DNS. Independent of Kubernetes.
//!
//! - [`netlink`]: the one door to the kernel: sockets, namespaces, mounts, sysctls, the `nft` program.
//! - [`message`]: netfilter's netlink messages as bytes, written and read.
//! - [`netns`]: a node's network namespace, and sockets opened inside it from any task.
//! - [`ipam`]: addresses for Pods out of the node's ranges, durable.
//! - [`links`]: one routed veth a Pod; the node's own address and routes.
//! - [`overlay`]: the way to other nodes' Pods, decided purely; [`links`] makes it.
//! - [`cni`]: the same by plugins, other programs, instead.
//! - [`dataplane`]: Services as map elements of one nftables table a family.
//! - [`announce`]: addresses of Services on the node's links: one node answers for each by ARP and neighbour discovery.
//! - [`dns`]: the cluster's names, answered on the node.
//! - [`forwards`]: ports of loopback forwarded to Pods.
//! - [`state`]: the desired state of all that, as one value; [`drivers`] apply its changes.
//! - [`node`]: [`Network`], which combines the parts for an agent, and repairs the kernel's state.
//!
//! ```text
//!   Pod netns                     node netns                                    outside
//!   eth0 10.244.1.5/32 ==veth==> pw1f2e3d4c5b6a  --forward-->  podwright table --> uplink
//!   default via 169.254.1.1       10.244.1.5/32 dev pw... src <node address>
//! ```

#![forbid(unsafe_code)]

pub mod announce;
pub mod cni;
pub mod dataplane;
pub mod dns;
pub mod drivers;
pub mod forwards;
pub mod ipam;
pub mod links;
pub mod message;
pub mod netlink;
pub mod netns;
pub mod node;
pub mod overlay;
pub mod state;
pub mod why;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

pub use ipnet::IpNet;
pub use netns::NodeNetns;
pub use node::{Healing, Network, NetworkConfig, Repair};

/// The IP version of an address, a table or a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    pub fn of(address: &IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }
    pub fn of_net(net: &IpNet) -> Family {
        Family::of(&net.addr())
    }
    /// Bits of an address.
    pub fn bits(self) -> u8 {
        if self == Family::V4 { 32 } else { 128 }
    }
}

/// A failure, naming the call and its arguments.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call or netlink request that the kernel refused.
    #[error("{call}: {source}")]
    Call { call: String, source: io::Error },
    /// A ruleset refused by the `nft` program; nothing of it was applied.
    #[error("nft: {0}")]
    Nft(String),
    /// A malformed response of the kernel.
    #[error("{0}: malformed answer")]
    Malformed(&'static str),
    /// This node has no address range yet.
    #[error("the node has no Pod address range yet")]
    NoPodRange,
    /// Every address of the range is in use.
    #[error("no free address in {0}")]
    Exhausted(IpNet),
    /// A plugin has given an address that another Pod has.
    #[error("the address {0} is another Pod's")]
    Taken(IpAddr),
    /// The addresses of a Pod attached by an earlier agent are neither in the record nor in the node's routes.
    #[error("its addresses are not known any more")]
    UnknownAddresses,
    /// The port would not be reserved for DNS there: the node's host ports, node ports and servers share it.
    #[error("DNS (--cluster-dns) cannot be on {0}: that is the node's own address")]
    DnsOnNode(std::net::IpAddr),
    /// Something else than a network namespace lies at the path that was given for one.
    #[error("{} is no network namespace", .0.display())]
    NotNetns(PathBuf),
    /// The namespace is the machine's, or the one that this process is in.
    #[error("{} is this machine's own network namespace: an isolated node needs another one", .0.display())]
    OwnNetns(PathBuf),
    /// The namespace has another node in it, which is known by its folder.
    #[error("the network namespace is in use by the node of {0}: end that node, or remove it with `podwright reset`")]
    NetnsInUse(String),
    /// The node on these folders is in another namespace.
    #[error("the node has another network namespace than {}: remove it first with `podwright reset`", .0.display())]
    OtherNetns(PathBuf),
    /// A node's address that no link in its namespace has.
    #[error("no link of the node's network namespace has the address {0} (--node-ip)")]
    NotOnLink(std::net::IpAddr),
    /// No link in the node's namespace has any.
    #[error("no link of the node's network namespace has an address")]
    NoAddress,
    /// A network plugin failed, or there is none.
    #[error(transparent)]
    Cni(#[from] cni::CniError),
    /// The thread that stood inside the namespace has ended.
    #[error("the namespace's thread is gone")]
    ThreadGone,
}

impl Error {
    pub fn call(call: impl Into<String>, source: io::Error) -> Error {
        Error::Call { call: call.into(), source }
    }
    /// The errno, if the kernel returned one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Call { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
