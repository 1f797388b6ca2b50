//! `network.podwright.io/v1` PodIdentity: who a Pod is to NetworkPolicies, and nothing else of it.
//!
//! A node has to know whom the peers of its policies are on other nodes, and may not read other nodes' Pods. So the server derives this
//! from each Pod that can be a peer, for `list` and `watch`. There is none of a Pod without addresses, of one that has ended, of one on
//! its node's network, which policies cannot tell from the node, and of another node's static Pod, of which all is that node's word.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::{NamespaceResourceScope, Resource, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer, Serialize};

use super::pod_references::MIRROR;
use super::schema::Defined;

/// The API group.
pub const GROUP: &str = "network.podwright.io";

/// How many bytes the names and values of a Pod's labels have at most, and the names of its ports: all nodes keep them.
pub const MOST_BYTES: usize = 16 << 10;

/// Who a Pod is to NetworkPolicies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodIdentity {
    /// Namespace, name and labels alone, and the revision.
    pub metadata: ObjectMeta,
    /// Its node. Whoever reads this believes those of the addresses that are of the node's ranges.
    pub node_name: String,
    #[serde(rename = "podIPs")]
    pub pod_ips: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<NamedPort>,
}

/// A port of a container that has a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamedPort {
    pub name: String,
    pub container_port: u16,
    pub protocol: String,
}

impl Resource for PodIdentity {
    const API_VERSION: &'static str = "network.podwright.io/v1";
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = "PodIdentity";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "podidentities";
    type Scope = NamespaceResourceScope;
}

impl Defined for PodIdentity {
    const NAME: &'static str = "io.podwright.network.v1.PodIdentity";
}

impl PodIdentity {
    /// Of a Pod as it is stored. `None`: no policy can have it as a peer.
    pub fn of_stored(pod: &[u8]) -> Option<PodIdentity> {
        let Seen { metadata, spec, status } = serde_json::from_slice(pod).ok()?;
        let is_done = matches!(status.phase.as_str(), "Succeeded" | "Failed");
        let is_mirror = metadata.annotations.is_some_and(|all| all.contains_key(MIRROR));
        if is_done || is_mirror || spec.host_network || spec.node_name.is_empty() {
            return None;
        }
        let pod_ips = one_of_each_family(status.pod_ips);
        let ports: Vec<NamedPort> = spec.ports().collect();
        let labels = metadata.labels.unwrap_or_default();
        if pod_ips.is_empty() || !is_told(Some(&labels), ports.iter().map(|port| port.name.as_str())) {
            return None;
        }
        let metadata = ObjectMeta {
            name: Some(metadata.name),
            namespace: Some(metadata.namespace),
            labels: Some(labels).filter(|labels| !labels.is_empty()),
            ..ObjectMeta::default()
        };
        Some(PodIdentity { metadata, node_name: spec.node_name, pod_ips, ports })
    }
}

/// Whether a Pod's labels and names of ports are few enough for all nodes to keep them. Others are nobody's peers on other nodes.
pub fn is_told<'a>(labels: Option<&BTreeMap<String, String>>, ports: impl Iterator<Item = &'a str>) -> bool {
    let labels = labels.into_iter().flatten().map(|(name, value)| name.len() + value.len());
    labels.chain(ports.map(str::len)).sum::<usize>() <= MOST_BYTES
}

/// A Pod has no more, whatever its node reports.
fn one_of_each_family(reported: Vec<Reported>) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    for ip in reported.iter().filter_map(|reported| reported.ip.parse::<IpAddr>().ok()) {
        if !found.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) {
            found.push(ip);
        }
    }
    found
}

/// What is looked at of a Pod: the rest is skipped, not parsed.
#[derive(Deserialize)]
struct Seen {
    metadata: Metadata,
    #[serde(default, deserialize_with = "or_default")]
    spec: Spec,
    #[serde(default, deserialize_with = "or_default")]
    status: Status,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    #[serde(deserialize_with = "or_default")]
    node_name: String,
    #[serde(deserialize_with = "or_default")]
    host_network: bool,
    #[serde(deserialize_with = "or_default")]
    containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    init_containers: Vec<Container>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    restart_policy: Option<String>,
    ports: Option<Vec<Port>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Port {
    #[serde(default, deserialize_with = "or_default")]
    name: String,
    container_port: u16,
    protocol: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(deserialize_with = "or_default")]
    phase: String,
    #[serde(rename = "podIPs", deserialize_with = "or_default")]
    pod_ips: Vec<Reported>,
}

#[derive(Deserialize)]
struct Reported {
    #[serde(default, deserialize_with = "or_default")]
    ip: String,
}

/// A null is nothing.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

impl Spec {
    /// Those of its containers, and of init containers that run beside them.
    fn ports(&self) -> impl Iterator<Item = NamedPort> {
        let is_sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
        let beside = self.init_containers.iter().filter(is_sidecar);
        let ports = self.containers.iter().chain(beside).flat_map(|container| container.ports.iter().flatten());
        ports.filter(|port| !port.name.is_empty()).map(|port| NamedPort {
            name: port.name.clone(),
            container_port: port.container_port,
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "p", "namespace": "a", "uid": "u", "labels": {"app": "web"}, "annotations": {"secret": "of its author"},
                "ownerReferences": [{"name": "owner"}], "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                "nodeName": "n2", "serviceAccountName": "robot",
                "containers": [{"name": "c", "image": "registry/secret", "env": [{"name": "KEY", "value": "secret"}],
                    "ports": [{"name": "web", "containerPort": 8080, "protocol": "TCP"}, {"containerPort": 9}]}],
                "initContainers": [
                    {"name": "once", "ports": [{"name": "once", "containerPort": 1, "protocol": "TCP"}]},
                    {"name": "beside", "restartPolicy": "Always", "ports": [{"name": "dns", "containerPort": 53, "protocol": "UDP"}]}],
            },
            "status": {"phase": "Running", "hostIP": "192.0.2.1", "podIPs": [{"ip": "10.2.0.1"}, {"ip": "fd00:2::1"}]},
        })
    }

    fn of(pod: &Value) -> Option<PodIdentity> {
        PodIdentity::of_stored(pod.to_string().as_bytes())
    }

    #[test]
    fn it_has_what_policies_go_by_and_nothing_else() {
        let identity = serde_json::to_value(of(&pod()).unwrap()).unwrap();
        let expected = json!({
            "metadata": {"name": "p", "namespace": "a", "labels": {"app": "web"}},
            "nodeName": "n2", "podIPs": ["10.2.0.1", "fd00:2::1"],
            "ports": [{"name": "web", "containerPort": 8080, "protocol": "TCP"}, {"name": "dns", "containerPort": 53, "protocol": "UDP"}],
        });
        assert_eq!(identity, expected);
        assert_eq!(serde_json::from_value::<PodIdentity>(identity).unwrap(), of(&pod()).unwrap());
    }

    #[test]
    fn who_can_be_nobodys_peer_has_none() {
        let without = |path: &str, value: Value| {
            let mut pod = pod();
            *pod.pointer_mut(path).unwrap() = value;
            of(&pod).is_none()
        };
        assert!(without("/spec/nodeName", json!("")));
        assert!(without("/status/podIPs", json!([])) && without("/status/podIPs", json!([{"ip": ""}, {"ip": "none"}])));
        assert!(without("/status/phase", json!("Succeeded")) && without("/status/phase", json!("Failed")));
        assert!(!without("/status/phase", json!("Pending")), "its init containers may be peers");
        assert!(without("/metadata/annotations", json!({MIRROR: "x"})));
        let mut on_host = pod();
        on_host["spec"]["hostNetwork"] = json!(true);
        assert!(of(&on_host).is_none() && PodIdentity::of_stored(b"{").is_none());
        let many: BTreeMap<String, String> =
            (0..1000).map(|n| (format!("label-{n}"), "0123456789".to_owned())).collect();
        assert!(without("/metadata/labels", json!(many)), "more than all nodes shall keep");
    }

    /// Whoever has many would be whoever he likes.
    #[test]
    fn it_has_one_address_of_a_family() {
        let mut pod = pod();
        pod["status"]["podIPs"] = (0..500).map(|n| json!({"ip": format!("fd00:2::{n:x}")})).collect();
        assert_eq!(of(&pod).unwrap().pod_ips, ["fd00:2::".parse::<IpAddr>().unwrap()]);
    }
}
