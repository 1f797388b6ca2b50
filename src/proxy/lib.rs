//! Compiles Services, EndpointSlices and host ports to the input of `podwright-net`: dataplane elements and DNS names.
//!
//! [`Compiler`] is pure, as are its parts: [`mod@compile`], [`mod@host_ports`], [`mod@names`], [`mod@facts`], [`Shares`]. [`Proxy`] is the thin task around it: events in, changes of the desired state out. [`Relay`] provides API access for Pods whose network has none.
//!
//! ```text
//!  Service, EndpointSlices --compile, names--.
//!  this node's Pods --host_ports--------------+--> NetworkState --Changes--> net::drivers --> tables, DNS, loopback
//!  Nodes --facts-----------------------------'     (desired state)                |
//!                                                                                 '--> Notices: what is not served
//! ```

#![forbid(unsafe_code)]

mod compile;
mod config;
mod context;
mod endpoints;
mod external;
mod facts;
mod host_ports;
mod names;
mod network_state;
mod notices;
mod objects;
mod owner;
mod relay;
mod shares;
mod sources;
mod sync;

pub use compile::compile;
pub use config::ProxyConfig;
pub use context::NodeContext;
pub use external::{OccupiedAddresses, Told, Unserved, unserved_addresses};
pub use facts::{facts, node_addresses, servers};
pub use host_ports::{host_ports, loopback_ports, unserved};
pub use names::names;
pub use network_state::Compiler;
pub use notices::Notice;
pub use objects::{Dirty, Objects};
pub use owner::Owner;
pub use relay::{Relay, ServerAddress, api_listener};
pub use shares::{ELEMENTS, Shares, weight, weight_of_host_ports};
pub use sources::Sources;
pub use sync::Proxy;
