//! What policies go by of a Pod: where it is, its labels, addresses and named ports. Of a hundred thousand Pods no more is kept.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_api::pod_references;
use podwright_net::dataplane::Protocol;
use serde::{Deserialize, Deserializer, Serialize};

use crate::compile::protocol;

/// A named port of a Pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct NamedPort {
    pub name: String,
    pub protocol: Protocol,
    pub number: u16,
}

/// A Pod, as far as policies go by it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PodView {
    pub metadata: ObjectMeta,
    pub node: String,
    pub host_network: bool,
    /// It stands for a static Pod, and is its node's word.
    pub mirror: bool,
    /// It has ended: its addresses may be another's.
    pub done: bool,
    pub addresses: Vec<IpAddr>,
    pub ports: Vec<NamedPort>,
}

impl PodView {
    pub fn of(pod: &Pod) -> PodView {
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let metadata = ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            uid: pod.metadata.uid.clone(),
            resource_version: pod.metadata.resource_version.clone(),
            labels: pod.metadata.labels.clone(),
            ..ObjectMeta::default()
        };
        let ips = status.into_iter().flat_map(|status| status.pod_ips.iter().flatten());
        let phase = status.and_then(|status| status.phase.as_deref());
        PodView {
            metadata,
            node: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
            mirror: pod.metadata.annotations.iter().any(|all| all.contains_key(pod_references::MIRROR)),
            host_network: spec.is_some_and(|spec| spec.host_network == Some(true)),
            done: matches!(phase, Some("Succeeded" | "Failed")),
            addresses: ips.filter_map(|ip| ip.ip.parse().ok()).collect(),
            ports: named_ports(pod),
        }
    }

    /// What matters of it where it runs: its addresses are what the node has given it, and it has ended when it has none.
    pub fn on_its_node(mut self) -> PodView {
        self.metadata.resource_version = None;
        PodView { done: false, addresses: Vec::new(), ..self }
    }

    /// What stands for the cluster's DNS, which each node answers itself: as who asks for it elsewhere names it.
    pub fn of_dns() -> PodView {
        let port = |name: &str, protocol| NamedPort { name: name.to_owned(), protocol, number: 53 };
        let metadata = ObjectMeta {
            namespace: Some("kube-system".to_owned()),
            labels: Some(BTreeMap::from([("k8s-app".to_owned(), "kube-dns".to_owned())])),
            ..ObjectMeta::default()
        };
        let ports = vec![port("dns", Protocol::Udp), port("dns-tcp", Protocol::Tcp)];
        PodView { metadata, ports, ..PodView::default() }
    }

    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }
    pub fn labels(&self) -> Option<&BTreeMap<String, String>> {
        self.metadata.labels.as_ref()
    }

    /// The numbers that a port's name stands for.
    pub fn numbers<'a>(&'a self, name: &'a str, protocol: Protocol) -> impl Iterator<Item = u16> {
        let named = self.ports.iter().filter(move |port| port.name == name && port.protocol == protocol);
        named.map(|port| port.number)
    }
}

/// Those of its containers, and of init containers that run beside them.
fn named_ports(pod: &Pod) -> Vec<NamedPort> {
    let is_sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let spec = pod.spec.iter();
    let containers =
        spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(is_sidecar)));
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let named = ports.filter_map(|port| {
        let name = port.name.clone().filter(|name| !name.is_empty())?;
        let number = u16::try_from(port.container_port).ok()?;
        Some(NamedPort { name, protocol: protocol(port.protocol.as_deref())?, number })
    });
    named.collect()
}

podwright_api::view!(PodView, of Pod);

impl<'de> Deserialize<'de> for PodView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PodView, D::Error> {
        Ok(PodView::of(&Pod::deserialize(deserializer)?))
    }
}
