//! What policies go by of a Pod: its labels, addresses and named ports. Of a hundred thousand Pods no more is kept.
//!
//! Of this node's Pods the agent tells, and where they are says the node's own network. Of all others the API tells, by their
//! [`PodIdentity`]s.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_api::pod_identity::{self, PodIdentity};
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
    /// As its node reports them; of this node's Pods none.
    pub addresses: Vec<IpAddr>,
    pub ports: Vec<NamedPort>,
}

impl PodView {
    /// A Pod of this node: its addresses are what the node has given it, and it has ended when it has none.
    pub fn of(pod: &Pod) -> PodView {
        let metadata = ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            uid: pod.metadata.uid.clone(),
            labels: pod.metadata.labels.clone(),
            ..ObjectMeta::default()
        };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        PodView { metadata, node, addresses: Vec::new(), ports: named_ports(pod) }
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

    /// Whether other nodes are told of it: what all of them would keep has a bound.
    pub fn is_told(&self) -> bool {
        pod_identity::is_told(self.labels(), self.ports.iter().map(|port| port.name.as_str()))
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

impl From<PodIdentity> for PodView {
    fn from(identity: PodIdentity) -> PodView {
        let PodIdentity { metadata, node_name, pod_ips, ports } = identity;
        let named = ports.into_iter().filter_map(|port| {
            let protocol = protocol(Some(&port.protocol))?;
            Some(NamedPort { name: port.name, protocol, number: port.container_port })
        });
        PodView { metadata, node: node_name, addresses: pod_ips, ports: named.collect() }
    }
}

podwright_api::view!(PodView, of PodIdentity);

impl<'de> Deserialize<'de> for PodView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PodView, D::Error> {
        Ok(PodView::from(PodIdentity::deserialize(deserializer)?))
    }
}
