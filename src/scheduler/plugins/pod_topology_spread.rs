//! PodTopologySpread: spreads Pods evenly over zones, nodes, or other topology domains.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/>

use std::borrow::Cow;

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    super::framework::{
        ClusterEvent, ClusterEventKind, MAX_SCORE, Plugin, Point, PreFilter, QueueingHint, Rejection, Row, args,
    },
    node_affinity,
    taint_toleration::is_barred,
};
use crate::{
    cluster::{Cluster, NodeInfo},
    index::{Class, Topology},
    pod::PodInfo,
    term::{self, Who},
};
use podwright_api::{
    configuration::{FieldError, Problem},
    selector::{LabelSelector, Requirement},
    validation::names,
};

pub const ROW: Row = Row {
    name: "PodTopologySpread",
    weight: 2,
    points: &[Point::PreFilter, Point::Filter, Point::PreScore, Point::Score],
    events_to_register: &[
        ClusterEventKind::NodeAdded,
        ClusterEventKind::NodeRemoved,
        ClusterEventKind::NodeLabels,
        ClusterEventKind::NodeTaints,
        ClusterEventKind::PodAdded,
        ClusterEventKind::PodRemoved,
        ClusterEventKind::PodChanged,
    ],
    make,
};

const HOSTNAME: &str = "kubernetes.io/hostname";
const MISSING: &str = "node(s) didn't match pod topology spread constraints (missing required label)";
const SKEWED: &str = "node(s) didn't match pod topology spread constraints";

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodTopologySpreadArgs {
    default_constraints: Option<Vec<TopologySpreadConstraint>>,
    defaulting_type: Option<String>,
}

/// The constraints of Pods without their own.
struct PodTopologySpread {
    defaults: Vec<TopologySpreadConstraint>,
    /// They are upstream's defaults, so nodes without their labels count, too.
    by_system: bool,
}

fn make(value: &Value) -> Result<Box<dyn Plugin>, FieldError> {
    let args: PodTopologySpreadArgs = args(value)?;
    let own = args.default_constraints.unwrap_or_default();
    let by_system = match args.defaulting_type.as_deref() {
        None | Some("" | "System") => true,
        Some("List") => false,
        Some(other) => {
            let why = Problem::Unsupported(format!("{other:?}: supported values: \"System\", \"List\""));
            return Err(FieldError::new("defaultingType", why));
        }
    };
    if by_system && !own.is_empty() {
        return Err(FieldError::invalid("defaultConstraints", "when .defaultingType is System, they must be empty"));
    }
    for (n, constraint) in own.iter().enumerate() {
        let at = |field: &str, problem| Err(FieldError::new(format!("defaultConstraints[{n}]{field}"), problem));
        if constraint.max_skew <= 0 {
            return at(".maxSkew", Problem::Invalid("must be greater than zero".into()));
        }
        if constraint.topology_key.is_empty() {
            return at(".topologyKey", Problem::Required("can not be empty"));
        }
        if !["DoNotSchedule", "ScheduleAnyway"].contains(&constraint.when_unsatisfiable.as_str()) {
            let known = "supported values: \"DoNotSchedule\", \"ScheduleAnyway\"";
            return at(".whenUnsatisfiable", Problem::Unsupported(known.into()));
        }
        let (key, action) = (&constraint.topology_key, &constraint.when_unsatisfiable);
        if let Some(why) = names::qualified_name(key).into_iter().next() {
            return at(".topologyKey", Problem::Invalid(format!("{key:?}: {why}")));
        }
        if own[..n].iter().any(|other| other.topology_key == *key && other.when_unsatisfiable == *action) {
            return at("", Problem::Duplicate(format!("\"{{{key}, {action}}}\"")));
        }
        if constraint.label_selector.is_some() {
            let why = "constraint must not define a selector, as they deduced for each pod";
            return at(".labelSelector", Problem::Forbidden(why));
        }
    }
    let system = [(HOSTNAME, 3), ("topology.kubernetes.io/zone", 5)].map(|(key, max_skew)| TopologySpreadConstraint {
        max_skew,
        topology_key: key.to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        ..TopologySpreadConstraint::default()
    });
    Ok(Box::new(PodTopologySpread { defaults: if by_system { system.into() } else { own }, by_system }))
}

/// A constraint of one Pod.
struct Constraint {
    key: String,
    max_skew: i64,
    min_domains: usize,
    class: Class,
    /// Whether the Pod matches the selector itself.
    counts_itself: bool,
    /// Whether only nodes that match the Pod's affinity and selector count.
    wanted_nodes: bool,
    /// Whether only nodes whose taints it tolerates count.
    tolerated_nodes: bool,
}

impl Constraint {
    fn new(given: &TopologySpreadConstraint, selector: Option<LabelSelector>, pod: &PodInfo) -> Constraint {
        let counts_itself = selector.as_ref().is_some_and(|s| s.matches(|key| pod.label(key)));
        // As upstream, an empty selector counts nothing.
        let counted = selector.filter(|selector| !selector.is_empty());
        let policy = |policy: &Option<String>, default: bool| match policy.as_deref() {
            Some("Honor") => true,
            Some("Ignore") => false,
            _ => default,
        };
        Constraint {
            key: given.topology_key.clone(),
            max_skew: i64::from(given.max_skew),
            min_domains: given.min_domains.and_then(|n| usize::try_from(n).ok()).unwrap_or(1),
            class: Class { all: vec![Who::within(&pod.key.namespace, counted)], terminating: false },
            counts_itself,
            wanted_nodes: policy(&given.node_affinity_policy, true) && node_affinity::is_picky(pod),
            tolerated_nodes: policy(&given.node_taints_policy, false),
        }
    }

    fn looks_at(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        (!self.wanted_nodes || node_affinity::is_wanted(pod, node)) && (!self.tolerated_nodes || !is_barred(pod, node))
    }

    fn is_choosy(&self) -> bool {
        self.wanted_nodes || self.tolerated_nodes
    }
}

/// The constraints of a Pod, and the number of Pods for each value of their labels.
struct Spread<'c> {
    constraints: Vec<Constraint>,
    topologies: Vec<Cow<'c, Topology>>,
    /// Counts by slot.
    classes: Vec<Cow<'c, [u32]>>,
    /// Counts by value, for each constraint. `None`: no eligible node has the value.
    counts: Vec<Vec<Option<i64>>>,
    /// Whether eligible nodes must have the labels of all constraints.
    all_labels: bool,
}

impl<'c> Spread<'c> {
    fn of(pod: &PodInfo, cluster: &'c Cluster, constraints: Vec<Constraint>, all_labels: bool) -> Spread<'c> {
        let topologies: Vec<Cow<'c, Topology>> = constraints.iter().map(|c| cluster.topology(&c.key)).collect();
        let classes: Vec<Cow<'c, [u32]>> = constraints.iter().map(|c| cluster.class(&c.class)).collect();
        let mut counts: Vec<Vec<Option<i64>>> = topologies.iter().map(|t| vec![None; t.len()]).collect();
        let choosy = constraints.iter().any(Constraint::is_choosy);
        for slot in 0..cluster.slots() {
            if all_labels && topologies.iter().any(|topology| topology.of(slot).is_none()) {
                continue;
            }
            let node = if choosy { cluster.at(slot) } else { None };
            for (n, constraint) in constraints.iter().enumerate() {
                let Some(id) = topologies[n].of(slot) else { continue };
                if node.is_some_and(|node| !constraint.looks_at(pod, node)) {
                    continue;
                }
                let here = classes[n].get(slot).copied().unwrap_or(0);
                *counts[n][id].get_or_insert(0) += i64::from(here);
            }
        }
        Spread { constraints, topologies, classes, counts, all_labels }
    }

    /// By how many a hypothetical node's matching Pods differ from the cluster's counts.
    fn supposed(&self, n: usize, pod: &PodInfo, cluster: &Cluster, node: &NodeInfo) -> i64 {
        let constraint = &self.constraints[n];
        if node.supposed.is_empty() || !self.has_all_labels(node) || !constraint.looks_at(pod, node) {
            return 0;
        }
        node.supposed.sum(|other| constraint.class.matches(other, &cluster.namespaces).into())
    }

    fn has_all_labels(&self, node: &NodeInfo) -> bool {
        self.topologies.iter().all(|topology| topology.of(node.slot).is_some())
    }
}

impl PodTopologySpread {
    /// The constraints of one kind: the Pod's own, or else the profile's defaults for Pods that belong together.
    fn constraints(&self, pod: &PodInfo, cluster: &Cluster, kind: &str) -> Vec<Constraint> {
        let own = pod.spec().and_then(|spec| spec.topology_spread_constraints.as_deref()).unwrap_or_default();
        if !own.is_empty() {
            let all = own.iter().filter(|given| given.when_unsatisfiable == kind);
            return all.map(|given| Constraint::new(given, selector(given, pod), pod)).collect();
        }
        let mut defaults = self.defaults.iter().filter(|given| given.when_unsatisfiable == kind).peekable();
        if defaults.peek().is_none() {
            return Vec::new();
        }
        let Some(selector) = cluster.workloads.selector_of(pod) else { return Vec::new() };
        defaults.map(|given| Constraint::new(given, Some(selector.clone()), pod)).collect()
    }

    /// Whether nodes without the labels are excluded from scoring.
    fn needs_all_labels(&self, pod: &PodInfo) -> bool {
        let own = pod.spec().and_then(|spec| spec.topology_spread_constraints.as_ref());
        own.is_some_and(|own| !own.is_empty()) || !self.by_system
    }
}

/// The selector of a constraint.
fn selector(given: &TopologySpreadConstraint, pod: &PodInfo) -> Option<LabelSelector> {
    let mut selector = given.label_selector.as_ref().and_then(LabelSelector::of)?;
    term::narrow(&mut selector, &pod.pod, given.match_label_keys.as_deref(), Requirement::In);
    Some(selector)
}

impl Plugin for PodTopologySpread {
    fn prepare(&self, pod: &PodInfo, cluster: &mut Cluster) {
        for kind in ["DoNotSchedule", "ScheduleAnyway"] {
            for constraint in self.constraints(pod, cluster, kind) {
                cluster.prepare_topology(&constraint.key);
                cluster.prepare_class(&constraint.class);
            }
        }
    }

    fn pre_filter<'c>(&'c self, pod: &'c PodInfo, cluster: &'c Cluster) -> PreFilter<'c> {
        let constraints = self.constraints(pod, cluster, "DoNotSchedule");
        if constraints.is_empty() {
            return PreFilter::Skip;
        }
        let spread = Spread::of(pod, cluster, constraints, true);
        let fewest = |(constraint, counts): (&Constraint, &Vec<_>)| Fewest::of(counts, constraint.min_domains);
        let fewest: Vec<Fewest> = spread.constraints.iter().zip(&spread.counts).map(fewest).collect();
        PreFilter::Check(Box::new(move |node| {
            for (n, constraint) in spread.constraints.iter().enumerate() {
                let Some(id) = spread.topologies[n].of(node.slot) else { return Some(Rejection::always(MISSING)) };
                let here = spread.counts[n][id].map(|count| count + spread.supposed(n, pod, cluster, node));
                let there = here.unwrap_or(0) + i64::from(constraint.counts_itself);
                if there - fewest[n].with(id, here) > constraint.max_skew {
                    return Some(Rejection::now(SKEWED));
                }
            }
            None
        }))
    }

    /// Fewer Pods in the node's domains are better; labels with many values weigh more.
    fn score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[&NodeInfo], points: &mut [i64]) -> bool {
        let constraints = self.constraints(pod, cluster, "ScheduleAnyway");
        if constraints.is_empty() {
            return false;
        }
        let spread = Spread::of(pod, cluster, constraints, self.needs_all_labels(pod));
        let counts_for = |node: &NodeInfo| !spread.all_labels || spread.has_all_labels(node);
        let weights: Vec<f64> = (0..spread.constraints.len()).map(|n| weight(&spread, n, nodes, counts_for)).collect();
        let score = |node: &NodeInfo| {
            let mut sum = 0.0;
            for (n, constraint) in spread.constraints.iter().enumerate() {
                let Some(id) = spread.topologies[n].of(node.slot) else { continue };
                let there = if constraint.key == HOSTNAME {
                    i64::from(spread.classes[n].get(node.slot).copied().unwrap_or(0))
                } else {
                    spread.counts[n][id].unwrap_or(0)
                };
                sum += there as f64 * weights[n] + (constraint.max_skew - 1) as f64;
            }
            sum.round() as i64
        };
        let raw: Vec<Option<i64>> = nodes.iter().map(|node| counts_for(node).then(|| score(node))).collect();
        let (lowest, highest) = (raw.iter().flatten().min().copied(), raw.iter().flatten().max().copied());
        let (lowest, highest) = (lowest.unwrap_or(0), highest.unwrap_or(0));
        for (raw, points) in raw.into_iter().zip(points) {
            *points = match raw {
                None => 0,
                Some(_) if highest == 0 => MAX_SCORE,
                Some(raw) => MAX_SCORE * (highest + lowest - raw) / highest,
            };
        }
        true
    }

    fn queueing_hint(&self, pod: &PodInfo, change: &ClusterEvent) -> QueueingHint {
        let own = pod.spec().and_then(|spec| spec.topology_spread_constraints.as_deref()).unwrap_or_default();
        let counted = |other: &PodInfo| {
            let selects = |given: &TopologySpreadConstraint| {
                selector(given, pod).is_some_and(|selector| selector.matches(|key| other.label(key)))
            };
            // Default constraints count Pods of the same Services and controllers: any in the namespace may be one.
            other.key.namespace == pod.key.namespace && (own.is_empty() || own.iter().any(selects))
        };
        QueueingHint::anywhere(match change {
            ClusterEvent::PodAdded(other) | ClusterEvent::PodRemoved(other) => counted(other),
            ClusterEvent::PodChanged(old, new) => counted(old) || counted(new),
            _ => true,
        })
    }
}

/// The minimum of Pods over the values of a label.
struct Fewest {
    count: i64,
    /// Where that is; `None`: there are too few values, so it is always zero.
    at: Option<usize>,
    /// The minimum over all other values.
    elsewhere: i64,
}

impl Fewest {
    fn of(counts: &[Option<i64>], min_domains: usize) -> Fewest {
        let domains = || counts.iter().enumerate().filter_map(|(id, count)| Some((count.as_ref()?, id)));
        let lowest = domains().min().filter(|_| domains().count() >= min_domains);
        let Some((count, at)) = lowest else { return Fewest { count: 0, at: None, elsewhere: 0 } };
        let elsewhere = domains().filter(|(_, id)| *id != at).map(|(count, _)| *count).min().unwrap_or(i64::MAX);
        Fewest { count: *count, at: Some(at), elsewhere }
    }

    /// The same with this many at one value; `None`: the value does not count.
    fn with(&self, id: usize, here: Option<i64>) -> i64 {
        match (self.at, here) {
            (Some(at), Some(here)) => here.min(if at == id { self.elsewhere } else { self.count }),
            _ => self.count,
        }
    }
}

/// The logarithm of the number of distinct values among feasible nodes, so that a label with thousands does not dominate.
fn weight(spread: &Spread<'_>, n: usize, nodes: &[&NodeInfo], counts_for: impl Fn(&NodeInfo) -> bool) -> f64 {
    let nodes = nodes.iter().filter(|node| counts_for(node));
    let size = if spread.constraints[n].key == HOSTNAME {
        nodes.count()
    } else {
        let mut seen = vec![false; spread.topologies[n].len()];
        nodes.filter_map(|node| spread.topologies[n].of(node.slot)).for_each(|id| seen[id] = true);
        seen.iter().filter(|seen| **seen).count()
    };
    ((size + 2) as f64).ln()
}
