//! NodeAffinity: `nodeSelector`, and required and preferred node affinity.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/>

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{NodeAffinity as Affinity, NodeSelectorTerm};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::framework::{ClusterEventKind, Filter, Plugin, Point, PreFilter, Rejection, Row, args, normalize};
use crate::{
    cluster::{Cluster, NodeInfo},
    pod::PodInfo,
};
use podwright_api::{
    configuration::FieldError,
    node_selector::{self, required},
};

pub const ROW: Row = Row {
    name: "NodeAffinity",
    weight: 2,
    points: &[Point::PreFilter, Point::Filter, Point::PreScore, Point::Score],
    events_to_register: &[ClusterEventKind::NodeAdded, ClusterEventKind::NodeLabels],
    make,
};

/// The affinity required of all the profile's Pods, in addition to their own.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeAffinityArgs {
    added_affinity: Option<Affinity>,
}

fn make(value: &Value) -> Result<Box<dyn Plugin>, FieldError> {
    let args: NodeAffinityArgs = args(value)?;
    let required = args.added_affinity.as_ref().and_then(required);
    if required.is_some_and(|terms| terms.is_empty()) {
        let path = "addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        return Err(FieldError::required(path, "must have at least one node selector term"));
    }
    Ok(Box::new(args))
}

fn affinity(pod: &PodInfo) -> Option<&Affinity> {
    pod.spec()?.affinity.as_ref()?.node_affinity.as_ref()
}

/// Whether a Pod has a node selector or affinity.
pub fn is_picky(pod: &PodInfo) -> bool {
    let selector = pod.spec().and_then(|s| s.node_selector.as_ref());
    selector.is_some_and(|selector| !selector.is_empty()) || affinity(pod).and_then(required).is_some()
}

/// Whether a node matches the Pod's selector and required affinity.
pub fn is_wanted(pod: &PodInfo, node: &NodeInfo) -> bool {
    pod.spec().is_none_or(|spec| node_selector::selects(spec, &node.name, |key| node.label(key)))
}

/// Terms are alternatives; an empty list matches nothing.
fn any(terms: Option<&[NodeSelectorTerm]>, node: &NodeInfo) -> bool {
    terms.is_none_or(|terms| node_selector::any(terms, &node.name, |key| node.label(key)))
}

/// The nodes that a Pod requests by name, if all of its terms do.
fn named(pod: &PodInfo) -> Option<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for term in affinity(pod).and_then(required)? {
        let fields = term.match_fields.iter().flatten();
        let mut lists = fields.filter(|r| r.key == "metadata.name" && r.operator == "In");
        let mut names: BTreeSet<String> = lists.next()?.values.iter().flatten().cloned().collect();
        lists.for_each(|r| names.retain(|name| r.values.iter().flatten().any(|other| other == name)));
        all.extend(names);
    }
    Some(all)
}

impl NodeAffinityArgs {
    fn added(&self) -> Option<&[NodeSelectorTerm]> {
        self.added_affinity.as_ref().and_then(required)
    }
}

impl Plugin for NodeAffinityArgs {
    fn pre_filter<'c>(&'c self, pod: &'c PodInfo, _: &'c Cluster) -> PreFilter<'c> {
        if self.added().is_none() && !is_picky(pod) {
            return PreFilter::Skip;
        }
        let check: Filter<'c> = Box::new(|node| {
            if !any(self.added(), node) {
                Some(Rejection::always("node(s) didn't match scheduler-enforced node affinity"))
            } else if !is_wanted(pod, node) {
                Some(Rejection::always("node(s) didn't match Pod's node affinity/selector"))
            } else {
                None
            }
        });
        match named(pod) {
            None => PreFilter::Check(check),
            Some(names) if names.is_empty() => PreFilter::Refuse("pod affinity terms conflict".into()),
            Some(names) => PreFilter::Only(names, Some(check)),
        }
    }

    fn score(&self, pod: &PodInfo, _: &Cluster, nodes: &[&NodeInfo], points: &mut [i64]) -> bool {
        let all = [affinity(pod), self.added_affinity.as_ref()].into_iter().flatten();
        let all = all.filter_map(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()).flatten();
        let all: Vec<_> = all.filter(|preferred| preferred.weight != 0).collect();
        if all.is_empty() {
            return false;
        }
        for (node, points) in nodes.iter().zip(&mut *points) {
            let hits = all.iter().filter(|preferred| matches(&preferred.preference, node));
            *points = hits.map(|preferred| i64::from(preferred.weight)).sum();
        }
        normalize(points, false);
        true
    }
}

/// Whether all requirements of a term are met. An empty term matches nothing.
pub fn matches(term: &NodeSelectorTerm, node: &NodeInfo) -> bool {
    node_selector::matches(term, &node.name, |key| node.label(key))
}
