//! What is said to the owners of what is not served, as data: whoever has a recorder makes events of it.

use podwright_net::dataplane::Lost;
use podwright_net::drivers::Applied;
use podwright_net::forwards::Refused;

use super::owner::Owner;
use super::shares::ELEMENTS;

/// Of so many owners it is said after one change what they do not have.
pub const MOST: usize = 32;

/// Something of an object that is not served, and why.
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

/// What the drivers have found that is not to be had. (Not who has it: it may be of another's namespace.)
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
