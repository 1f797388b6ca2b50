//! Compiles one Service with its EndpointSlices into frontends and endpoint lists.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Service, ServicePort as ApiPort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_net::dataplane::{self, Protocol, Seniority, ServicePort};
use podwright_net::{Family, IpNet};

use super::context::{NodeContext, grants, is_of_dns, may_lead_in};
use super::endpoints::{Candidate, Ports, everywhere, of_this_node, on_this_node};

/// Set if another proxy serves this Service.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Upstream's default of `sessionAffinityConfig.clientIP.timeoutSeconds`.
const AFFINITY_SECONDS: i32 = 10_800;

/// The reserved ports of its own addresses that a Service cannot use here, unknown to its author: with protocols.
pub(super) fn kept_ports(service: &Service, dns: &[IpAddr]) -> Vec<(String, u16, IpAddr)> {
    let Some(spec) = service.spec.as_ref().filter(|_| !is_of_dns(service)) else { return Vec::new() };
    let mut kept = Vec::new();
    for address in addresses(spec.cluster_ips.as_deref().unwrap_or_default()) {
        for port in spec.ports.iter().flatten() {
            let number = u16::try_from(port.port).ok().filter(|number| !grants(service, &address, *number, dns));
            let protocol = || port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            kept.extend(number.map(|number| (protocol(), number, address)));
        }
    }
    kept
}

/// The dataplane's configuration of a Service; `None` if there is none (headless, ExternalName, another proxy's).
pub fn compile(
    service: &Service,
    slices: &[impl AsRef<EndpointSlice>],
    place: &NodeContext,
) -> Option<dataplane::Service> {
    let spec = service.spec.as_ref()?;
    let labels = service.metadata.labels.as_ref();
    if labels.is_some_and(|l| l.contains_key(PROXY_NAME)) || spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let cluster_ips = addresses(spec.cluster_ips.as_deref().unwrap_or_default());
    let (host, balancers): (Vec<_>, Vec<_>) =
        balancer_addresses(service).into_iter().partition(|address| place.own.contains(address));
    let mut external = [external_ips(spec), balancers].concat();
    external.retain(|address| may_lead_in(address, &place.dns));
    let mut whole = given_addresses(service);
    whole.retain(|address| external.contains(address));
    let mut ports = Vec::new();
    for family in Family::ALL {
        let of_family = |all: &[IpAddr]| all.iter().copied().filter(|a| Family::of(a) == family).collect::<Vec<_>>();
        let own = of_family(&cluster_ips);
        if own.is_empty() {
            continue;
        }
        let (outer, host) = (of_family(&external), of_family(&host));
        let found_ports = Ports::of(slices, family);
        for port in spec.ports.iter().flatten() {
            let mut found = match place.answers_itself(service) {
                true => of_this_node(&place.api, family),
                false => found_ports.candidates(port.name.as_deref().unwrap_or(""), place),
            };
            found.retain(|candidate| place.leads_to(service, &candidate.address));
            let granted = |address: &&IpAddr| {
                u16::try_from(port.port).is_ok_and(|port| grants(service, address, port, &place.dns))
            };
            let own: Vec<IpAddr> = own.iter().filter(granted).copied().collect();
            ports.extend(compile_port(spec, port, family, [own, outer.clone(), host.clone()], &found));
        }
    }
    let tenant = service.metadata.namespace.clone().unwrap_or_default();
    (!ports.is_empty()).then(|| dataplane::Service { seniority: seniority(&service.metadata), tenant, ports, whole })
}

/// The age of an object.
pub fn seniority(object: &ObjectMeta) -> Seniority {
    Seniority {
        // An object without a creation time is younger than any other.
        since: object.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second()),
        id: object.uid.clone().unwrap_or_default(),
    }
}

fn compile_port(
    spec: &ServiceSpec,
    port: &ApiPort,
    family: Family,
    [cluster_ips, external_ips, host_ips]: [Vec<IpAddr>; 3],
    found: &[Candidate],
) -> Option<ServicePort> {
    let name = port.name.clone().unwrap_or_default();
    let number = u16::try_from(port.port).ok()?;
    let local = |policy: &Option<String>| policy.as_deref() == Some("Local");
    let inside = local(&spec.internal_traffic_policy);
    let has_node_port = matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"));
    let node_port = port.node_port.filter(|_| has_node_port).and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0);
    let is_external = node_port.is_some() || !external_ips.is_empty() || !host_ips.is_empty();
    Some(ServicePort {
        family,
        protocol: protocol(port.protocol.as_deref())?,
        port: number,
        cluster_ips,
        external_ips,
        host_ips,
        node_port,
        internal: if inside { on_this_node(found) } else { everywhere(found) },
        external: (is_external && inside).then(|| everywhere(found)),
        outside: (is_external && local(&spec.external_traffic_policy)).then(|| on_this_node(found)),
        affinity: affinity(spec),
        source_ranges: source_ranges(spec),
        name,
    })
}

/// A protocol by its name in Services and containers.
pub fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name.unwrap_or("TCP") {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

fn affinity(spec: &ServiceSpec) -> Option<Duration> {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let configured = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref());
    let seconds = configured.and_then(|c| c.timeout_seconds).unwrap_or(AFFINITY_SECONDS);
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(1)))
}

/// `loadBalancerSourceRanges`; as upstream, entries are trimmed before parsing.
pub fn source_ranges(spec: &ServiceSpec) -> Vec<IpNet> {
    if spec.type_.as_deref() != Some("LoadBalancer") {
        return Vec::new();
    }
    let ranges = spec.load_balancer_source_ranges.iter().flatten();
    ranges.filter_map(|r| r.trim().parse().ok()).collect()
}

pub(super) fn external_ips(spec: &ServiceSpec) -> Vec<IpAddr> {
    addresses(spec.external_ips.as_deref().unwrap_or_default())
}

/// Load balancer addresses that reach the nodes unchanged (ipMode VIP).
pub(super) fn balancer_addresses(service: &Service) -> Vec<IpAddr> {
    let status = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let ingress = status.and_then(|l| l.ingress.as_deref()).unwrap_or_default();
    let direct = ingress.iter().filter(|i| i.ip_mode.as_deref() != Some("Proxy"));
    direct.filter_map(|i| i.ip.as_deref()?.parse().ok()).collect()
}

/// Those of them that a controller says are the Service's alone: where `ipMode` is unset, something else may be there as well.
fn given_addresses(service: &Service) -> Vec<IpAddr> {
    let status = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let ingress = status.and_then(|l| l.ingress.as_deref()).unwrap_or_default();
    let whole = ingress.iter().filter(|i| i.ip_mode.as_deref() == Some("VIP"));
    whole.filter_map(|i| i.ip.as_deref()?.parse().ok()).collect()
}

/// The valid addresses: not `None` (headless) or the empty string.
fn addresses(texts: &[String]) -> Vec<IpAddr> {
    texts.iter().filter_map(|a| a.parse().ok()).collect()
}
