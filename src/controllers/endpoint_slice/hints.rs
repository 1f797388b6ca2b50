//! Traffic distribution: for which zone, and which node, an endpoint is meant (`spec.trafficDistribution` of a Service).
//!
//! Upstream: `staging/src/k8s.io/endpointslice/trafficdist/trafficdist.go`. Each endpoint is meant for where it is: whether
//! that leads anywhere is for those to see who follow the hints. The older annotation, by which shares of the endpoints are
//! given to zones, is not served; that is told.

use k8s_openapi::api::{
    core::v1::Service,
    discovery::v1::{Endpoint, EndpointHints, ForNode, ForZone},
};

use crate::{meta, write::Note};
use podwright_client::reference;

const ANNOTATIONS: [&str; 2] = ["service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints"];

/// What a Service's distribution makes of an endpoint; nothing of one that is not ready.
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

/// What is told of a Service that asks by the annotation.
pub(super) fn unserved(service: &Service) -> Option<Note> {
    let asks = |name: &&str| matches!(meta::annotation(&service.metadata, name), Some("Auto" | "auto"));
    let name = ANNOTATIONS.into_iter().find(asks)?;
    let message = format!("The annotation {name} is not served, use spec.trafficDistribution");
    Some(Note::warning(reference(service), "TopologyAwareHintsDisabled", message))
}
