//! InterPodAffinity: Pods that must be, or must not be, near other Pods, or prefer that.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#inter-pod-affinity-and-anti-affinity>

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::framework::{
    ClusterEvent, ClusterEventKind, MAX_SCORE, Plugin, Point, PreFilter, QueueingHint, Rejection, Row, args,
};
use crate::{
    cluster::{Cluster, NodeInfo},
    index::{Class, Topology},
    pod::PodInfo,
    term::{AffinityKind, Namespaces, Term, Who},
};
use podwright_api::configuration::FieldError;

pub const ROW: Row = Row {
    name: "InterPodAffinity",
    weight: 2,
    points: &[Point::PreFilter, Point::Filter, Point::PreScore, Point::Score],
    events_to_register: &[
        ClusterEventKind::NodeAdded,
        ClusterEventKind::NodeLabels,
        ClusterEventKind::Namespace,
        ClusterEventKind::PodAdded,
        ClusterEventKind::PodRemoved,
        ClusterEventKind::PodChanged,
    ],
    make,
};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InterPodAffinityArgs {
    /// The score that an existing Pod's required affinity gives to Pods that match it.
    hard_pod_affinity_weight: i64,
    ignore_preferred_terms_of_existing_pods: bool,
}

impl Default for InterPodAffinityArgs {
    fn default() -> Self {
        InterPodAffinityArgs { hard_pod_affinity_weight: 1, ignore_preferred_terms_of_existing_pods: false }
    }
}

fn make(value: &Value) -> Result<Box<dyn Plugin>, FieldError> {
    let args: InterPodAffinityArgs = args(value)?;
    match args.hard_pod_affinity_weight {
        0..=100 => Ok(Box::new(args)),
        weight => Err(FieldError::invalid("hardPodAffinityWeight", format!("{weight}: not in valid range [0, 100]"))),
    }
}

/// So many terms, and lookups of each, say whether a change may help a Pod that waits.
const HINTED: usize = 64;

/// The Pods that match all terms.
fn class<'a>(terms: impl IntoIterator<Item = &'a Term>) -> Class {
    let mut all: Vec<Who> = terms.into_iter().map(|term| term.who.clone()).collect();
    all.dedup();
    Class { all, terminating: true }
}

const NO_AFFINITY: &str = "node(s) didn't match pod affinity rules";

/// Whether a term is about a label that nodes have: else it neither attracts nor repels, and nothing is counted for it.
fn concerns(cluster: &Cluster, term: &Term) -> bool {
    cluster.index().has_label(&term.key)
}

/// How many Pods of a class there are for each value of a node label.
struct Nearby<'c> {
    namespaces: &'c Namespaces,
    class: Arc<Class>,
    topology: Cow<'c, Topology>,
    counts: Vec<i64>,
    total: i64,
}

impl<'c> Nearby<'c> {
    /// `pods`: how many of the class there are, by slot.
    fn of(cluster: &'c Cluster, class: Arc<Class>, pods: &[u32], key: &str) -> Nearby<'c> {
        let topology = cluster.topology(key);
        let counts = topology.sums(pods);
        Nearby { namespaces: &cluster.namespaces, class, topology, total: counts.iter().sum(), counts }
    }

    /// `None`: the node lacks the label.
    fn at(&self, node: &NodeInfo) -> Option<i64> {
        self.topology.of(node.slot).map(|id| self.counts[id] + self.supposed(node))
    }

    /// Whether no node with the label has any.
    fn is_nowhere(&self, node: &NodeInfo) -> bool {
        self.total + self.topology.of(node.slot).map_or(0, |_| self.supposed(node)) == 0
    }

    fn supposed(&self, node: &NodeInfo) -> i64 {
        node.supposed.sum(|other| self.class.matches(other, self.namespaces).into())
    }
}

/// How many terms of hypothetical Pods on a node repel a Pod.
fn supposed_repelled(pod: &PodInfo, cluster: &Cluster, node: &NodeInfo) -> i64 {
    node.supposed.sum(|other| {
        let unwelcome =
            |term: &&Term| node.label(&term.key).is_some() && pod.is_meant_by(&term.who, &cluster.namespaces);
        other.affinity.anti.iter().filter(unwelcome).count() as i64
    })
}

/// Numbers by values of node labels.
#[derive(Default)]
struct Marks<'c>(BTreeMap<&'c str, (Cow<'c, Topology>, Vec<i64>)>);

impl<'c> Marks<'c> {
    fn at_key(&mut self, cluster: &'c Cluster, key: &'c str) -> &mut (Cow<'c, Topology>, Vec<i64>) {
        self.0.entry(key).or_insert_with(|| {
            let topology = cluster.topology(key);
            let none = vec![0; topology.len()];
            (topology, none)
        })
    }

    /// Adds `weight` for each Pod, given by slot.
    fn add<'s>(
        &mut self,
        cluster: &'c Cluster,
        key: &'c str,
        slots: impl IntoIterator<Item = (&'s usize, &'s u32)>,
        weight: i64,
    ) {
        if !cluster.index().has_label(key) {
            return;
        }
        let (topology, marks) = self.at_key(cluster, key);
        for (slot, count) in slots {
            if let Some(id) = topology.of(*slot) {
                marks[id] += weight * i64::from(*count);
            }
        }
    }

    fn sum(&self, node: &NodeInfo) -> i64 {
        self.0.values().filter_map(|(topology, marks)| topology.of(node.slot).map(|id| marks[id])).sum()
    }
}

impl Plugin for InterPodAffinityArgs {
    fn prepare(&self, pod: &PodInfo, cluster: &mut Cluster) {
        let affinity = &pod.affinity;
        cluster.prepare_carried(pod);
        if affinity.carried.is_empty() {
            return;
        }
        for carried in &affinity.carried {
            cluster.prepare_topology(&carried.term.key);
        }
        if !affinity.required.is_empty() && affinity.required.iter().all(|term| concerns(cluster, term)) {
            cluster.prepare_class(&class(&affinity.required));
        }
        for term in affinity.anti.iter().chain(affinity.preferred.iter().map(|(_, term)| term)) {
            if concerns(cluster, term) {
                cluster.prepare_class(&class([term]));
            }
        }
    }

    fn pre_filter<'c>(&'c self, pod: &'c PodInfo, cluster: &'c Cluster) -> PreFilter<'c> {
        let affinity = &pod.affinity;
        if !affinity.required.iter().all(|term| concerns(cluster, term)) {
            return PreFilter::Check(Box::new(|_| Some(Rejection::always(NO_AFFINITY))));
        }
        let mut repelled = Marks::default();
        for (carried, slots) in cluster.index().repelled().meaning(pod, &cluster.namespaces) {
            repelled.add(cluster, &carried.term.key, slots, 1);
        }
        // Nominated Pods may repel the Pod, too.
        let nobody_minds = repelled.0.is_empty() && cluster.nominations.is_empty();
        if nobody_minds && affinity.required.is_empty() && affinity.anti.is_empty() {
            return PreFilter::Skip;
        }
        let far = |term: &Term| {
            let class = Arc::new(class([term]));
            Nearby::of(cluster, class.clone(), &cluster.class(&class), &term.key)
        };
        let anti: Vec<Nearby<'c>> = affinity.anti.iter().filter(|term| concerns(cluster, term)).map(far).collect();
        // A single class, as a matching Pod must match all terms; each label once.
        let wanted = Arc::new(class(&affinity.required));
        let keys: BTreeSet<&str> = affinity.required.iter().map(|term| term.key.as_str()).collect();
        let pods = if keys.is_empty() { Cow::default() } else { cluster.class(&wanted) };
        let required: Vec<Nearby<'c>> =
            keys.into_iter().map(|key| Nearby::of(cluster, wanted.clone(), &pods, key)).collect();
        // The first of a group of Pods with affinity to each other must be placed somewhere.
        let may_be_first = affinity.required.iter().all(|term| pod.is_meant_by(&term.who, &cluster.namespaces));
        PreFilter::Check(Box::new(move |node| {
            if !required.is_empty() {
                let labelled = required.iter().all(|near| near.at(node).is_some());
                let first = || may_be_first && required.iter().all(|near| near.is_nowhere(node));
                let near = || required.iter().all(|near| near.at(node).is_some_and(|count| count > 0));
                if !labelled || !(near() || first()) {
                    return Some(Rejection::always(NO_AFFINITY));
                }
            }
            if anti.iter().any(|far| far.at(node).is_some_and(|count| count > 0)) {
                return Some(Rejection::now("node(s) didn't match pod anti-affinity rules"));
            }
            let unwelcome = repelled.sum(node) + supposed_repelled(pod, cluster, node) > 0;
            unwelcome.then(|| Rejection::now("node(s) didn't satisfy existing pods anti-affinity rules"))
        }))
    }

    fn score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[&NodeInfo], points: &mut [i64]) -> bool {
        let mut marks = Marks::default();
        for (weight, term) in pod.affinity.preferred.iter().filter(|(_, term)| concerns(cluster, term)) {
            let counts = cluster.class(&class([term]));
            let near = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            let near: Vec<(usize, u32)> = near.map(|(slot, count)| (slot, *count)).collect();
            marks.add(cluster, &term.key, near.iter().map(|(slot, count)| (slot, count)), *weight);
        }
        if !self.ignore_preferred_terms_of_existing_pods || !pod.affinity.preferred.is_empty() {
            for (carried, slots) in cluster.index().inclined().meaning(pod, &cluster.namespaces) {
                let weight = match carried.affinity {
                    AffinityKind::Prefers(weight) => weight,
                    AffinityKind::Required => self.hard_pod_affinity_weight,
                    AffinityKind::Anti => 0,
                };
                if weight != 0 {
                    marks.add(cluster, &carried.term.key, slots, weight);
                }
            }
        }
        if marks.0.values().all(|(_, marks)| marks.iter().all(|mark| *mark == 0)) {
            return false;
        }
        for (node, points) in nodes.iter().zip(&mut *points) {
            *points = marks.sum(node);
        }
        spread_out(points);
        true
    }

    fn queueing_hint(&self, pod: &PodInfo, change: &ClusterEvent) -> QueueingHint {
        let affinity = &pod.affinity;
        // Namespaces selected by label may be any. A change is compared with all who wait: what takes long to judge is taken for so.
        let meant = |term: &Term, other: &PodInfo| {
            let named = term.who.namespaces.contains(&other.key.namespace) || term.who.namespace_selector.is_some();
            named && term.who.selector.as_ref().is_some_and(|s| s.may_match(HINTED, |key| other.label(key)))
        };
        let any = |terms: &[Term], other: &PodInfo| terms.len() > HINTED || terms.iter().any(|term| meant(term, other));
        let wanted = |other: &PodInfo| any(&affinity.required, other);
        let feared = |other: &PodInfo| any(&affinity.anti, other);
        let repels = |other: &PodInfo| any(&other.affinity.anti, pod);
        QueueingHint::anywhere(match change {
            ClusterEvent::PodAdded(other) => wanted(other),
            ClusterEvent::PodRemoved(other) => wanted(other) || feared(other) || repels(other),
            ClusterEvent::PodChanged(old, new) => wanted(new) || wanted(old) || feared(old) || repels(old),
            _ => true,
        })
    }
}

/// The lowest becomes 0, the highest 100.
fn spread_out(points: &mut [i64]) {
    let (lowest, highest) = (points.iter().copied().min().unwrap_or(0), points.iter().copied().max().unwrap_or(0));
    for points in points {
        *points = match highest - lowest {
            0 => 0,
            range => (MAX_SCORE as f64 * (*points - lowest) as f64 / range as f64) as i64,
        };
    }
}
