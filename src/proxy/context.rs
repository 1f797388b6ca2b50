//! The context of compilation: this node, addresses that may lead to it from outside, and reserved addresses.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Service;
use podwright_api::validation::names::{plain_ip, special_ip};

const DNS_PORT: u16 = 53;
/// The namespace whose Services may use further ports of the DNS address, such as one for metrics.
const DNS_NAMESPACE: &str = "kube-system";
pub(super) const OF_DNS: &str = "it is the address of the cluster's DNS";

/// The context of compilation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeContext {
    /// This node's name.
    pub node: String,
    /// The node's zone, if set.
    pub zone: Option<String>,
    /// The addresses on which this node serves DNS: port 53 there is not balanced, and other ports are reserved for `kube-system`.
    /// Whatever the server permits a Service, Pods' questions go nowhere else.
    pub dns: Vec<IpAddr>,
    /// Where this node accepts calls of the Service `kubernetes` itself: its only endpoints here, if any.
    pub api: Vec<SocketAddr>,
    /// The node's own addresses: without a pool they are those of load balancers.
    pub own: Vec<IpAddr>,
}

impl NodeContext {
    /// Whether this node serves the Service itself, wherever its endpoints are.
    pub(super) fn answers_itself(&self, service: &Service) -> bool {
        let meta = &service.metadata;
        let is_api = meta.namespace.as_deref() == Some("default") && meta.name.as_deref() == Some("kubernetes");
        is_api && !self.api.is_empty()
    }

    /// Whether a Service may lead to an endpoint. Clients reaching the node's DNS through another address are not rate-limited
    /// there, and may be from outside: only a Service of `kube-system` may do that, as its operator decides.
    pub(super) fn leads_to(&self, service: &Service, endpoint: &SocketAddr) -> bool {
        endpoint.port() != DNS_PORT || !self.dns.contains(&plain_ip(endpoint.ip())) || is_of_dns(service)
    }
}

/// Whether a Service may use this port of an address of its own. `dns`: where the node serves DNS.
pub(super) fn grants(service: &Service, address: &IpAddr, port: u16, dns: &[IpAddr]) -> bool {
    !dns.contains(address) || is_of_dns(service) && port != DNS_PORT
}

pub(super) fn is_of_dns(service: &Service) -> bool {
    service.metadata.namespace.as_deref() == Some(DNS_NAMESPACE)
}

/// Whether an address may lead to a Service from outside: not loopback or link-local, nor one on which this node serves DNS.
pub(super) fn may_lead_in(address: &IpAddr, dns: &[IpAddr]) -> bool {
    why_not_in(address, dns).is_none()
}

/// The reason if it may not.
pub(super) fn why_not_in(address: &IpAddr, dns: &[IpAddr]) -> Option<&'static str> {
    special_ip(*address).or_else(|| dns.contains(&plain_ip(*address)).then_some(OF_DNS))
}
