//! The results of a search over nodes for one Pod, and their presentation.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    cluster::{Cluster, NodeInfo},
    filters::{Reason, Rejection, unnamed},
};

/// The result of each node, ordered by name: `n1: 412`, `n2: node(s) were unschedulable`. Only for small clusters.
pub type Verdicts = Vec<String>;

/// The most nodes whose results are listed.
const FEW: usize = 20;

/// The results, by slot.
#[derive(Default)]
pub struct Search {
    pub fit: Vec<usize>,
    pub rejected: Vec<(usize, &'static str, Rejection)>,
    pub visited: usize,
    /// Why no node was examined.
    pub refusal: Option<Reason>,
    /// The plugins that rejected nodes.
    pub plugins: BTreeSet<&'static str>,
    /// How many nodes were excluded by the names of these plugins.
    pub(super) left_out: Option<(usize, Vec<&'static str>)>,
}

impl Search {
    pub(super) fn reject(&mut self, slot: usize, plugin: &'static str, rejection: Rejection) {
        self.plugins.insert(plugin);
        self.rejected.push((slot, plugin, rejection));
    }

    /// `totals` are the scores of `fit`, empty without a choice.
    pub(super) fn verdicts(&self, cluster: &Cluster, fit: &[&NodeInfo], totals: &[i64]) -> Verdicts {
        if cluster.len() > FEW {
            return Vec::new();
        }
        let scored = |(n, node): (usize, &&NodeInfo)| {
            let score = totals.get(n).map_or("fits".to_owned(), i64::to_string);
            format!("{}: {score}", node.name)
        };
        let rejected = self.rejected.iter().filter_map(|(slot, _, rejection)| {
            Some(format!("{}: {}", cluster.at(*slot)?.name, rejection.why.join(", ")))
        });
        let mut all: Vec<String> = fit.iter().enumerate().map(scored).chain(rejected).collect();
        all.sort();
        all
    }

    pub(super) fn message(&self, nodes: usize) -> String {
        if nodes == 0 {
            return "no nodes available to schedule pods".into();
        }
        if let Some(why) = &self.refusal {
            return format!("0/{nodes} nodes are available: {why}.");
        }
        let mut reasons = BTreeMap::<&str, usize>::new();
        for why in self.rejected.iter().flat_map(|(.., rejection)| &rejection.why) {
            *reasons.entry(why).or_default() += 1;
        }
        let others = self.left_out.as_ref().map(|(count, by)| (*count, unnamed(by)));
        if let Some((count @ 1.., why)) = &others {
            *reasons.entry(why).or_default() += count;
        }
        available(nodes, &reasons)
    }
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 ...`
pub fn available(nodes: usize, reasons: &BTreeMap<&str, usize>) -> String {
    // Sorted as strings including the numbers, as upstream.
    let mut each: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    each.sort();
    format!("0/{nodes} nodes are available: {}.", each.join(", "))
}
