//! Selects a Service's endpoints, following upstream's `pkg/proxy/topology.go`.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use podwright_net::Family;
use podwright_net::dataplane::{Backends, Empty};

use super::NodeContext;

/// The properties of a Service port's endpoint that matter for balancing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub address: SocketAddr,
    /// It runs on this node.
    pub local: bool,
    pub ready: bool,
    /// It is terminating and still serving.
    pub serving_terminating: bool,
    /// Whether it is meant for this node, and for this node's zone, by its hints.
    pub for_node: Hint,
    pub for_zone: Hint,
}

/// An endpoint's hint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hint {
    #[default]
    Unsaid,
    Here,
    Elsewhere,
}

impl Hint {
    fn of<'a>(mut names: impl Iterator<Item = &'a String>, here: Option<&str>) -> Hint {
        match names.next() {
            None => Hint::Unsaid,
            Some(first) => match std::iter::once(first).chain(names).any(|name| Some(name.as_str()) == here) {
                true => Hint::Here,
                false => Hint::Elsewhere,
            },
        }
    }
}

/// The ports in a Service's slices of one family, by name: there may be thousands, as in the Service.
pub struct Ports<'a>(HashMap<&'a str, Vec<(&'a EndpointSlice, u16)>>);

impl<'a> Ports<'a> {
    pub fn of(slices: &'a [impl AsRef<EndpointSlice>], family: Family) -> Ports<'a> {
        let mut ports: HashMap<&str, Vec<_>> = HashMap::new();
        for slice in slices.iter().map(AsRef::as_ref).filter(|slice| family_of(slice) == Some(family)) {
            for port in slice.ports.iter().flatten() {
                let Some(number) = port.port.and_then(|number| u16::try_from(number).ok()) else { continue };
                ports.entry(port.name.as_deref().unwrap_or("")).or_default().push((slice, number));
            }
        }
        Ports(ports)
    }

    /// The endpoints of a Service port in the slices.
    pub fn candidates(&self, port: &str, place: &NodeContext) -> Vec<Candidate> {
        let slices = self.0.get(port).into_iter().flatten();
        let of_slice = |(slice, number): &(&'a EndpointSlice, u16)| {
            let number = *number;
            slice.endpoints.iter().filter_map(move |e| candidate(e, number, place))
        };
        slices.flat_map(of_slice).collect()
    }
}

/// Addresses where this node itself responds, as endpoints.
pub fn of_this_node(addresses: &[SocketAddr], family: Family) -> Vec<Candidate> {
    let own = addresses.iter().filter(|address| Family::of(&address.ip()) == family);
    let candidate = |address: &SocketAddr| Candidate {
        address: *address,
        local: true,
        ready: true,
        serving_terminating: false,
        for_node: Hint::Unsaid,
        for_zone: Hint::Unsaid,
    };
    own.map(candidate).collect()
}

/// The address family of a slice; none for one of host names.
pub fn family_of(slice: &EndpointSlice) -> Option<Family> {
    match slice.address_type.as_str() {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        _ => None,
    }
}

/// Whether an endpoint is ready; the default if unset.
pub fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true)
}

/// Whether connections may be sent to an endpoint: it is ready, or terminating and still serving.
pub fn is_usable(endpoint: &Endpoint) -> bool {
    is_ready(endpoint) || is_serving_terminating(endpoint)
}

fn is_serving_terminating(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    let serving = conditions.and_then(|c| c.serving).unwrap_or(is_ready(endpoint));
    serving && conditions.and_then(|c| c.terminating).unwrap_or(false)
}

/// An endpoint's address: consumers only use the first.
pub fn address_of(endpoint: &Endpoint) -> Option<IpAddr> {
    endpoint.addresses.first()?.parse().ok()
}

fn candidate(endpoint: &Endpoint, port: u16, place: &NodeContext) -> Option<Candidate> {
    let hints = endpoint.hints.as_ref();
    let nodes = hints.into_iter().flat_map(|hints| hints.for_nodes.iter().flatten()).map(|node| &node.name);
    let zones = hints.into_iter().flat_map(|hints| hints.for_zones.iter().flatten()).map(|zone| &zone.name);
    Some(Candidate {
        address: SocketAddr::new(address_of(endpoint)?, port),
        local: endpoint.node_name.as_ref() == Some(&place.node),
        ready: is_ready(endpoint),
        serving_terminating: is_serving_terminating(endpoint),
        for_node: Hint::of(nodes, Some(&place.node)),
        for_zone: Hint::of(zones, place.zone.as_deref()),
    })
}

/// All usable endpoints of the cluster, or those with hints for this node; refused if there are none.
pub fn everywhere(candidates: &[Candidate]) -> Backends {
    let meant = followed(candidates);
    let endpoints = usable(candidates, |c| meant.is_none_or(|hint| hint(c) == Hint::Here));
    Backends { endpoints, empty: Empty::Refuse }
}

/// The hints to follow: only if every ready endpoint has some, and some are for this node. Otherwise endpoints without hints would
/// get no traffic, or there would be none to use.
fn followed(candidates: &[Candidate]) -> Option<fn(&Candidate) -> Hint> {
    let kinds: [fn(&Candidate) -> Hint; 2] = [|c| c.for_node, |c| c.for_zone];
    kinds.into_iter().find(|hint| {
        let mut hints = candidates.iter().filter(|c| c.ready).map(hint);
        hints.clone().any(|hint| hint == Hint::Here) && hints.all(|hint| hint != Hint::Unsaid)
    })
}

/// This node's usable endpoints. Without one, connections are dropped if other nodes have some (so that a load balancer moves on),
/// and refused if there are none anywhere.
pub fn on_this_node(candidates: &[Candidate]) -> Backends {
    let anywhere = !usable(candidates, |_| true).is_empty();
    let empty = if anywhere { Empty::Drop } else { Empty::Refuse };
    Backends { endpoints: usable(candidates, |c| c.local), empty }
}

/// The ready ones; without any, those that are terminating and still serving.
fn usable(candidates: &[Candidate], among: impl Fn(&&Candidate) -> bool) -> Vec<SocketAddr> {
    let pick = |wanted: fn(&Candidate) -> bool| -> Vec<SocketAddr> {
        candidates.iter().filter(&among).filter(|c| wanted(c)).map(|c| c.address).collect()
    };
    let ready = pick(|c| c.ready);
    if ready.is_empty() { pick(|c| c.serving_terminating) } else { ready }
}
