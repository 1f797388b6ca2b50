//! The cluster's DNS: served on the node for its own Pods, everything else forwarded.
//!
//! `records` holds the names, [`answer`] implements the wire format, `header` checks messages before they are read, `forward` asks
//! upstream servers, `slots` shares bounded resources among clients, `pace` limits their rates, `fair_lock` serializes long work
//! fairly, `senders` sends answers by link, `server` owns the sockets for questions.

pub mod answer;
mod fair_lock;
mod forward;
mod header;
mod pace;
mod records;
mod senders;
mod server;
mod slots;

pub use forward::{Read, Upstream};
pub use records::{Answer, Data, Entry, Names, Question, Srv, Table, reverse_name};
pub use server::DnsServer;
