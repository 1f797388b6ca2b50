//! One decision: filter the nodes, score those that fit, take the best. Synchronous and pure but for the tie-break.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Instant,
};

use super::{
    cluster::{Cluster, NodeInfo},
    framework::{Filter, Nomination, Point, PostFilter, PreFilter, Reason, Rejection},
    pod::PodInfo,
    profile::Profile,
    timing,
};
use podwright_api::Env;

/// What becomes of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Bind(Choice),
    Unschedulable {
        /// `0/3 nodes are available: 1 Insufficient cpu, ...`
        message: String,
        /// Who turned it away: a change wakes it only if one of them says so.
        plugins: BTreeSet<&'static str>,
        nomination: Nomination,
        verdicts: Verdicts,
    },
}

/// What each node came to, in order of their names: `n1: 412`, `n2: node(s) were unschedulable`. Only of a cluster small enough
/// to read that.
pub type Verdicts = Vec<String>;

/// The node that was chosen, and from how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub node: String,
    /// The sum of its weighted scores; none when it is the only one that fits.
    pub score: Option<i64>,
    pub fit: usize,
    pub visited: usize,
    pub nodes: usize,
    pub verdicts: Verdicts,
}

/// Of so many nodes at most each one's verdict is told.
const FEW: usize = 20;

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { node, score, fit, visited, nodes, .. } = self;
        write!(f, "looked at {visited} of {nodes} nodes, {fit} fit, chose {node}")?;
        score.map_or(Ok(()), |score| write!(f, " with score {score}"))
    }
}

/// What was found out about the nodes. They are given by slot.
#[derive(Default)]
pub struct Search {
    pub fit: Vec<usize>,
    pub rejected: Vec<(usize, &'static str, Rejection)>,
    pub visited: usize,
    /// Why no node was looked at.
    pub refusal: Option<Reason>,
    /// Who turned nodes away.
    pub plugins: BTreeSet<&'static str>,
    /// How many nodes were left out as these plugins named others.
    left_out: Option<(usize, Vec<&'static str>)>,
}

/// The filters of one Pod, with what they computed for it.
pub struct Filters<'c> {
    checks: Vec<(&'static str, Filter<'c>)>,
    /// The names of those that come into question, and who says so.
    only: Option<(BTreeSet<String>, Vec<&'static str>)>,
}

impl<'c> Filters<'c> {
    /// An error is the refusal of a plugin.
    pub fn of(
        pod: &'c PodInfo,
        cluster: &'c Cluster,
        profile: &'c Profile,
    ) -> Result<Filters<'c>, (&'static str, Reason)> {
        let mut filters = Filters { checks: Vec::new(), only: None };
        for (name, plugin) in profile.filters() {
            let asked = || plugin.pre_filter(pod, cluster);
            match timing::plugin(name, Point::PreFilter, asked, told) {
                PreFilter::Skip => {}
                PreFilter::Check(check) => filters.checks.push((name, check)),
                PreFilter::Refuse(why) => return Err((name, why)),
                PreFilter::Only(names, check) => {
                    filters.checks.extend(check.map(|check| (name, check)));
                    let (known, by) = filters.only.take().unwrap_or_else(|| (names.clone(), Vec::new()));
                    let both = known.intersection(&names).cloned().collect();
                    filters.only = Some((both, by.into_iter().chain([name]).collect()));
                }
            }
        }
        Ok(filters)
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
    fn check_timed(&self, node: &NodeInfo) -> Option<(&'static str, Rejection)> {
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

/// What a plugin has said of a Pod, in upstream's words.
fn told(said: &PreFilter<'_>) -> &'static str {
    match said {
        PreFilter::Skip => "Skip",
        PreFilter::Check(_) | PreFilter::Only(..) => "Success",
        PreFilter::Refuse(_) => "UnschedulableAndUnresolvable",
    }
}

fn unnamed(by: &[&str]) -> String {
    format!("node(s) didn't satisfy plugin(s) [{}]", by.join(" "))
}

/// Chooses a node for a Pod.
pub fn decide(pod: &PodInfo, cluster: &mut Cluster, profile: &Profile, env: &Env) -> Decision {
    timing::decision(|| decided(pod, cluster, profile, env))
}

fn decided(pod: &PodInfo, cluster: &mut Cluster, profile: &Profile, env: &Env) -> Decision {
    profile.prepare(pod, cluster);
    if let Some(choice) = nominated(pod, cluster, profile) {
        return Decision::Bind(choice);
    }
    let search = search(pod, cluster, profile);
    cluster.advance(search.visited);
    let nodes: Vec<&NodeInfo> = search.fit.iter().filter_map(|slot| cluster.at(*slot)).collect();
    if let Some((node, score, totals)) = best(pod, cluster, profile, &nodes, env) {
        let verdicts = search.verdicts(cluster, &nodes, &totals);
        let (fit, visited) = (search.fit.len(), search.visited);
        return Decision::Bind(Choice { node: node.name.clone(), score, fit, visited, nodes: cluster.len(), verdicts });
    }
    let mut message = search.message(cluster.len());
    let mut nomination = Nomination::Keep;
    if !cluster.is_empty()
        && let Some(post) = profile.post_filter(pod, cluster, &search, env)
    {
        let PostFilter { nomination: found, message: more } = post;
        nomination = found;
        if !more.is_empty() {
            message = format!("{message} {more}");
        }
    }
    let verdicts = search.verdicts(cluster, &[], &[]);
    Decision::Unschedulable { message, plugins: search.plugins, nomination, verdicts }
}

/// The node on which room was made for the Pod comes first.
fn nominated(pod: &PodInfo, cluster: &Cluster, profile: &Profile) -> Option<Choice> {
    let node = cluster.node(cluster.nominations.of(&pod.uid)?)?;
    let filters = Filters::of(pod, cluster, profile).ok()?;
    let fits = filters.check(node).is_none() && rivals(pod, cluster, &filters, node).is_none();
    fits.then(|| Choice {
        node: node.name.clone(),
        score: None,
        fit: 1,
        visited: 1,
        nodes: cluster.len(),
        verdicts: Vec::new(),
    })
}

/// Looks at nodes until enough fit.
fn search(pod: &PodInfo, cluster: &mut Cluster, profile: &Profile) -> Search {
    let mut search = Search::default();
    let wanted = profile.enough(cluster.len());
    let (order, start) = cluster.search_order();
    let cluster = &*cluster;
    let refused = |of: &Result<Filters<'_>, _>| if of.is_ok() { "Success" } else { "UnschedulableAndUnresolvable" };
    let filters = || Filters::of(pod, cluster, profile);
    let filters = match timing::point(Point::PreFilter, &profile.name, filters, refused) {
        Ok(filters) => filters,
        Err((plugin, why)) => {
            search.refusal = Some(why);
            search.plugins.insert(plugin);
            return search;
        }
    };
    let narrowed: Option<Vec<usize>> = filters.only.as_ref().map(|(names, by)| {
        let slots: Vec<usize> = names.iter().filter_map(|name| cluster.node(name)).map(|node| node.slot).collect();
        search.plugins.extend(by);
        search.left_out = Some((cluster.len() - slots.len(), by.clone()));
        slots
    });
    let (order, start) = narrowed.as_deref().map_or((&*order, start), |slots| (slots, 0));
    let began = Instant::now();
    while search.visited < order.len() && search.fit.len() < wanted {
        let slot = order[(start + search.visited) % order.len()];
        search.visited += 1;
        let Some(node) = cluster.at(slot) else { continue };
        let found = if search.visited <= timing::NODES { filters.check_timed(node) } else { filters.check(node) };
        match found.or_else(|| rivals(pod, cluster, &filters, node)) {
            None => search.fit.push(slot),
            Some((plugin, rejection)) => search.reject(slot, plugin, rejection),
        }
    }
    timing::took(Point::Filter, &profile.name, "Success", began.elapsed());
    search
}

/// What is against a node once those for which room is being made there count, too, if they are as important. It has to
/// fit with and without them: they may end up elsewhere.
fn rivals(
    pod: &PodInfo,
    cluster: &Cluster,
    filters: &Filters<'_>,
    node: &NodeInfo,
) -> Option<(&'static str, Rejection)> {
    let mut others = cluster.nominations.rivals(pod, &node.name).peekable();
    others.peek()?;
    let mut supposed = node.clone();
    others.for_each(|other| supposed.suppose(other));
    filters.check(&supposed)
}

/// What is against a node as things are.
pub fn check(pod: &PodInfo, cluster: &Cluster, profile: &Profile, slot: usize) -> Option<(&'static str, Rejection)> {
    match Filters::of(pod, cluster, profile) {
        Ok(filters) => filters.check(cluster.at(slot)?),
        Err((plugin, why)) => Some((plugin, Rejection::always(why))),
    }
}

/// Whether a node takes a Pod as things are, or may once the Pod has made room on it; if not, who turns it away. One plugin
/// is set up and asked after the other: what most of them say needs a look at this node alone, and of Pods that others turn
/// away nothing is counted all over the cluster.
pub fn may_fit(pod: &PodInfo, cluster: &mut Cluster, profile: &Profile, slot: usize) -> Result<(), &'static str> {
    let less = |other: &Arc<PodInfo>| other.priority < pod.priority && !other.is_terminating();
    let makes_room = pod.may_preempt() && cluster.at(slot).is_some_and(|node| node.load.pods().any(less));
    for (name, plugin) in profile.filters() {
        plugin.prepare(pod, cluster);
        let Some(node) = cluster.at(slot) else { return Err(name) };
        let rejection = match plugin.pre_filter(pod, cluster) {
            PreFilter::Skip => None,
            PreFilter::Check(check) => check(node),
            PreFilter::Refuse(why) => Some(Rejection::always(why)),
            PreFilter::Only(names, _) if !names.contains(&node.name) => Some(Rejection::always(unnamed(&[name]))),
            PreFilter::Only(_, check) => check.and_then(|check| check(node)),
        };
        if rejection.is_some_and(|rejection| !(rejection.resolvable && makes_room)) {
            return Err(name);
        }
    }
    Ok(())
}

impl Search {
    fn reject(&mut self, slot: usize, plugin: &'static str, rejection: Rejection) {
        self.plugins.insert(plugin);
        self.rejected.push((slot, plugin, rejection));
    }

    /// `totals` are the scores of `fit`, none where there was nothing to choose.
    fn verdicts(&self, cluster: &Cluster, fit: &[&NodeInfo], totals: &[i64]) -> Verdicts {
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

    fn message(&self, nodes: usize) -> String {
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
    // Sorted as texts, numbers included: upstream's order.
    let mut each: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    each.sort();
    format!("0/{nodes} nodes are available: {}.", each.join(", "))
}

/// The node with the highest sum of weighted scores, one of the best by lot; that sum, and those of all.
fn best<'a>(
    pod: &PodInfo,
    cluster: &Cluster,
    profile: &Profile,
    nodes: &[&'a NodeInfo],
    env: &Env,
) -> Option<(&'a NodeInfo, Option<i64>, Vec<i64>)> {
    if let [only] = nodes {
        return Some((only, None, Vec::new()));
    }
    let scores = || scores(pod, cluster, profile, nodes);
    let totals = timing::point(Point::Score, &profile.name, scores, timing::success);
    let top = *totals.iter().max()?;
    let mut best = nodes.iter().zip(&totals).filter(|(_, total)| **total == top).map(|(node, _)| *node);
    let lot = env.below(best.clone().count() as u64) as usize;
    let node = best.nth(lot)?;
    Some((node, Some(top), totals))
}

/// The weighted scores of nodes that fit.
pub fn scores(pod: &PodInfo, cluster: &Cluster, profile: &Profile, nodes: &[&NodeInfo]) -> Vec<i64> {
    let mut totals = vec![0i64; nodes.len()];
    let mut points = vec![0i64; nodes.len()];
    for (name, plugin, weight) in profile.scores() {
        points.fill(0);
        let asked = || plugin.score(pod, cluster, nodes, &mut points);
        if timing::plugin(name, Point::Score, asked, timing::success) {
            totals.iter_mut().zip(&points).for_each(|(total, points)| *total += points * weight);
        }
    }
    totals
}
