//! One decision: filter the nodes, score those that fit, take the best. Synchronous and pure but for the tie-break.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;

use super::{
    cluster::{Cluster, NodeInfo, host_ports},
    plugins::PLUGINS,
    queue::Change,
};
use crate::api::{
    Env,
    pod_resources::{self, Amounts},
};

/// A scheduling rule: one row of `plugins::PLUGINS`, one file.
pub struct Plugin {
    /// Upstream's name.
    pub name: &'static str,
    /// Why a node is out of the question; empty: it fits. The texts are upstream's.
    pub filter: Option<fn(&Subject<'_>, &NodeInfo) -> Vec<String>>,
    pub score: Option<Score>,
    /// Whether a change may help a Pod that this plugin turned away.
    pub wakes: fn(&Change) -> bool,
}

/// How a plugin ranks the nodes that fit.
pub struct Score {
    pub weight: i64,
    pub of: fn(&Subject<'_>, &NodeInfo) -> i64,
    /// What makes 0..=100 of the raw numbers.
    pub normalize: Normalize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Normalize {
    /// They are 0..=100 already.
    Not,
    /// The highest becomes 100.
    Highest,
    /// The highest becomes 0: the fewer the better.
    Reversed,
}

pub const MAX_SCORE: i64 = 100;

/// The Pod to place, with what every node is asked about it computed once.
pub struct Subject<'a> {
    pub pod: &'a Pod,
    pub requests: Amounts,
    pub assumed: Amounts,
    pub ports: Vec<super::cluster::HostPort>,
}

impl<'a> Subject<'a> {
    pub fn of(pod: &'a Pod) -> Subject<'a> {
        Subject {
            pod,
            requests: pod_resources::requests(pod),
            assumed: pod_resources::assumed_requests(pod),
            ports: host_ports(pod).collect(),
        }
    }
}

/// What becomes of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Bind(String),
    Unschedulable {
        /// `0/3 nodes are available: 1 Insufficient cpu, ...`
        message: String,
        /// Who turned it away: a change wakes it only if one of them says so.
        plugins: BTreeSet<&'static str>,
    },
}

/// How many nodes that fit are enough, of so many: upstream's sampling, all of a cluster of up to 100.
/// <https://kubernetes.io/docs/concepts/scheduling-eviction/scheduler-perf-tuning/>
fn enough(nodes: usize) -> usize {
    const LEAST: usize = 100;
    if nodes <= LEAST {
        return nodes;
    }
    let percent = 50usize.saturating_sub(nodes / 125).max(5);
    (nodes * percent / 100).max(LEAST)
}

/// Chooses a node for a Pod.
pub fn decide(pod: &Pod, cluster: &mut Cluster, env: &Env) -> Decision {
    let subject = Subject::of(pod);
    let (mut fit, mut reasons, mut plugins) = (Vec::new(), BTreeMap::<String, usize>::new(), BTreeSet::new());
    let wanted = enough(cluster.len());
    let mut visited = 0;
    for node in cluster.in_turn() {
        visited += 1;
        match filter(&subject, node) {
            None => fit.push(node),
            Some((plugin, why)) => {
                plugins.insert(plugin);
                why.into_iter().for_each(|reason| *reasons.entry(reason).or_default() += 1);
            }
        }
        if fit.len() >= wanted {
            break;
        }
    }
    let decision = match best(&subject, &fit, env) {
        Some(node) => Decision::Bind(node.to_owned()),
        None => Decision::Unschedulable { message: message(cluster.len(), &reasons), plugins },
    };
    cluster.advance(visited);
    decision
}

/// The first plugin that turns the node away, and why.
fn filter(subject: &Subject<'_>, node: &NodeInfo) -> Option<(&'static str, Vec<String>)> {
    PLUGINS.iter().find_map(|plugin| {
        let why = plugin.filter?(subject, node);
        (!why.is_empty()).then_some((plugin.name, why))
    })
}

fn message(nodes: usize, reasons: &BTreeMap<String, usize>) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".into();
    }
    let mut each: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    each.sort();
    format!("0/{nodes} nodes are available: {}.", each.join(", "))
}

/// The node with the highest sum of weighted scores; one of the best by lot.
fn best<'a>(subject: &Subject<'_>, nodes: &[&'a NodeInfo], env: &Env) -> Option<&'a str> {
    if let [only] = nodes {
        return Some(only.name());
    }
    let mut totals = vec![0i64; nodes.len()];
    for score in PLUGINS.iter().filter_map(|p| p.score.as_ref()) {
        let mut raw: Vec<i64> = nodes.iter().map(|node| (score.of)(subject, node)).collect();
        normalize(&mut raw, score.normalize);
        totals.iter_mut().zip(raw).for_each(|(total, points)| *total += points * score.weight);
    }
    let top = *totals.iter().max()?;
    let best: Vec<&NodeInfo> = nodes.iter().zip(&totals).filter(|(_, t)| **t == top).map(|(n, _)| *n).collect();
    Some(best[env.below(best.len() as u64) as usize].name())
}

fn normalize(raw: &mut [i64], how: Normalize) {
    let highest = raw.iter().copied().max().unwrap_or(0);
    for points in raw.iter_mut() {
        *points = match (how, highest) {
            (Normalize::Not, _) => *points,
            (Normalize::Highest, 0) => 0,
            (Normalize::Reversed, 0) => MAX_SCORE,
            (Normalize::Highest, _) => *points * MAX_SCORE / highest,
            (Normalize::Reversed, _) => MAX_SCORE - *points * MAX_SCORE / highest,
        };
    }
}
