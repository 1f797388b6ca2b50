//! Services, EndpointSlices and host ports compiled to what `podwright-net` loads: dataplane elements and DNS names.
//!
//! [`mod@compile`], [`mod@host_ports`], [`mod@names`], [`mod@facts`] and [`Shares`] are pure; [`Proxy`] is the thin task that watches,
//! coalesces and applies. [`Relay`] is the way to the API where Pods have none of their own.
//!
//! ```text
//! Service, EndpointSlices --compile--> net::dataplane::Service --> one nft transaction
//!                         --names----> net::dns::Names         --> the DNS table
//! this node's Pods ----host_ports----> net::dataplane::Service
//! Nodes ------------------facts------> net::dataplane::NodeFacts
//! ```

#![forbid(unsafe_code)]

mod compile;
mod endpoints;
mod external;
mod facts;
mod host_ports;
mod loopback;
mod names;
mod relay;
mod shares;
mod sources;
mod sync;

pub use compile::{NodeContext, compile};
pub use external::{OccupiedAddresses, Told, Unserved, unserved_addresses};
pub use facts::{facts, node_addresses, servers};
pub use host_ports::{host_ports, loopback_ports, unserved};
pub use loopback::Carriage;
pub use names::names;
pub use relay::{Relay, ServerAddress, api_listener};
pub use shares::{ELEMENTS, Shares, weight, weight_of_host_ports};
pub use sources::Sources;
pub use sync::{Proxy, ProxyConfig};
