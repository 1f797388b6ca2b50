//! The network of a node: namespaces, links, routes, addresses, nftables Services and DNS. Knows no Kubernetes word.
//!
//! - [`netlink`]: the one door to the kernel: sockets, namespaces, mounts, sysctls, the `nft` program.
//! - [`message`]: netfilter's netlink messages as bytes, written and read.
//! - [`netns`]: a node's network namespace, and sockets opened inside it from any task.
//! - [`ipam`]: addresses for Pods out of the node's ranges, durable.
//! - [`links`]: one routed veth a Pod; the node's own address and routes.
//! - [`overlay`]: the way to other nodes' Pods, decided purely; [`links`] makes it.
//! - [`dataplane`]: Services as map elements of one nftables table a family.
//! - [`dns`]: the cluster's names, answered on the node.
//! - [`forwards`]: ports of loopback that lead to Pods.
//! - [`state`]: what all of that should be, as one value; [`drivers`] apply what changes of it.
//! - [`node`]: [`Network`], which puts the parts together for an agent, and keeps what the kernel has as it should be.
//!
//! ```text
//!   Pod netns                     node netns                                    outside
//!   eth0 10.244.1.5/32 ==veth==> pw1f2e3d4c5b6a  --forward-->  podwright table --> uplink
//!   default via 169.254.1.1       10.244.1.5/32 dev pw... src <node address>
//! ```

#![forbid(unsafe_code)]

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

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

pub use ipnet::IpNet;
pub use netns::NodeNetns;
pub use node::{Healing, Network, NetworkConfig, Repair};

/// The version of IP that an address, a table or a list belongs to.
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

/// What went wrong, naming the call and its arguments.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call or netlink request that the kernel refused.
    #[error("{call}: {source}")]
    Call { call: String, source: io::Error },
    /// A ruleset that the `nft` program refused; nothing of it was applied.
    #[error("nft: {0}")]
    Nft(String),
    /// An answer of the kernel that does not parse.
    #[error("{0}: malformed answer")]
    Malformed(&'static str),
    /// No address range has been given to this node yet.
    #[error("the node has no Pod address range yet")]
    NoPodRange,
    /// Every address of the range is taken.
    #[error("no free address in {0}")]
    Exhausted(IpNet),
    /// Neither the record nor the node's routes know which addresses a Pod has that an earlier agent has attached.
    #[error("its addresses are not known any more")]
    UnknownAddresses,
    /// There no port would be for DNS alone: host ports and node ports are on it, and the node's own servers.
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
    /// The thread that stood inside the namespace has ended.
    #[error("the namespace's thread is gone")]
    ThreadGone,
}

impl Error {
    pub fn call(call: impl Into<String>, source: io::Error) -> Error {
        Error::Call { call: call.into(), source }
    }
    /// The errno, where the kernel gave one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Call { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
