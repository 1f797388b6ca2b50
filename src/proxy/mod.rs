//! Services and EndpointSlices compiled to what `podwright-net` loads: dataplane elements and DNS names.
//!
//! [`compile`], [`names`] and [`facts`] are pure; [`Proxy`] is the thin task that watches, coalesces and applies.
//!
//! ```text
//! Service, EndpointSlices --compile--> net::dataplane::Service --> one nft transaction
//!                         --names----> net::dns::Names         --> the DNS table
//! Nodes ------------------facts------> net::dataplane::NodeFacts
//! ```

mod compile;
mod endpoints;
mod facts;
mod names;
mod sync;

pub use compile::{Place, compile};
pub use facts::{facts, node_addresses};
pub use names::names;
pub use sync::{Proxy, ProxyConfig, Sources};
