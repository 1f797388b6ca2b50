//! Traffic distribution: the zone and node hints of endpoints (`spec.trafficDistribution` of a Service).
//!
//! Upstream: `staging/src/k8s.io/endpointslice/trafficdist/trafficdist.go`. Each endpoint gets its own zone and node: whether that
//! is useful is for consumers of the hints to decide. The older annotation, which distributes endpoints over zones, is not
//! supported; an event says so.

use k8s_openapi::api::{
    core::v1::Service,
    discovery::v1::{Endpoint, EndpointHints, ForNode, ForZone},
};

use crate::{meta, write::Note};
use podwright_client::reference;

const ANNOTATIONS: [&str; 2] = ["service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints"];

/// An endpoint's hints for a Service's distribution; `None` for one that is not ready.
pub(super) fn hints(distribution: Option<&str>, endpoint: &Endpoint) -> Option<EndpointHints> {
    let with_node = match distribution? {
        "PreferClose" | "PreferSameZone" => false,
        "PreferSameNode" => true,
        _ => return None,
    };
    if endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(true) {
        return None;
    }
    let for_zones = endpoint.zone.clone().map(|name| vec![ForZone { name }]);
    let for_nodes = endpoint.node_name.clone().filter(|_| with_node).map(|name| vec![ForNode { name }]);
    (for_zones.is_some() || for_nodes.is_some()).then_some(EndpointHints { for_nodes, for_zones })
}

/// The event for a Service with the old annotation.
pub(super) fn unserved(service: &Service) -> Option<Note> {
    let asks = |name: &&str| matches!(meta::annotation(&service.metadata, name), Some("Auto" | "auto"));
    let name = ANNOTATIONS.into_iter().find(asks)?;
    let message = format!("The annotation {name} is not served, use spec.trafficDistribution");
    Some(Note::warning(reference(service), "TopologyAwareHintsDisabled", message))
}
