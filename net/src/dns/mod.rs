//! The cluster's DNS: served on the node for its own Pods, everything else forwarded.
//!
//! `records` says what the names are, [`answer`] speaks the wire format, `header` says what of a message is read at all, `forward`
//! asks upstream servers, `slots` shares what is bounded among clients, `pace` holds them to a pace, `fair_lock` lets them have
//! what takes long one after the other, `senders` sends each link its answers, `server` owns the sockets that questions come to.

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
