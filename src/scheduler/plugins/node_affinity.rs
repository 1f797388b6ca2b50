//! NodeAffinity: `nodeSelector`, and required and preferred node affinity.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/>

use k8s_openapi::api::core::v1::{NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm};

use super::super::framework::{Normalize, Plugin, Reason, Score};
use crate::scheduler::{cluster::NodeInfo, pod::PodInfo, queue::Change};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeAffinity",
    filter: Some(filter),
    score: Some(Score { weight: 2, of: score, normalize: Normalize::Highest }),
    wakes: |change| matches!(change, Change::NodeAdded | Change::NodeLabels),
};

fn affinity(pod: &PodInfo) -> Option<&NodeAffinity> {
    pod.spec()?.affinity.as_ref()?.node_affinity.as_ref()
}

fn filter(pod: &PodInfo, node: &NodeInfo) -> Vec<Reason> {
    let mut selector = pod.spec().and_then(|s| s.node_selector.as_ref()).into_iter().flatten();
    let selected = selector.all(|(key, value)| node.label(key) == Some(value));
    let required = affinity(pod).and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    // Terms are alternatives; none at all match nothing.
    let wanted = required.is_none_or(|r| r.node_selector_terms.iter().any(|term| matches(term, node)));
    if selected && wanted { Vec::new() } else { vec!["node(s) didn't match Pod's node affinity/selector".into()] }
}

fn score(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let preferred = affinity(pod).and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
    let hits = preferred.into_iter().flatten().filter(|p| matches(&p.preference, node));
    hits.map(|p| i64::from(p.weight)).sum()
}

/// Whether all requirements of a term hold. An empty term matches nothing.
fn matches(term: &NodeSelectorTerm, node: &NodeInfo) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |key: &str| (key == "metadata.name").then_some(node.name.as_str());
    (!labels.is_empty() || !fields.is_empty())
        && labels.iter().all(|r| holds(r, node.label(&r.key)))
        && fields.iter().all(|r| holds(r, field(&r.key)))
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |v: &str| values.iter().any(|w| w == v);
    let compared = |ok: fn(&i64, &i64) -> bool| {
        let parse = |text: &str| text.parse::<i64>().ok();
        matches!((value.and_then(parse), values.first().and_then(|v| parse(v))), (Some(v), Some(bound)) if ok(&v, &bound))
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(i64::gt),
        "Lt" => compared(i64::lt),
        _ => false,
    }
}
