//! A Pod for the scheduler, with everything precomputed that is evaluated per node.

use std::{collections::HashSet, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::term::{Affinity, Namespaces, Who};
use podwright_api::{
    persistent_volume::{Used, all_used},
    pod_references::MIRROR,
    pod_resources::{self, Amounts},
};
use podwright_client::Key;

/// The default `spec.schedulerName`.
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
    /// Like `requests`, with assumptions for containers without requests; for scores.
    pub assumed: Amounts,
    pub ports: Vec<HostPort>,
    pub claims: Vec<Used>,
    /// The names of `claims`, for lookups by those of another Pod.
    pub claim_names: HashSet<String>,
    pub affinity: Affinity,
    /// When its node accepted it.
    pub started: Option<Timestamp>,
}

impl PodInfo {
    pub fn of(pod: Arc<Pod>) -> Arc<PodInfo> {
        let pod = impartial(pod);
        let claims = all_used(&pod);
        Arc::new(PodInfo {
            key: Key::of(&*pod),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            priority: pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0),
            requests: pod_resources::held(&pod),
            assumed: pod_resources::assumed_requests(&pod),
            ports: host_ports(&pod).collect(),
            claim_names: claims.iter().map(|used| used.name.clone()).collect(),
            claims,
            affinity: Affinity::of(&pod),
            started: pod.status.as_ref().and_then(|s| s.start_time.as_ref()).map(|time| time.0),
            pod,
        })
    }

    pub fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    pub fn is_meant_by(&self, who: &Who, namespaces: &Namespaces) -> bool {
        who.means(&self.key.namespace, self.pod.metadata.labels.as_ref(), namespaces)
    }

    /// Whether it is known to be bound.
    pub fn has_node(&self) -> bool {
        node_name(&self.pod).is_some()
    }

    pub fn is_terminating(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    /// Whether it counts the same on its node as another version of it.
    pub fn counts_as(&self, other: &PodInfo) -> bool {
        self.priority == other.priority
            && self.requests == other.requests
            && self.assumed == other.assumed
            && self.ports == other.ports
            && self.is_terminating() == other.is_terminating()
            && self.pod.metadata.labels == other.pod.metadata.labels
            && self.affinity.carried == other.affinity.carried
    }

    /// Whether it may preempt others.
    pub fn may_preempt(&self) -> bool {
        self.spec().is_none_or(|spec| spec.preemption_policy.as_deref() != Some("Never"))
    }

    /// Its scheduler: the name of a profile.
    pub fn scheduler(&self) -> &str {
        scheduler(&self.pod)
    }

    /// The nominated node in its status.
    pub fn nominated(&self) -> Option<&str> {
        self.pod.status.as_ref()?.nominated_node_name.as_deref().filter(|name| !name.is_empty())
    }
}

/// The mirror of a static Pod uses resources, but neither attracts nor repels others: its labels and affinity are removed. Any node
/// can create one that resembles any Pod in any namespace, and could so attract Pods with affinity to it, or repel all from all
/// nodes. (Upstream allows that.)
fn impartial(pod: Arc<Pod>) -> Arc<Pod> {
    if pod.metadata.annotations.as_ref().is_none_or(|all| !all.contains_key(MIRROR)) {
        return pod;
    }
    let mut plain = Arc::unwrap_or_clone(pod);
    plain.metadata.labels = None;
    if let Some(spec) = &mut plain.spec {
        spec.affinity = None;
        spec.topology_spread_constraints = None;
    }
    Arc::new(plain)
}

/// The host ports of a Pod: of all containers and sidecars, which run concurrently.
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

pub(super) fn scheduler(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.scheduler_name.as_deref()).filter(|name| !name.is_empty()).unwrap_or(NAME)
}
