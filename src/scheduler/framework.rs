//! One decision: filter the nodes, score those that fit, take the best. Synchronous and pure but for the tie-break.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{
    cluster::{Cluster, NodeInfo},
    plugins::PLUGINS,
    pod::PodInfo,
    queue::Change,
};
use crate::api::Env;

/// Why a node is out of the question, in upstream's words.
pub type Reason = Cow<'static, str>;

/// A scheduling rule: one row of `plugins::PLUGINS`, one file.
pub struct Plugin {
    /// Upstream's name.
    pub name: &'static str,
    /// Why a node is out of the question; empty: it fits.
    pub filter: Option<fn(&PodInfo, &NodeInfo) -> Vec<Reason>>,
    pub score: Option<Score>,
    /// Whether a change may help a Pod that this plugin turned away.
    pub wakes: fn(&Change) -> bool,
}

/// How a plugin ranks the nodes that fit.
pub struct Score {
    pub weight: i64,
    pub of: fn(&PodInfo, &NodeInfo) -> i64,
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

/// What becomes of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Bind(Choice),
    Unschedulable {
        /// `0/3 nodes are available: 1 Insufficient cpu, ...`
        message: String,
        /// Who turned it away: a change wakes it only if one of them says so.
        plugins: BTreeSet<&'static str>,
    },
}

/// The node that was chosen, and from how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub node: String,
    /// The sum of its weighted scores; none when it is the only one that fits.
    pub score: Option<i64>,
    pub fit: usize,
    pub visited: usize,
    pub nodes: usize,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { node, score, fit, visited, nodes } = self;
        write!(f, "looked at {visited} of {nodes} nodes, {fit} fit, chose {node}")?;
        score.map_or(Ok(()), |score| write!(f, " with score {score}"))
    }
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
pub fn decide(pod: &PodInfo, cluster: &mut Cluster, env: &Env) -> Decision {
    let (mut fit, mut reasons, mut plugins) = (Vec::new(), BTreeMap::<Reason, usize>::new(), BTreeSet::new());
    let wanted = enough(cluster.len());
    let mut visited = 0;
    for node in cluster.in_turn() {
        visited += 1;
        match filter(pod, node) {
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
    let decision = match best(pod, &fit, env) {
        Some((node, score)) => {
            Decision::Bind(Choice { node: node.name.clone(), score, fit: fit.len(), visited, nodes: cluster.len() })
        }
        None => Decision::Unschedulable { message: message(cluster.len(), &reasons), plugins },
    };
    cluster.advance(visited);
    decision
}

/// Whether a node takes a Pod as things are.
pub fn fits(pod: &PodInfo, node: &NodeInfo) -> bool {
    filter(pod, node).is_none()
}

/// The first plugin that turns the node away, and why.
fn filter(pod: &PodInfo, node: &NodeInfo) -> Option<(&'static str, Vec<Reason>)> {
    PLUGINS.iter().find_map(|plugin| {
        let why = plugin.filter?(pod, node);
        (!why.is_empty()).then_some((plugin.name, why))
    })
}

fn message(nodes: usize, reasons: &BTreeMap<Reason, usize>) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".into();
    }
    // Sorted as texts, numbers included: upstream's order.
    let mut each: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    each.sort();
    format!("0/{nodes} nodes are available: {}.", each.join(", "))
}

/// The node with the highest sum of weighted scores; one of the best by lot.
fn best<'a>(pod: &PodInfo, nodes: &[&'a NodeInfo], env: &Env) -> Option<(&'a NodeInfo, Option<i64>)> {
    if let [only] = nodes {
        return Some((only, None));
    }
    let totals = scores(pod, nodes);
    let top = *totals.iter().max()?;
    let mut best = nodes.iter().zip(&totals).filter(|(_, total)| **total == top).map(|(node, _)| *node);
    let lot = env.below(best.clone().count() as u64) as usize;
    Some((best.nth(lot)?, Some(top)))
}

/// The weighted scores of nodes that fit.
pub fn scores(pod: &PodInfo, nodes: &[&NodeInfo]) -> Vec<i64> {
    let mut totals = vec![0i64; nodes.len()];
    let mut raw = Vec::with_capacity(nodes.len());
    for score in PLUGINS.iter().filter_map(|p| p.score.as_ref()) {
        raw.clear();
        raw.extend(nodes.iter().map(|node| (score.of)(pod, node)));
        normalize(&mut raw, score.normalize);
        totals.iter_mut().zip(&raw).for_each(|(total, points)| *total += points * score.weight);
    }
    totals
}

fn normalize(raw: &mut [i64], how: Normalize) {
    if how == Normalize::Not {
        return;
    }
    let highest = raw.iter().copied().max().unwrap_or(0);
    for points in raw.iter_mut() {
        *points = match (how, highest) {
            (Normalize::Reversed, 0) => MAX_SCORE,
            (_, 0) => 0,
            (Normalize::Reversed, _) => MAX_SCORE - *points * MAX_SCORE / highest,
            _ => *points * MAX_SCORE / highest,
        };
    }
}
