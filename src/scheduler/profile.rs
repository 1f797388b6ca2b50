//! A profile: the plugins for the Pods of one schedulerName, with weights and arguments.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    cluster::{Cluster, NodeInfo},
    filters::{Filters, PreFilter, Reason, Refusal},
    framework::{ClusterEvent, Handle, Nomination, Plugin, PluginError, PostFilter, PreBind, QueueingHint, Row},
    plugins::{NOBODY, PLUGINS, is_registered},
    pod::{NAME, PodInfo},
    point::Point,
    search::Search,
    timing,
};
use podwright_api::Env;
use podwright_api::configuration::{FieldError, Problem};

/// A plugin in a profile.
pub struct Named {
    pub name: String,
    /// `None` or 0: 1.
    pub weight: Option<i64>,
}

/// A profile's settings for one extension point, or for all.
pub struct Set {
    /// Its path, for errors.
    pub path: String,
    pub enabled: Vec<Named>,
    /// `*`: all.
    pub disabled: BTreeSet<String>,
}

/// A profile's configuration.
#[derive(Default)]
pub struct ProfileConfig {
    pub name: String,
    /// The share of nodes to find feasible; 0: depends on the size of the cluster.
    pub percentage: usize,
    /// The arguments of plugins, each with its path for errors.
    pub args: BTreeMap<String, (String, Value)>,
    /// `multiPoint`.
    pub everywhere: Option<Set>,
    pub points: Vec<(Point, Set)>,
}

/// See the module.
pub struct Profile {
    pub name: String,
    percentage: usize,
    /// Those enabled at any point.
    plugins: Vec<(&'static str, Box<dyn Plugin>)>,
    /// Indexes into `plugins`.
    pre_enqueue: Vec<usize>,
    filters: Vec<usize>,
    post_filters: Vec<usize>,
    reserves: Vec<usize>,
    pre_binds: Vec<usize>,
    /// The same, with weights.
    scores: Vec<(usize, i64)>,
}

impl Default for Profile {
    /// Upstream's defaults.
    fn default() -> Profile {
        let plan = ProfileConfig { name: NAME.to_owned(), ..ProfileConfig::default() };
        // An empty configuration cannot be invalid.
        Profile::new(plan).expect("the table's own defaults are valid")
    }
}

impl Profile {
    /// Creates the plugins.
    ///
    /// # Errors
    ///
    /// A plugin is unknown, duplicate, lacks the extension point, or refuses its arguments; or there is none for queue sort or
    /// bind.
    pub fn new(plan: ProfileConfig) -> Result<Profile, FieldError> {
        for (name, (path, _)) in &plan.args {
            if row(name).is_none() {
                return Err(no_such_plugin(path, name));
            }
        }
        let everywhere = everywhere(plan.everywhere.as_ref())?;
        let at = |point: Point| at_point(point, &everywhere, plan.points.iter().find(|(p, _)| *p == point));
        let names = |point| at(point).map(|all| all.into_iter().map(|(row, _)| row.name).collect::<Vec<_>>());
        if names(Point::QueueSort)?.is_empty() {
            return Err(FieldError::required("plugins.queueSort", "a profile needs PrioritySort"));
        }
        if names(Point::Bind)?.is_empty() {
            return Err(FieldError::required("plugins.bind", "a profile needs DefaultBinder"));
        }
        let scores: Vec<_> = at(Point::Score)?.into_iter().map(|(row, weight)| (row.name, weight)).collect();
        let (pre_enqueue, filters, post_filters) =
            (names(Point::PreEnqueue)?, names(Point::Filter)?, names(Point::PostFilter)?);
        let (reserves, pre_binds) = (names(Point::Reserve)?, names(Point::PreBind)?);
        let used = scores.iter().map(|(name, _)| name).chain(&pre_enqueue).chain(&filters).chain(&post_filters);
        let used: BTreeSet<_> = used.chain(&reserves).chain(&pre_binds).collect();
        let mut plugins = Vec::new();
        for row in PLUGINS {
            let args = plan.args.get(row.name);
            let made = (row.make)(args.map_or(&Value::Null, |(_, args)| args));
            let path = args.map_or(row.name, |(path, _)| path);
            let made = made.map_err(|why| why.below(&format!("{path}.args.")))?;
            if used.contains(&row.name) {
                plugins.push((row.name, made));
            }
        }
        let place = |name: &str| plugins.iter().position(|(known, _)| *known == name);
        let places = |names: &[&str]| names.iter().filter_map(|name| place(name)).collect();
        Ok(Profile {
            pre_enqueue: places(&pre_enqueue),
            filters: places(&filters),
            post_filters: places(&post_filters),
            reserves: places(&reserves),
            pre_binds: places(&pre_binds),
            scores: scores.iter().filter_map(|(name, weight)| Some((place(name)?, *weight))).collect(),
            name: plan.name,
            percentage: plan.percentage,
            plugins,
        })
    }

    fn plugin(&self, place: usize) -> (&'static str, &dyn Plugin) {
        let (name, plugin) = &self.plugins[place];
        (name, &**plugin)
    }

    /// Why a Pod is not queued.
    pub fn pre_enqueue(&self, pod: &PodInfo) -> Option<(&'static str, Reason)> {
        self.pre_enqueue
            .iter()
            .map(|place| self.plugin(*place))
            .find_map(|(name, plugin)| Some((name, plugin.pre_enqueue(pod)?)))
    }

    pub fn prepare(&self, pod: &PodInfo, cluster: &mut Cluster) {
        self.plugins.iter().for_each(|(_, plugin)| plugin.prepare(pod, cluster));
    }

    /// The filter plugins, in order.
    pub fn filter_plugins(&self) -> impl Iterator<Item = (&'static str, &dyn Plugin)> {
        self.filters.iter().map(|place| self.plugin(*place))
    }

    pub fn post_filter(&self, pod: &PodInfo, cluster: &Cluster, search: &Search, env: &Env) -> Option<PostFilter> {
        let made_room = |found: &Option<PostFilter>| match found {
            Some(PostFilter { nomination: Nomination::Preempt { .. }, .. }) => "Success",
            _ => "Unschedulable",
        };
        let all = || {
            let mut all = self.post_filters.iter().map(|place| self.plugin(*place));
            all.find_map(|(name, plugin)| {
                let asked = || plugin.post_filter(pod, cluster, self, search, env);
                timing::plugin(name, Point::PostFilter, asked, made_room)
            })
        };
        timing::point(Point::PostFilter, &self.name, all, made_room)
    }

    /// Reserves what the Pod needs on a node; returns the prerequisites of its binding, if any.
    ///
    /// # Errors
    ///
    /// A plugin could not reserve what the Pod needs there.
    pub fn reserve(&self, pod: &PodInfo, node: &str, cluster: &mut Cluster) -> Result<Option<PreBind>, PluginError> {
        timing::point(Point::Reserve, &self.name, || self.reserved(pod, node, cluster), timing::or_error)
    }

    fn reserved(&self, pod: &PodInfo, node: &str, cluster: &mut Cluster) -> Result<Option<PreBind>, PluginError> {
        let mut all: Option<PreBind> = None;
        for place in &self.reserves {
            let (name, plugin) = self.plugin(*place);
            let asked = || plugin.reserve(pod, node, cluster);
            let kept = timing::plugin(name, Point::Reserve, asked, timing::or_error);
            let kept = kept.map_err(|why| PluginError { point: Point::Reserve, plugin: name, why })?;
            let Some(more) = kept.filter(|_| self.pre_binds.contains(place)) else { continue };
            match &mut all {
                None => all = Some(more),
                Some(all) => {
                    all.writes.extend(more.writes);
                    all.patience = all.patience.min(more.patience);
                }
            }
        }
        Ok(all)
    }

    /// Whether all prerequisites of a Pod's binding are ready; an error: one never will be.
    pub fn is_ready(&self, pod: &PodInfo, node: &NodeInfo, cluster: &Cluster) -> Result<bool, PluginError> {
        let mut ready = true;
        for place in &self.pre_binds {
            let (name, plugin) = self.plugin(*place);
            let found = plugin.is_ready(pod, node, cluster);
            ready &= found.map_err(|why| PluginError { point: Point::PreBind, plugin: name, why })?;
        }
        Ok(ready)
    }

    pub fn unreserve(&self, pod: &PodInfo, cluster: &mut Cluster) {
        self.reserves.iter().for_each(|place| self.plugin(*place).1.unreserve(pod, cluster));
    }

    /// The score plugins with names and weights.
    pub fn scores(&self) -> impl Iterator<Item = (&'static str, &dyn Plugin, i64)> {
        self.scores.iter().map(|(place, weight)| {
            let (name, plugin) = self.plugin(*place);
            (name, plugin, *weight)
        })
    }

    /// Whether a change may help a Pod that this plugin rejected.
    pub fn queueing_hint(&self, plugin: &str, pod: &PodInfo, change: &ClusterEvent) -> QueueingHint {
        if !is_registered(plugin, change) {
            return QueueingHint::No;
        }
        let found = self.plugins.iter().find(|(name, _)| *name == plugin);
        let nobody = if plugin == NOBODY { QueueingHint::Here } else { QueueingHint::No };
        found.map_or(nobody, |(_, plugin)| plugin.queueing_hint(pod, change))
    }

    /// How many feasible nodes are enough, given the total: upstream's sampling, all of a cluster of up to 100.
    /// <https://kubernetes.io/docs/concepts/scheduling-eviction/scheduler-perf-tuning/>
    pub fn enough(&self, nodes: usize) -> usize {
        const LEAST: usize = 100;
        if nodes <= LEAST {
            return nodes;
        }
        let percent = match self.percentage {
            0 => 50usize.saturating_sub(nodes / 125).max(5),
            percent => percent,
        };
        (nodes * percent / 100).max(LEAST)
    }
}

impl Handle for Profile {
    fn filters<'c>(&'c self, pod: &'c PodInfo, cluster: &'c Cluster) -> Result<Filters<'c>, Refusal> {
        let mut filters = Filters::default();
        for (name, plugin) in self.filter_plugins() {
            let asked = || plugin.pre_filter(pod, cluster);
            filters.add(name, timing::plugin(name, Point::PreFilter, asked, PreFilter::status))?;
        }
        Ok(filters)
    }
}

fn row(name: &str) -> Option<&'static Row> {
    PLUGINS.iter().find(|row| row.name == name)
}

fn no_such_plugin(path: &str, name: &str) -> FieldError {
    FieldError::invalid(format!("{path}.name"), format!("{name:?}: there is no such plugin"))
}

/// The row and weight of an enabled plugin. As upstream, an explicitly named plugin without a weight has 1, not its default.
fn enabled(set: &Set, n: usize) -> Result<(&'static Row, i64), FieldError> {
    let Named { name, weight } = &set.enabled[n];
    let path = format!("{}.enabled[{n}]", set.path);
    let row = row(name).ok_or_else(|| no_such_plugin(&path, name))?;
    if set.enabled[..n].iter().any(|other| other.name == *name) {
        return Err(FieldError::new(format!("{path}.name"), Problem::Duplicate(format!("{name:?}"))));
    }
    match weight {
        Some(weight) if !(0..=i64::from(i32::MAX)).contains(weight) => {
            Err(FieldError::invalid(format!("{path}.weight"), weight.to_string()))
        }
        weight => Ok((row, weight.filter(|weight| *weight > 0).unwrap_or(1))),
    }
}

/// The plugins enabled for all their extension points, in order, with weights.
fn everywhere(set: Option<&Set>) -> Result<Vec<(&'static Row, i64)>, FieldError> {
    let mut all: Vec<_> = PLUGINS.iter().map(|row| (row, row.weight)).collect();
    let Some(set) = set else { return Ok(all) };
    all.retain(|(row, _)| !set.disabled.contains("*") && !set.disabled.contains(row.name));
    for n in 0..set.enabled.len() {
        let (row, weight) = enabled(set, n)?;
        match all.iter_mut().find(|(known, _)| known.name == row.name) {
            Some(known) => known.1 = weight,
            None => all.push((row, weight)),
        }
    }
    Ok(all)
}

/// The plugins of one extension point with weights: first those that the profile reorders there, then those enabled everywhere,
/// then its others.
fn at_point(
    point: Point,
    everywhere: &[(&'static Row, i64)],
    own: Option<&(Point, Set)>,
) -> Result<Vec<(&'static Row, i64)>, FieldError> {
    let has = |row: &Row| row.points.contains(&point);
    let (mut first, mut last, mut named) = (Vec::new(), Vec::new(), BTreeSet::new());
    let disabled = |name: &str| own.is_some_and(|(_, set)| set.disabled.contains("*") || set.disabled.contains(name));
    for n in 0..own.map_or(0, |(_, set)| set.enabled.len()) {
        let Some((_, set)) = own else { continue };
        let entry @ (row, _) = enabled(set, n)?;
        if !has(row) {
            let path = format!("{}.enabled[{n}].name", set.path);
            return Err(FieldError::invalid(path, format!("{:?}: it does not have this extension point", row.name)));
        }
        named.insert(row.name);
        let known = everywhere.iter().any(|(known, _)| known.name == row.name);
        if known && !disabled(row.name) { first.push(entry) } else { last.push(entry) }
    }
    let middle = everywhere.iter().filter(|(row, _)| has(row) && !named.contains(row.name) && !disabled(row.name));
    Ok(first.into_iter().chain(middle.copied()).chain(last).collect())
}
