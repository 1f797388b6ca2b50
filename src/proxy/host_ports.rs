//! One Pod's host ports: connections to the node's addresses and such a port lead to the Pod, like a Service.
//!
//! Those on loopback are not handled by the kernel, which treats packets from loopback on any link as forged: the agent accepts
//! them itself ([`podwright_net::forwards`]), if they are TCP or UDP.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod};
use podwright_net::Family;
use podwright_net::dataplane::{self, Backends, Empty, NodeFacts, Protocol, ServicePort};
use podwright_net::forwards::Forward;

use super::compile::{protocol, seniority};
use super::context::{may_lead_in, why_not_in};

/// The dataplane's configuration of a Pod of this node; `None` if there is none: no host ports, no address yet, host network, or
/// completed. `dns`: where the node serves DNS.
pub fn host_ports(pod: &Pod, dns: &[IpAddr]) -> Option<dataplane::Service> {
    // Users who can write a Pod may claim any address, as those who can write a Service.
    let may_lead = |port: &HostPort| port.address.is_none_or(|address| may_lead_in(&address, dns));
    let served = wanted(pod).filter(|port| !port.is_on_loopback() && may_lead(port));
    let ports: Vec<ServicePort> = served.map(service_port).collect();
    let tenant = pod.metadata.namespace.clone().unwrap_or_default();
    (!ports.is_empty()).then(|| dataplane::Service {
        seniority: seniority(&pod.metadata),
        tenant,
        ports,
        whole: Vec::new(),
    })
}

/// The agent's forwards from loopback to the Pod.
pub fn loopback_ports(pod: &Pod) -> Vec<Forward> {
    let carried = wanted(pod).filter(|port| port.is_on_loopback() && port.protocol != Protocol::Sctp);
    let forward = |HostPort { address, port, protocol, to }: HostPort| {
        Some(Forward { protocol, at: SocketAddr::new(address?, port), to })
    };
    carried.filter_map(forward).collect()
}

/// The host ports that this node cannot serve, in words. `own`: the node's addresses; `dns`: where it serves DNS.
pub fn unserved(pod: &Pod, facts: &NodeFacts, own: &[IpAddr], dns: &[IpAddr]) -> Vec<String> {
    let others = facts.cluster_ranges.iter().chain(&facts.other_nodes).chain(&facts.service_ranges);
    let is_others = |address: &IpAddr| !own.contains(address) && others.clone().any(|range| range.contains(address));
    let why = |port: &HostPort| {
        let address = port.address?;
        let why = match port.is_on_loopback() {
            true => (port.protocol == Protocol::Sctp).then_some("on loopback this node serves TCP and UDP alone"),
            false => {
                let others = || is_others(&address).then_some("the address is not one of this node");
                why_not_in(&address, dns).or_else(others)
            }
        };
        let at = SocketAddr::new(address, port.port);
        why.map(|why| format!("host port {at}/{} is not served: {why}", port.protocol.name()))
    };
    wanted(pod).filter_map(|port| why(&port)).collect()
}

/// One host port in one family.
#[derive(PartialEq)]
pub struct HostPort {
    /// `None`: all of the node's addresses.
    address: Option<IpAddr>,
    port: u16,
    protocol: Protocol,
    to: SocketAddr,
}

impl HostPort {
    fn is_on_loopback(&self) -> bool {
        self.address.is_some_and(|address| address.is_loopback())
    }
}

/// The host ports of a Pod that has an address and is not completed.
pub fn wanted(pod: &Pod) -> impl Iterator<Item = HostPort> {
    let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
    let done = status.is_some_and(|status| matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")));
    let spec = spec.filter(|spec| !done && spec.host_network != Some(true));
    let ips = status.into_iter().flat_map(|status| status.pod_ips.iter().flatten());
    let own: Vec<IpAddr> = ips.filter_map(|ip| ip.ip.parse().ok()).collect();
    let is_sidecar = |c: &&Container| c.restart_policy.as_deref() == Some("Always");
    let containers = spec
        .into_iter()
        .flat_map(move |spec| spec.init_containers.iter().flatten().filter(is_sidecar).chain(&spec.containers));
    let ports: Vec<&ContainerPort> = containers.flat_map(|c| c.ports.iter().flatten()).collect();
    own.into_iter().flat_map(move |ip| ports.clone().into_iter().filter_map(move |port| host_port(port, ip)))
}

/// A host port of the family of `own`, the Pod's address.
fn host_port(wanted: &ContainerPort, own: IpAddr) -> Option<HostPort> {
    let number = |port: i32| u16::try_from(port).ok().filter(|port| *port > 0);
    let (port, inside) = (number(wanted.host_port?)?, number(wanted.container_port)?);
    // `0.0.0.0` and `::` mean all addresses of one family, none means all of both.
    let address: Option<IpAddr> =
        wanted.host_ip.as_deref().filter(|ip| !ip.is_empty()).map(str::parse).transpose().ok()?;
    if address.is_some_and(|a| a.is_ipv4() != own.is_ipv4()) {
        return None;
    }
    let address = address.filter(|a| !a.is_unspecified());
    Some(HostPort { address, port, protocol: protocol(wanted.protocol.as_deref())?, to: SocketAddr::new(own, inside) })
}

/// Like node ports, one without an address is not on loopback. One with an address that is not the node's own yet is treated like
/// an external address.
fn service_port(HostPort { address, port, protocol, to }: HostPort) -> ServicePort {
    let addresses: Vec<IpAddr> = address.into_iter().collect();
    ServicePort {
        name: address.map_or_else(|| port.to_string(), |a| format!("{a}:{port}")),
        family: Family::of(&to.ip()),
        protocol,
        port,
        cluster_ips: Vec::new(),
        external_ips: addresses.clone(),
        host_ips: addresses,
        node_port: address.is_none().then_some(port),
        internal: Backends { endpoints: vec![to], empty: Empty::Refuse },
        external: None,
        outside: None,
        affinity: None,
        source_ranges: Vec::new(),
    }
}
