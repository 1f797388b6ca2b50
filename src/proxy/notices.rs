//! Notices to owners of what is not served, as data: a caller with a recorder turns them into events.

use podwright_net::dataplane::Lost;
use podwright_net::drivers::Applied;
use podwright_net::forwards::Refused;

use super::owner::Owner;
use super::shares::ELEMENTS;

/// Maximum owners notified after one change.
pub const MOST: usize = 32;

/// A part of an object that is not served, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub about: Owner,
    pub reason: &'static str,
    pub message: String,
}

impl Notice {
    pub fn new(about: Owner, reason: &'static str, message: String) -> Notice {
        Notice { about, reason, message }
    }

    pub fn no_room(about: Owner, node: &str) -> Notice {
        let message = format!(
            "not served on node {node}: with what is older in namespace {} it takes more than {ELEMENTS} entries of the node's \
             tables (ports times endpoints)",
            about.namespace()
        );
        Notice::new(about, "TooManyEndpoints", message)
    }

    pub fn host_port(about: Owner, message: String) -> Notice {
        Notice::new(about, "HostPortNotServed", message)
    }
}

/// What the drivers could not serve. (Without the current holder: it may be in another namespace.)
pub fn of(applied: &Applied) -> Vec<Notice> {
    let lost = applied.tables.lost.iter().take(MOST).filter_map(of_lost);
    lost.chain(applied.refused.iter().filter_map(of_refused)).collect()
}

fn of_lost(Lost { key, protocol, address, port }: &Lost) -> Option<Notice> {
    let protocol = protocol.name().to_uppercase();
    let at = address.map_or_else(|| "this node".to_owned(), |address| address.to_string());
    let message = format!("{protocol} port {port} of {at} leads to another Service or Pod, which is older");
    Some(Notice::new(Owner::of(key)?, "PortAlreadyAllocated", message))
}

fn of_refused(Refused { owner, forward, error }: &Refused) -> Option<Notice> {
    let message = format!("host port {}/{} is not served: {error}", forward.at, forward.protocol.name());
    Some(Notice::host_port(Owner::of(owner)?, message))
}
