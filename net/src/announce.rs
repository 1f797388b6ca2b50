//! Announcing: addresses that no link has are answered for on the links of a node, by ARP and neighbour discovery, each by one node.
//!
//! Nodes on a link hear each other's [heartbeats](frames::Heartbeat) there and decide alone, by the same [rules](election), who
//! answers for which address: no server is asked, so a failover works while the control plane is away, and also when it was on
//! the node that died; nothing is written anywhere. A node that falls silent on the link (it died, its link is down, its agent hangs)
//! is replaced after [`election::SILENCE`], with the next tick. On a link that falls into parts each part has its own node until the
//! parts hear each other again: for one heartbeat.
//!
//! Heartbeats are believed as much as ARP is: whoever is on the link could take the addresses without them. They come by no
//! other way: not from Pods, whose links are not listened to, and from no router.
//!
//! ```text
//!   Wanted (address -> who may) --.
//!   heartbeats -> Members -> View -+-> announces? -> owned --> answers, announcements
//! ```

mod election;
mod frames;
mod link;
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tokio::sync::watch;

use crate::NodeNetns;

/// What is to be announced, and by whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Heartbeats of other clusters' nodes are not meant.
    pub cluster: u64,
    /// The nodes that may announce each address.
    pub addresses: BTreeMap<IpAddr, Arc<BTreeSet<String>>>,
    /// Pods' ranges: a link that has no other addresses leads to no other machine.
    pub pods: Vec<IpNet>,
}

/// The addresses that this node announces, and on which links.
pub type Announced = BTreeMap<IpAddr, BTreeSet<String>>;

/// Announces addresses on a node's links until it is dropped, which lets others take over at once.
pub struct Announcer {
    wanted: watch::Sender<Arc<Wanted>>,
    connected: watch::Sender<bool>,
    announced: watch::Receiver<Announced>,
}

impl Announcer {
    /// Starts the task, which does nothing while nothing is wanted. `name` is this node's. Must be called inside a tokio runtime.
    pub fn start(netns: NodeNetns, name: &str) -> Announcer {
        let (wanted, wanted_here) = watch::channel(Arc::default());
        let (connected, connected_here) = watch::channel(true);
        let (announced_here, announced) = watch::channel(Announced::new());
        tokio::spawn(run::run(netns, name.to_owned(), wanted_here, connected_here, announced_here));
        Announcer { wanted, connected, announced }
    }

    /// Replaces what is wanted.
    pub fn want(&self, wanted: Wanted) {
        self.wanted.send_if_modified(|before| {
            let is_new = **before != wanted;
            if is_new {
                *before = Arc::new(wanted);
            }
            is_new
        });
    }

    /// Tells whether the node knows what is wanted now: one that does not is silent beside others who do.
    pub fn set_connected(&self, connected: bool) {
        self.connected.send_replace(connected);
    }

    /// Whether there is something to announce, by this node or others.
    pub fn is_busy(&self) -> bool {
        !self.wanted.borrow().addresses.is_empty()
    }

    /// What this node announces.
    pub fn announced(&self) -> watch::Receiver<Announced> {
        self.announced.clone()
    }
}
