//! The target of a probe or hook.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::{api::core::v1::Container, apimachinery::pkg::util::intstr::IntOrString};

use super::error::ProbeError;

/// The address of a probe or hook: its explicit host or the Pod's address, and a port by number or name.
///
/// # Errors
///
/// There is no such port or host, or the Pod has no address.
pub fn address(
    host: Option<&str>,
    port: &IntOrString,
    container: &Container,
    ips: &[IpAddr],
) -> Result<SocketAddr, ProbeError> {
    let port = match port {
        IntOrString::Int(port) => *port,
        IntOrString::String(name) => match container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name)) {
            Some(named) => named.container_port,
            None => name.parse().map_err(|_| ProbeError::UnknownPort(name.clone()))?,
        },
    };
    let port = u16::try_from(port).ok().filter(|p| *p != 0).ok_or(ProbeError::InvalidPort(port))?;
    let ip = match host.filter(|h| !h.is_empty()) {
        Some("localhost") => IpAddr::from([127, 0, 0, 1]),
        Some(host) => host.parse().map_err(|_| ProbeError::InvalidHost(host.to_owned()))?,
        None => *ips.first().ok_or(ProbeError::NoAddress)?,
    };
    Ok(SocketAddr::new(ip, port))
}
