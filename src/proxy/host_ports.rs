//! One Pod's host ports: the node's addresses and such a port lead to the Pod, as if it were a Service of its own.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod};
use podwright_net::Family;
use podwright_net::dataplane::{self, Backends, Empty, ServicePort};

use super::compile::{protocol, seniority};

/// What the dataplane shall do for a Pod of this node; `None` where that is nothing: no host ports, no address yet, the
/// host's network anyway, or done.
pub fn host_ports(pod: &Pod) -> Option<dataplane::Service> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    let done = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    if done || spec.host_network == Some(true) {
        return None;
    }
    let own: Vec<IpAddr> = status.pod_ips.iter().flatten().filter_map(|ip| ip.ip.parse().ok()).collect();
    let is_sidecar = |c: &&Container| c.restart_policy.as_deref() == Some("Always");
    let containers = spec.init_containers.iter().flatten().filter(is_sidecar).chain(&spec.containers);
    let wanted: Vec<&ContainerPort> = containers.flat_map(|c| c.ports.iter().flatten()).collect();
    let ports = own.iter().flat_map(|ip| wanted.iter().filter_map(|port| host_port(port, *ip)));
    let ports: Vec<ServicePort> = ports.collect();
    (!ports.is_empty()).then(|| dataplane::Service { seniority: seniority(&pod.metadata), ports })
}

/// A host port of the family of `own`, the Pod's address. As node ports, none is on loopback.
fn host_port(wanted: &ContainerPort, own: IpAddr) -> Option<ServicePort> {
    let number = |port: i32| u16::try_from(port).ok().filter(|port| *port > 0);
    let (port, inside) = (number(wanted.host_port?)?, number(wanted.container_port)?);
    // `0.0.0.0` and `::` are all addresses of one family, none is all of both.
    let address: Option<IpAddr> =
        wanted.host_ip.as_deref().filter(|ip| !ip.is_empty()).map(str::parse).transpose().ok()?;
    if address.is_some_and(|a| a.is_loopback() || a.is_ipv4() != own.is_ipv4()) {
        return None;
    }
    let address = address.filter(|a| !a.is_unspecified());
    Some(ServicePort {
        name: address.map_or_else(|| port.to_string(), |a| format!("{a}:{port}")),
        family: Family::of(&own),
        protocol: protocol(wanted.protocol.as_deref())?,
        port,
        cluster_ips: Vec::new(),
        external_ips: address.into_iter().collect(),
        node_port: address.is_none().then_some(port),
        internal: Backends { endpoints: vec![SocketAddr::new(own, inside)], empty: Empty::Refuse },
        external: None,
        outside: None,
        affinity: None,
        source_ranges: Vec::new(),
    })
}
