//! The cluster's DNS: served on the node for its own Pods, everything else forwarded.
//!
//! `records` says what the names are, [`answer`] speaks the wire format, `forward` asks upstream servers, `places` shares what is
//! bounded among clients, `turns` lets them have what takes long one after the other, `server` owns the sockets.

pub mod answer;
mod forward;
mod places;
mod records;
mod server;
mod turns;

pub use forward::{Read, Upstream};
pub use records::{Answer, Data, Entry, Names, Question, Srv, Table, reverse_name};
pub use server::Server;
