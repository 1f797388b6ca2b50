//! One decision: filter the nodes, score those that fit, choose the best. Synchronous and, except for tie-breaking, pure.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Instant};

use super::{
    cluster::{Cluster, NodeInfo},
    filters::{Filters, PreFilter, Rejection, unnamed},
    framework::{Handle, Nomination, PostFilter},
    pod::PodInfo,
    point::Point,
    profile::Profile,
    search::{Search, Verdicts},
    timing,
};
use podwright_api::Env;

/// The result for a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Bind(Choice),
    Unschedulable {
        /// `0/3 nodes are available: 1 Insufficient cpu, ...`
        message: String,
        /// The plugins that rejected it: a change wakes it only if one of them says so.
        plugins: BTreeSet<&'static str>,
        nomination: Nomination,
        verdicts: Verdicts,
    },
}

/// The chosen node, and among how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub node: String,
    /// Its weighted total score; `None` if it is the only one that fits.
    pub score: Option<i64>,
    pub fit: usize,
    pub visited: usize,
    pub nodes: usize,
    pub verdicts: Verdicts,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { node, score, fit, visited, nodes, .. } = self;
        write!(f, "looked at {visited} of {nodes} nodes, {fit} fit, chose {node}")?;
        score.map_or(Ok(()), |score| write!(f, " with score {score}"))
    }
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

/// The nominated node is tried first.
fn nominated(pod: &PodInfo, cluster: &Cluster, profile: &Profile) -> Option<Choice> {
    let node = cluster.node(cluster.nominations.of(&pod.uid)?)?;
    let filters = profile.filters(pod, cluster).ok()?;
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

/// Filters nodes until enough fit.
fn search(pod: &PodInfo, cluster: &mut Cluster, profile: &Profile) -> Search {
    let mut search = Search::default();
    let wanted = profile.enough(cluster.len());
    let (order, start) = cluster.search_order();
    let cluster = &*cluster;
    let refused = |of: &Result<Filters<'_>, _>| if of.is_ok() { "Success" } else { "UnschedulableAndUnresolvable" };
    let filters = || profile.filters(pod, cluster);
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

/// Why a node is rejected, also counting its nominated Pods of at least the same priority. The Pod must fit with and without them,
/// as they may end up elsewhere.
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

/// Why a node is rejected in its current state.
pub fn check(pod: &PodInfo, cluster: &Cluster, profile: &Profile, slot: usize) -> Option<(&'static str, Rejection)> {
    match profile.filters(pod, cluster) {
        Ok(filters) => filters.check(cluster.at(slot)?),
        Err((plugin, why)) => Some((plugin, Rejection::always(why))),
    }
}

/// Whether a node accepts a Pod now, or may after preemption; otherwise the plugin that rejects it. Plugins are prepared and run
/// one after the other: most only look at this node, so cluster-wide counts are not computed for Pods that others reject.
pub fn may_fit(pod: &PodInfo, cluster: &mut Cluster, profile: &Profile, slot: usize) -> Result<(), &'static str> {
    let less = |other: &Arc<PodInfo>| other.priority < pod.priority && !other.is_terminating();
    let makes_room = pod.may_preempt() && cluster.at(slot).is_some_and(|node| node.load.pods().any(less));
    for (name, plugin) in profile.filter_plugins() {
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

/// The node with the highest weighted total, randomly among the best; that total, and all of them.
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

/// The weighted totals of nodes that fit.
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
