//! What policies are to the dataplane: addresses that are isolated, and what is let through to and from them, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;

use super::super::model::Protocol;

/// A direction of traffic, as an isolated address sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Direction {
    Ingress,
    Egress,
}

/// What one policy lets through in one direction: what any of its rules lets through. Without rules nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Policy {
    pub rules: Vec<Rule>,
}

/// Whose traffic, and which.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Rule {
    pub peers: Peers,
    pub ports: Ports,
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Peers {
    Any,
    /// The addresses of a group.
    Group(Arc<str>),
    /// Addresses from and to, in order, no two overlapping.
    Ranges(Vec<(IpAddr, IpAddr)>),
}

/// What is asked of whom a connection is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Ports {
    /// All traffic, whatever its protocol.
    Any,
    /// Ports from and to, in order, no two overlapping.
    Numbers(Protocol, Vec<(u16, u16)>),
    /// The addresses and ports of a group.
    Endpoints(Protocol, Arc<str>),
}

/// The policies that isolate an address in one direction.
pub type Allowed = BTreeSet<Arc<Policy>>;

/// Whose traffic is judged. What is `None` is not: all of that direction is let through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Isolated {
    pub addresses: Vec<IpAddr>,
    pub ingress: Option<Allowed>,
    pub egress: Option<Allowed>,
    /// Whose policies these are.
    #[serde(skip)]
    pub named: Vec<Named>,
}

/// A policy by the name that its owner knows it by. Those with the same rules are one to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub name: Arc<str>,
    pub direction: Direction,
    /// `None`: it lets nothing through.
    pub policy: Option<Arc<Policy>>,
}

impl Isolated {
    /// Nothing reaches these addresses, and nothing leaves them.
    pub fn cut_off(addresses: Vec<IpAddr>) -> Isolated {
        Isolated { addresses, ingress: Some(Allowed::new()), egress: Some(Allowed::new()), named: Vec::new() }
    }

    pub fn is_isolated(&self) -> bool {
        self.ingress.is_some() || self.egress.is_some()
    }
}

/// What an owner is a member of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Member {
    /// Of groups of addresses.
    pub addresses: BTreeSet<(Arc<str>, IpAddr)>,
    /// Of groups of addresses and ports.
    pub endpoints: BTreeSet<(Arc<str>, IpAddr, u16)>,
}

impl Member {
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.endpoints.is_empty()
    }
}

/// What is other than before. What an owner has here is what it has now, and all that it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PolicyChanges {
    pub members: BTreeMap<String, Member>,
    pub isolated: BTreeMap<String, Isolated>,
}

impl PolicyChanges {
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.isolated.is_empty()
    }

    /// What is other after these and then `later`.
    pub fn extend(&mut self, later: PolicyChanges) {
        self.members.extend(later.members);
        self.isolated.extend(later.isolated);
    }
}
