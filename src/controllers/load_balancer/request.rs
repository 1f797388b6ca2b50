//! What a Service asks for: families, certain addresses, with whom it shares them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use podwright_api::load_balancer::{ADDRESSES, CLASS, CONDITION, SHARING_KEY};

use crate::meta;

/// A protocol and its port.
pub type Port = (String, i32);

/// What a Service asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The families of its addresses, in order: whether IPv4.
    pub families: Vec<bool>,
    /// Whether it wants all of them, or nothing.
    pub wants_all: bool,
    /// Certain addresses, at most one of each family.
    pub addresses: Vec<IpAddr>,
    pub sharing: Sharing,
}

/// Who may have the same address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    pub namespace: String,
    /// `None`: nobody else.
    pub key: Option<String>,
    pub ports: BTreeSet<Port>,
    /// With externalTrafficPolicy Local the Pods behind it: one node announces the address for all Services that share it, so
    /// they must have their endpoints on the same nodes.
    pub local: Option<Vec<(String, String)>>,
}

impl Sharing {
    /// Whether both may have one address.
    pub fn fits(&self, other: &Sharing) -> bool {
        self.namespace == other.namespace
            && self.key.is_some()
            && self.key == other.key
            && self.local == other.local
            && self.ports.is_disjoint(&other.ports)
    }
}

/// Whether the Service is one that has load balancer addresses, from whomever.
pub fn is_balanced(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"))
}

/// Whether this controller answers for the Service's status: one with another's class is left alone.
pub fn is_ours(service: &Service) -> bool {
    let class = service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_deref());
    class.is_none_or(|class| class == CLASS)
}

/// Whether this controller has something to say of a Service: it is ours, or was, and has what we gave it. Its class may have become
/// another's on the way over another type.
pub fn is_to_decide(service: &Service) -> bool {
    is_ours(service) || condition(service).is_some()
}

/// What this controller has said of a Service.
pub fn condition(service: &Service) -> Option<&Condition> {
    let conditions = service.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|condition| condition.type_ == CONDITION)
}

/// The addresses in a Service's status.
pub fn held(service: &Service) -> Vec<IpAddr> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default();
    ingress.iter().filter_map(|one| one.ip.as_deref()?.parse().ok()).collect()
}

/// The addresses that a Service names as its own, whoever sends traffic there.
pub fn external_ips(service: &Service) -> impl Iterator<Item = IpAddr> {
    let all = service.spec.iter().flat_map(|spec| spec.external_ips.iter().flatten());
    all.filter_map(|ip| ip.parse().ok())
}

/// What a Service of type LoadBalancer asks for. Fails, in words for its author, if that is contradictory.
pub fn request(service: &Service) -> Result<Request, String> {
    let none = ServiceSpec::default();
    let spec = service.spec.as_ref().unwrap_or(&none);
    let mut families: Vec<bool> = spec.ip_families.iter().flatten().map(|family| family == "IPv4").collect();
    if families.is_empty() {
        families.push(true);
    }
    let addresses = requested(service, spec)?;
    for (n, address) in addresses.iter().enumerate() {
        if !families.contains(&address.is_ipv4()) {
            return Err(format!("{address} is not of the Service's families ({})", named(&families)));
        }
        if addresses[..n].iter().any(|other| other.is_ipv4() == address.is_ipv4()) {
            return Err(format!("{ADDRESSES}: at most one address of each family, not {address} as well"));
        }
    }
    let wants_all = spec.ip_family_policy.as_deref() != Some("PreferDualStack");
    Ok(Request { families, wants_all, addresses, sharing: sharing(service, spec) })
}

fn requested(service: &Service, spec: &ServiceSpec) -> Result<Vec<IpAddr>, String> {
    let field = spec.load_balancer_ip.as_deref().filter(|ip| !ip.is_empty());
    match (field, meta::annotation(&service.metadata, ADDRESSES)) {
        (Some(_), Some(_)) => Err(format!("spec.loadBalancerIP and the annotation {ADDRESSES} are both given")),
        (Some(ip), None) => {
            ip.parse().map(|ip| vec![ip]).map_err(|_| format!("spec.loadBalancerIP {:?}: no address", cut(ip)))
        }
        (None, Some(list)) => {
            // An address is at most 45 characters long, and there are two.
            let parse = |ip: &str| ip.trim().parse().map_err(|_| format!("{ADDRESSES}: {:?} is no address", cut(ip)));
            list.split(',').take(3).map(parse).collect()
        }
        (None, None) => Ok(Vec::new()),
    }
}

fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

/// `IPv4`, `IPv6, IPv4`
pub fn named(families: &[bool]) -> String {
    let names: Vec<&str> = families.iter().map(|is_v4| if *is_v4 { "IPv4" } else { "IPv6" }).collect();
    names.join(", ")
}

fn sharing(service: &Service, spec: &ServiceSpec) -> Sharing {
    let key = meta::annotation(&service.metadata, SHARING_KEY).filter(|key| !key.is_empty());
    let is_local = spec.external_traffic_policy.as_deref() == Some("Local");
    let selector = || spec.selector.iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
    Sharing {
        namespace: meta::namespace(&service.metadata).to_owned(),
        key: key.map(str::to_owned),
        ports: ports(spec),
        local: is_local.then(selector),
    }
}

/// The ports of a Service.
pub fn ports(spec: &ServiceSpec) -> BTreeSet<Port> {
    let ports = spec.ports.iter().flatten();
    ports.map(|port| (port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), port.port)).collect()
}
