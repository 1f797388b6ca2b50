//! The proxy's configuration.

use std::net::{IpAddr, SocketAddr};

use podwright_net::IpNet;

/// The proxy's configuration.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// This node's name.
    pub node: String,
    /// `cluster.local`.
    pub domain: String,
    pub service_ranges: Vec<IpNet>,
    /// The addresses on which this node serves DNS.
    pub dns: Vec<IpAddr>,
    /// Where this node accepts calls of the Service `kubernetes` itself; empty: they go to its endpoints.
    pub api: Vec<SocketAddr>,
    /// The addresses of this node's server.
    pub servers: Vec<IpAddr>,
}
