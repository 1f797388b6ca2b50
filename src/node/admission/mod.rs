//! Node admission: rejects Pods that the scheduler assigned but the node cannot run: too few resources, a host port in use, labels
//! that do not match, unsupported protections, reserved user ids, too many containers or mounts. Pure.

pub mod containers;
pub mod ids;
pub mod mounts;
pub mod protections;
pub mod sysctls;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;

use super::{
    pod::intent::Failure,
    qos,
    spec::{MIRROR, PodExt},
};
use podwright_api::node_selector;
use protections::Protections;

/// The node's allocatable resources.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocatable {
    pub cpu_millis: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes.
    pub storage: i64,
    pub pods: usize,
    /// So many descriptors the agent may have open.
    pub descriptors: usize,
}

type Labels = BTreeMap<String, String>;

/// Checks whether `pod` may run beside `others`.
///
/// # Errors
///
/// The reason for the rejection, with upstream's reason words.
pub fn admit(
    pod: &Pod,
    others: &[Arc<Pod>],
    node: &Allocatable,
    labels: &Labels,
    protections: &Protections,
) -> Result<(), Failure> {
    let refuse = |reason: &str, message: String| {
        Err(Failure { reason: reason.to_owned(), message: format!("Pod was rejected: {message}") })
    };
    if pod.is_false_mirror() {
        let why = format!("its annotation {MIRROR} says that it shows a static Pod, but its Node does not own it");
        return refuse("InvalidMirrorPod", why);
    }
    let os = pod.spec().os.as_ref().map(|o| o.name.as_str()).unwrap_or("linux");
    if os != "linux" {
        let why = format!("Failed to admit pod as the OS field doesn't match node OS: {os}");
        return refuse("PodOSNotSupported", why);
    }
    let borne = || containers::check(pod).and_then(|()| mounts::admit(pod, others, node.descriptors));
    if let Err(Failure { reason, message }) = protections.admit(pod).and_then(|()| borne()) {
        return refuse(&reason, message);
    }
    if !pod.is_static() && !selected(pod, labels) {
        return refuse("NodeAffinity", "Predicate NodeAffinity failed".to_owned() + NODE_AFFINITY);
    }
    if let Some(port) = taken_port(pod, others) {
        let why =
            format!("Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports ({port})");
        return refuse("NodePorts", why);
    }
    match room(pod, others, node) {
        Err((resource, why)) => refuse(&format!("OutOf{resource}"), why),
        Ok(()) => Ok(()),
    }
}

/// Checks whether there is room for `pod` beside `others`.
///
/// # Errors
///
/// The resource that is short, and upstream's words for it.
pub fn room(pod: &Pod, others: &[Arc<Pod>], node: &Allocatable) -> Result<(), (&'static str, String)> {
    if others.len() + 1 > node.pods {
        let (used, most) = (others.len(), node.pods);
        let why = format!("Node didn't have enough resource: pods, requested: 1, used: {used}, capacity: {most}");
        return Err(("pods", why));
    }
    let resources =
        [("cpu", node.cpu_millis), ("memory", thousand(node.memory)), ("ephemeral-storage", thousand(node.storage))];
    for (resource, capacity) in resources {
        let wanted = qos::pod_request(pod, resource);
        // Manifests may request anything: sums saturate instead of overflowing.
        let used = others.iter().map(|p| qos::pod_request(p, resource)).fold(0, i64::saturating_add);
        if wanted > 0 && wanted.saturating_add(used) > capacity {
            let shown = |millis: i64| if resource == "cpu" { millis } else { millis / 1000 };
            let (wanted, used, capacity) = (shown(wanted), shown(used), shown(capacity));
            let numbers = format!("requested: {wanted}, used: {used}, capacity: {capacity}");
            let why = format!("Node didn't have enough resource: {resource}, {numbers}");
            return Err((resource, why));
        }
    }
    Ok(())
}

fn thousand(amount: i64) -> i64 {
    amount.saturating_mul(1000)
}

const NODE_AFFINITY: &str = ": node(s) didn't match Pod's node affinity/selector";

/// A host port that another Pod already holds.
fn taken_port(pod: &Pod, others: &[Arc<Pod>]) -> Option<i32> {
    let wanted = host_ports(pod);
    // The addresses on which each port is held. The number of ports is unbounded, here and in the other Pods.
    let mut held: HashMap<(String, i32), HashSet<String>> = HashMap::new();
    for (ip, protocol, port) in others.iter().flat_map(|p| host_ports(p)) {
        held.entry((protocol, port)).or_default().insert(ip);
    }
    const ANY: [&str; 3] = ["", "0.0.0.0", "::"];
    let clash = |(ip, protocol, port): &(String, String, i32)| {
        let at = held.get(&(protocol.clone(), *port));
        at.is_some_and(|at| ANY.contains(&&**ip) || at.contains(ip) || ANY.iter().any(|any| at.contains(*any)))
    };
    wanted.into_iter().find(clash).map(|(_, _, port)| port)
}

/// `(hostIP, protocol, port)` of all host ports.
fn host_ports(pod: &Pod) -> Vec<(String, String, i32)> {
    let host = pod.host_network();
    let parts = pod.parts();
    let ports = parts.iter().flat_map(|p| p.container.ports.iter().flatten());
    ports
        .filter_map(|p| {
            let port = p.host_port.filter(|port| *port != 0).or(host.then_some(p.container_port))?;
            let protocol = p.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            Some((p.host_ip.clone().unwrap_or_default(), protocol, port))
        })
        .collect()
}

/// Whether nodeSelector and required node affinity match these labels.
fn selected(pod: &Pod, labels: &Labels) -> bool {
    // A Pod belongs to this agent because it names this node.
    let name = pod.spec().node_name.as_deref().unwrap_or_default();
    node_selector::selects(pod.spec(), name, |key| labels.get(key).map(String::as_str))
}
