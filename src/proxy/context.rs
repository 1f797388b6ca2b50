//! Where the compilation stands: this node, what may lead to it from outside, and what of its addresses Services may have.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Service;
use podwright_api::validation::names::{plain_ip, special_ip};

const DNS_PORT: u16 = 53;
/// Whose Services may have further ports of the address of DNS, such as one for metrics.
const DNS_NAMESPACE: &str = "kube-system";
pub(super) const OF_DNS: &str = "it is the address of the cluster's DNS";

/// Where the compilation stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeContext {
    /// This node's name.
    pub node: String,
    /// The zone that it is in, if it says so.
    pub zone: Option<String>,
    /// The addresses on which this node answers DNS itself: port 53 there is not balanced, and the others are `kube-system`'s alone.
    /// Whatever the server lets a Service have, the Pods' questions come to nobody else.
    pub dns: Vec<IpAddr>,
    /// Where this node takes calls of the Service `kubernetes` itself: its only endpoints here, if there are any.
    pub api: Vec<SocketAddr>,
}

impl NodeContext {
    /// Whether this node answers for the Service, wherever its endpoints are.
    pub(super) fn answers_itself(&self, service: &Service) -> bool {
        let meta = &service.metadata;
        let is_api = meta.namespace.as_deref() == Some("default") && meta.name.as_deref() == Some("kubernetes");
        is_api && !self.api.is_empty()
    }

    /// Whether a Service may lead to an endpoint. Whoever comes to the node's DNS by another address than its own has no pace there,
    /// and may be anybody outside: no Service does that but one of `kube-system`, as its operator likes.
    pub(super) fn leads_to(&self, service: &Service, endpoint: &SocketAddr) -> bool {
        endpoint.port() != DNS_PORT || !self.dns.contains(&plain_ip(endpoint.ip())) || is_of_dns(service)
    }
}

/// Whether a Service may have this port of an address as its own. `dns`: where the node answers DNS itself.
pub(super) fn grants(service: &Service, address: &IpAddr, port: u16, dns: &[IpAddr]) -> bool {
    !dns.contains(address) || is_of_dns(service) && port != DNS_PORT
}

pub(super) fn is_of_dns(service: &Service) -> bool {
    service.metadata.namespace.as_deref() == Some(DNS_NAMESPACE)
}

/// Whether an address may lead to a Service from outside: neither one of the machine's or a link's own, nor one on which this node
/// answers DNS.
pub(super) fn may_lead_in(address: &IpAddr, dns: &[IpAddr]) -> bool {
    why_not_in(address, dns).is_none()
}

/// Why it may not.
pub(super) fn why_not_in(address: &IpAddr, dns: &[IpAddr]) -> Option<&'static str> {
    special_ip(*address).or_else(|| dns.contains(&plain_ip(*address)).then_some(OF_DNS))
}
