//! Which nodes a DaemonSet's Pods run on, and the Pod of one node.
//!
//! Upstream: `NodeShouldRunDaemonPod` and `pkg/controller/daemon/util`. The scheduler binds the Pods: a required node affinity for
//! the node's name selects the node, in place of the template's affinity, which is evaluated here.

use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Taint, Toleration},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{FAILURES, meta};
use crate::{history, replica_set, taint_eviction::tolerates};
use podwright_api::node_selector;

const NAME: &str = "metadata.name";
const GENERATION: &str = "deprecated.daemonset.template.generation";
const POD_GENERATION: &str = "pod-template-generation";

/// The default tolerations of a DaemonSet's Pods: they stay on a node with problems.
const TOLERATED: &[(&str, &str)] = &[
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// The additional one with host networking.
const TOLERATED_ON_HOST: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// Whether a node should get a Pod, and whether an existing one may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    pub run: bool,
    pub stay: bool,
}

impl Fit {
    const NO: Fit = Fit { run: false, stay: false };
}

/// The Pods' spec: the template's with the default tolerations.
pub fn spec(set: &DaemonSet) -> PodSpec {
    let mut spec = set.spec.as_ref().and_then(|spec| spec.template.spec.clone()).unwrap_or_default();
    let on_host = spec.host_network.unwrap_or(false).then_some(&TOLERATED_ON_HOST);
    let all = spec.tolerations.get_or_insert_default();
    for (key, effect) in TOLERATED.iter().chain(on_host) {
        let new = Toleration {
            key: Some((*key).to_owned()),
            operator: Some("Exists".into()),
            effect: Some((*effect).to_owned()),
            ..Toleration::default()
        };
        // One that differs only in its seconds is replaced: these Pods stay forever.
        let same = |old: &&mut Toleration| {
            (&old.key, &old.operator, &old.effect) == (&new.key, &new.operator, &new.effect)
                && old.value.as_deref().unwrap_or_default().is_empty()
        };
        match all.iter_mut().find(same) {
            Some(old) => *old = new,
            None => all.push(new),
        }
    }
    spec
}

/// Whether a node fits Pods with this spec (with the tolerations of [`spec`]).
pub fn fit(spec: &PodSpec, node: &Node) -> Fit {
    let name = meta::name(&node.metadata);
    if spec.node_name.as_deref().is_some_and(|wanted| !wanted.is_empty() && wanted != name) || !selects(spec, node) {
        return Fit::NO;
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let hurts = |taint: &Taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint));
    let mut fit = Fit { run: true, stay: true };
    for taint in taints.filter(|taint| hurts(taint)) {
        match taint.effect.as_str() {
            "NoExecute" => return Fit::NO,
            "NoSchedule" => fit.run = false,
            _ => {}
        }
    }
    fit
}

/// Whether the node selector and the required node affinity match a node.
fn selects(spec: &PodSpec, node: &Node) -> bool {
    let label = |key: &str| node.metadata.labels.as_ref()?.get(key).map(String::as_str);
    node_selector::selects(spec, meta::name(&node.metadata), label)
}

/// The node that a Pod is on or is meant for.
pub fn target(pod: &Pod) -> Option<&str> {
    if let Some(node) = meta::node_name(pod) {
        return Some(node);
    }
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let fields = terms.iter().flat_map(|term| term.match_fields.iter().flatten());
    let names = fields.filter(|field| field.key == NAME && field.operator == "In");
    names.filter_map(|field| field.values.as_deref()).find_map(|values| match values {
        [one] => Some(one.as_str()),
        _ => None,
    })
}

/// The new Pod for a node, with this revision hash and count of failures.
pub fn create(set: &DaemonSet, spec: &PodSpec, hash: &str, node: &str, failures: u32) -> Pod {
    let template = set.spec.as_ref().and_then(|spec| spec.template.metadata.clone()).unwrap_or_default();
    let mut labels = template.labels.unwrap_or_default();
    labels.insert(history::REVISION.into(), hash.to_owned());
    if let Some(generation) = meta::annotation(&set.metadata, GENERATION) {
        labels.insert(POD_GENERATION.into(), generation.to_owned());
    }
    let mut annotations = template.annotations.unwrap_or_default();
    if failures > 0 {
        annotations.insert(FAILURES.into(), failures.to_string());
    }
    let mut spec = spec.clone();
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: vec![NodeSelectorTerm {
            match_expressions: None,
            match_fields: Some(vec![NodeSelectorRequirement {
                key: NAME.into(),
                operator: "In".into(),
                values: Some(vec![node.to_owned()]),
            }]),
        }],
    });
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(replica_set::prefix(meta::name(&set.metadata))),
            namespace: set.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: (!annotations.is_empty()).then_some(annotations),
            finalizers: template.finalizers,
            owner_references: Some(vec![meta::owner_reference(set)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}
