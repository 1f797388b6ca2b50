//! Why a packet passes or does not: the rules, routes and elements of the kernel, applied to the first packet of a connection.
//!
//! [`walk()`] is pure: it follows the packet as far as the known [`Facts`] lead, and asks for the next one. [`read()`] answers from the
//! kernel, by reading alone. So the answer is the kernel's word, whatever podwright wants there: the chains of every table on the
//! packet's way are interpreted, not only ours.
//!
//! ```text
//! in: pw1f..  route: podwright's reverse path  prerouting: 10.96.0.7 . tcp . 80 -> 0x1 -> lb-2 -> dnat to 10.244.1.5:8080
//!             route: dev podwright-vx          forward: egress 10.244.0.2 -> policies-7 -> policy-3 accept
//! ```

mod evaluate;
mod facts;
mod read;
mod rules;
mod walk;
mod words;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

pub use facts::{Element, Facts, Part, Place, Question, Route};
pub use read::read;
pub use walk::walk;

use crate::dataplane::{Direction, Protocol};

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub protocol: Protocol,
    /// `None`: the address that the node picks.
    pub source: Option<IpAddr>,
    pub destination: IpAddr,
    pub port: u16,
}

/// Where a packet enters the node's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// By this link.
    Link(String),
    /// By the link that leads back to its source.
    WayBack,
    /// It is the node's own.
    Node,
}

/// One thing that becomes of a packet on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Step {
    /// `prerouting`, `forward`, ...; `route` for a lookup of the way.
    pub hook: String,
    /// `ip podwright`; empty for a route.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub table: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub chain: String,
    /// What was looked up, or the rule that holds, in nft's words.
    pub lookup: String,
    /// What was found, or the verdict.
    pub found: String,
    /// Whose doing it is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<String>,
    #[serde(skip)]
    pub cause: Option<Cause>,
}

/// What in the model a step comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The list of a Service's port.
    List(u32),
    /// The policies of an address: the one of a chain, or all.
    Policies { address: IpAddr, direction: Direction, chain: Option<String> },
    /// The kernel has no policies for an address.
    Unjudged { address: IpAddr, direction: Direction },
}

/// Where a packet's way ends on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "is")]
pub enum End {
    /// To the owner of a link of this node.
    Delivered { link: String },
    /// To the node itself.
    Local,
    /// To another machine, with these addresses.
    Leaves { link: String, next_hop: Option<IpAddr>, source: IpAddr },
    /// Without a word.
    Dropped,
    /// The sender gets an error.
    Rejected { with: String },
    /// There is no way.
    NoRoute { why: String },
}

/// The whole way of a packet on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    pub steps: Vec<Step>,
    pub end: End,
    /// The destination after all translation.
    pub destination: IpAddr,
    pub port: u16,
    /// Conditions whose outcome is unknown: these rules were passed over.
    pub uncertain: Vec<String>,
    /// Among how many a random choice was made.
    pub choices: u32,
}

#[cfg(test)]
mod tests;
