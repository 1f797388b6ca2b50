//! Filter results: of plugins for a Pod before nodes, then for each node; and their combination.

use std::{borrow::Cow, collections::BTreeSet};

use super::{node_info::NodeInfo, point::Point, timing};

/// Why a node is rejected, in upstream's words.
pub type Reason = Cow<'static, str>;

/// A plugin's rejection of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub why: Vec<Reason>,
    /// Whether preemption may help.
    pub resolvable: bool,
}

impl Rejection {
    /// Resolvable: other Pods are in the way.
    pub fn now(why: impl Into<Reason>) -> Rejection {
        Rejection { why: vec![why.into()], resolvable: true }
    }
    /// Unresolvable: it does not fit whichever Pods leave.
    pub fn always(why: impl Into<Reason>) -> Rejection {
        Rejection { why: vec![why.into()], resolvable: false }
    }
}

/// Rejects a node; `None`: it fits.
pub type Filter<'c> = Box<dyn Fn(&NodeInfo) -> Option<Rejection> + 'c>;

/// A plugin's result for a Pod before it sees nodes.
pub enum PreFilter<'c> {
    /// The plugin does not apply to this Pod.
    Skip,
    Check(Filter<'c>),
    /// Only nodes with these names are eligible, subject to the filter, if any.
    Only(BTreeSet<String>, Option<Filter<'c>>),
    /// No node at all.
    Refuse(Reason),
}

impl PreFilter<'_> {
    /// The name in upstream's metrics.
    pub fn status(&self) -> &'static str {
        match self {
            PreFilter::Skip => "Skip",
            PreFilter::Check(_) | PreFilter::Only(..) => "Success",
            PreFilter::Refuse(_) => "UnschedulableAndUnresolvable",
        }
    }
}

/// The plugin that rejects all nodes for a Pod, and why.
pub type Refusal = (&'static str, Reason);

/// The filters of one Pod, with precomputed state.
#[derive(Default)]
pub struct Filters<'c> {
    checks: Vec<(&'static str, Filter<'c>)>,
    /// The names of eligible nodes, and the plugins that restrict them.
    pub(super) only: Option<(BTreeSet<String>, Vec<&'static str>)>,
}

impl<'c> Filters<'c> {
    /// Adds a plugin's result, after earlier ones.
    ///
    /// # Errors
    ///
    /// It rejected the Pod.
    pub fn add(&mut self, name: &'static str, said: PreFilter<'c>) -> Result<(), Refusal> {
        match said {
            PreFilter::Skip => {}
            PreFilter::Check(check) => self.checks.push((name, check)),
            PreFilter::Refuse(why) => return Err((name, why)),
            PreFilter::Only(names, check) => {
                self.checks.extend(check.map(|check| (name, check)));
                let (known, by) = self.only.take().unwrap_or_else(|| (names.clone(), Vec::new()));
                let both = known.intersection(&names).cloned().collect();
                self.only = Some((both, by.into_iter().chain([name]).collect()));
            }
        }
        Ok(())
    }

    /// The first plugin that rejects the node, and why.
    pub fn check(&self, node: &NodeInfo) -> Option<(&'static str, Rejection)> {
        if let Some((names, by)) = &self.only
            && !names.contains(&node.name)
        {
            let name = by.first().copied().unwrap_or_default();
            return Some((name, Rejection::always(unnamed(by))));
        }
        self.checks.iter().find_map(|(name, check)| Some((*name, check(node)?)))
    }

    /// The same, timing each plugin.
    pub(super) fn check_timed(&self, node: &NodeInfo) -> Option<(&'static str, Rejection)> {
        if self.only.as_ref().is_some_and(|(names, _)| !names.contains(&node.name)) {
            return self.check(node);
        }
        let said = |found: &Option<Rejection>| match found {
            None => "Success",
            Some(rejection) if rejection.resolvable => "Unschedulable",
            Some(_) => "UnschedulableAndUnresolvable",
        };
        let mut all = self.checks.iter();
        all.find_map(|(name, check)| Some((*name, timing::plugin(name, Point::Filter, || check(node), said)?)))
    }
}

/// The reason for nodes that these plugins excluded by name.
pub(super) fn unnamed(by: &[&str]) -> String {
    format!("node(s) didn't satisfy plugin(s) [{}]", by.join(" "))
}
