//! Services, EndpointSlices, host ports and NetworkPolicies compiled to what `podwright-net` loads: dataplane elements and DNS names.
//!
//! [`Compiler`] is pure, and so is all that it puts together: [`mod@compile`], [`mod@host_ports`], [`mod@names`], [`mod@facts`],
//! [`Shares`], [`Policies`]. [`Proxy`] is the thin task around it: events in, changes of the desired state out. [`Relay`] is the way to the API where
//! Pods have none of their own.
//!
//! ```text
//!  Service, EndpointSlices --compile, names--.
//!  this node's Pods --host_ports--------------+--> NetworkState --Changes--> net::drivers --> tables, DNS, loopback
//!  Nodes --facts-----------------------------+     (what is wanted)               |
//!  LoadBalancers --announcing--> net::announce: who answers for their addresses   |
//!  NetworkPolicies, all Pods --policy--------'                                    |
//!                                                                                 '--> Notices: what is not to be had
//! ```

#![forbid(unsafe_code)]

mod announcing;
mod compile;
mod config;
mod context;
mod endpoints;
mod external;
mod facts;
mod health_checks;
mod host_ports;
mod names;
mod network_state;
mod notices;
mod objects;
mod owner;
mod pace;
mod policy;
mod relay;
mod shares;
mod sources;
mod sync;

pub use announcing::Announcing;
pub use compile::compile;
pub use config::ProxyConfig;
pub use context::NodeContext;
pub use external::{OccupiedAddresses, Told, Unserved, unserved_addresses};
pub use facts::{facts, node_addresses, servers};
pub use health_checks::health_check;
pub use host_ports::{host_ports, loopback_ports, unserved};
pub use names::names;
pub use network_state::Compiler;
pub use notices::Notice;
pub use objects::{Dirty, Objects};
pub use owner::Owner;
pub use policy::{Gate, Local, NamedPort, Outcome, PodView, Policies};
pub use relay::{Relay, ServerAddress, api_listener};
pub use shares::{ELEMENTS, Shares, weight, weight_of_host_ports};
pub use sources::Sources;
pub use sync::Proxy;
