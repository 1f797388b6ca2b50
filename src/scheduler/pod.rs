//! A Pod as the scheduler sees it, with what every node is asked about it computed once.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use crate::{
    api::pod_resources::{self, Amounts},
    client::Key,
};

/// The name that Pods ask for in `spec.schedulerName`.
pub const NAME: &str = "default-scheduler";

/// A host port in use: address, protocol, port.
pub type HostPort = (String, String, i32);

/// See the module.
#[derive(Debug)]
pub struct PodInfo {
    pub pod: Arc<Pod>,
    pub key: Key,
    pub uid: String,
    pub priority: i32,
    pub requests: Amounts,
    /// As `requests`, with assumptions for containers that request nothing; for scores.
    pub assumed: Amounts,
    pub ports: Vec<HostPort>,
}

impl PodInfo {
    pub fn of(pod: Arc<Pod>) -> Arc<PodInfo> {
        Arc::new(PodInfo {
            key: Key::of(&*pod),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            priority: pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0),
            requests: pod_resources::held(&pod),
            assumed: pod_resources::assumed_requests(&pod),
            ports: host_ports(&pod).collect(),
            pod,
        })
    }

    pub fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }
}

/// The host ports of a Pod: all containers' and, as they run beside them, sidecars'.
fn host_ports(pod: &Pod) -> impl Iterator<Item = HostPort> {
    let spec = pod.spec.as_ref();
    let sidecars = spec.and_then(|s| s.init_containers.as_ref()).into_iter().flatten();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let containers = spec.map(|s| s.containers.as_slice()).unwrap_or_default().iter();
    containers.chain(sidecars).flat_map(|c| c.ports.iter().flatten()).filter_map(|port| {
        let host_port = port.host_port.filter(|p| *p > 0)?;
        let address = port.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".into());
        Some((address, port.protocol.clone().unwrap_or_else(|| "TCP".into()), host_port))
    })
}

pub(super) fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|n| !n.is_empty())
}

pub(super) fn is_finished(pod: &Pod) -> bool {
    matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"))
}

pub(super) fn is_gated(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty())
}

/// Whether this scheduler shall place it: it asks for us and is not being deleted.
pub(super) fn is_ours(pod: &Pod) -> bool {
    let name = pod.spec.as_ref().and_then(|s| s.scheduler_name.as_deref()).unwrap_or(NAME);
    name == NAME && pod.metadata.deletion_timestamp.is_none()
}
