//! What is said against nodes: by each plugin of a Pod before it sees nodes, then of each node; and all of that together.

use std::{borrow::Cow, collections::BTreeSet};

use super::{node_info::NodeInfo, point::Point, timing};

/// Why a node is out of the question, in upstream's words.
pub type Reason = Cow<'static, str>;

/// What a plugin says against a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub why: Vec<Reason>,
    /// Whether the node may fit once other Pods have left it.
    pub resolvable: bool,
}

impl Rejection {
    /// Other Pods are in the way.
    pub fn now(why: impl Into<Reason>) -> Rejection {
        Rejection { why: vec![why.into()], resolvable: true }
    }
    /// Whatever Pods leave, it does not fit.
    pub fn always(why: impl Into<Reason>) -> Rejection {
        Rejection { why: vec![why.into()], resolvable: false }
    }
}

/// Says what is against a node; none: it fits.
pub type Filter<'c> = Box<dyn Fn(&NodeInfo) -> Option<Rejection> + 'c>;

/// What a plugin says of a Pod before it sees nodes.
pub enum PreFilter<'c> {
    /// It has nothing to say of this Pod.
    Skip,
    Check(Filter<'c>),
    /// Only the nodes of these names come into question, and of those it has nothing more to say than the filter, if any.
    Only(BTreeSet<String>, Option<Filter<'c>>),
    /// No node at all.
    Refuse(Reason),
}

impl PreFilter<'_> {
    /// In upstream's words.
    pub fn status(&self) -> &'static str {
        match self {
            PreFilter::Skip => "Skip",
            PreFilter::Check(_) | PreFilter::Only(..) => "Success",
            PreFilter::Refuse(_) => "UnschedulableAndUnresolvable",
        }
    }
}

/// The plugin that wants no node at all for a Pod, and why.
pub type Refusal = (&'static str, Reason);

/// The filters of one Pod, with what they computed for it.
#[derive(Default)]
pub struct Filters<'c> {
    checks: Vec<(&'static str, Filter<'c>)>,
    /// The names of those that come into question, and who says so.
    pub(super) only: Option<(BTreeSet<String>, Vec<&'static str>)>,
}

impl<'c> Filters<'c> {
    /// Adds what the plugin of this name has said, behind those before it.
    ///
    /// # Errors
    /// It has refused the Pod.
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

    /// The first plugin that turns the node away, and why.
    pub fn check(&self, node: &NodeInfo) -> Option<(&'static str, Rejection)> {
        if let Some((names, by)) = &self.only
            && !names.contains(&node.name)
        {
            let name = by.first().copied().unwrap_or_default();
            return Some((name, Rejection::always(unnamed(by))));
        }
        self.checks.iter().find_map(|(name, check)| Some((*name, check(node)?)))
    }

    /// The same, with a look at how long each plugin takes.
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

/// Why a node is out that these plugins have not named.
pub(super) fn unnamed(by: &[&str]) -> String {
    format!("node(s) didn't satisfy plugin(s) [{}]", by.join(" "))
}
