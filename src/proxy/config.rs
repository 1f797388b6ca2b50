//! What the proxy must be told.

use std::net::{IpAddr, SocketAddr};

use podwright_net::IpNet;

/// What the proxy must be told.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// This node's name.
    pub node: String,
    /// `cluster.local`.
    pub domain: String,
    pub service_ranges: Vec<IpNet>,
    /// The addresses on which this node answers DNS itself.
    pub dns: Vec<IpAddr>,
    /// Where this node takes calls of the Service `kubernetes` itself; none: they go to its endpoints.
    pub api: Vec<SocketAddr>,
    /// Where this node's server is.
    pub servers: Vec<IpAddr>,
}
