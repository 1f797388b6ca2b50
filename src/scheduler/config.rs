//! `KubeSchedulerConfiguration`, upstream's configuration file, strictly decoded: errors name the field.
//! <https://kubernetes.io/docs/reference/config-api/kube-scheduler-config.v1/>

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

mod process;

use super::{
    pod::NAME,
    point::Point,
    profile::{Named, Profile, ProfileConfig},
    strict,
};
use podwright_api::configuration::{self, ConfigError, FieldError, Problem};
use process::{ClientConnection, LeaderElection};

/// In seconds: a year.
const LONGEST_BACKOFF: i64 = 365 * 24 * 3600;
const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";

/// The configuration of the scheduler.
pub struct Config {
    /// At least one, with distinct names.
    pub profiles: Vec<Profile>,
    pub initial_backoff: Duration,
    pub max_backoff: Duration,
    /// The file's fields that have no effect here.
    pub ignored: Vec<&'static str>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            profiles: vec![Profile::default()],
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(10),
            ignored: Vec::new(),
        }
    }
}

impl Config {
    /// The profile of a `schedulerName`; `None`: another scheduler is responsible.
    pub fn profile(&self, name: &str) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.name == name)
    }
}

/// Fields for a separate process are validated, but have no effect here: [`process`].
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct KubeSchedulerConfiguration {
    api_version: String,
    kind: String,
    parallelism: Option<i32>,
    leader_election: Option<LeaderElection>,
    client_connection: Option<ClientConnection>,
    enable_profiling: Option<bool>,
    enable_contention_profiling: Option<bool>,
    delay_cache_until_active: Option<bool>,
    percentage_of_nodes_to_score: Option<i64>,
    pod_initial_backoff_seconds: Option<i64>,
    pod_max_backoff_seconds: Option<i64>,
    profiles: Option<Vec<SchedulerProfile>>,
    extenders: Option<Vec<Value>>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SchedulerProfile {
    scheduler_name: Option<String>,
    percentage_of_nodes_to_score: Option<i64>,
    plugins: Option<Plugins>,
    plugin_config: Option<Vec<PluginConfig>>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PluginConfig {
    name: String,
    args: Value,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Plugins {
    multi_point: Option<PluginSet>,
    pre_enqueue: Option<PluginSet>,
    queue_sort: Option<PluginSet>,
    pre_filter: Option<PluginSet>,
    filter: Option<PluginSet>,
    post_filter: Option<PluginSet>,
    pre_score: Option<PluginSet>,
    score: Option<PluginSet>,
    reserve: Option<PluginSet>,
    permit: Option<PluginSet>,
    pre_bind: Option<PluginSet>,
    bind: Option<PluginSet>,
    post_bind: Option<PluginSet>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct PluginSet {
    enabled: Option<Vec<Entry>>,
    disabled: Option<Vec<Entry>>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Entry {
    name: String,
    weight: Option<i64>,
}

/// Parses a file.
///
/// # Errors
///
/// It is not YAML, not a single document, or has a field that is unknown, of the wrong type, or out of range.
pub fn parse(text: &str) -> Result<Config, ConfigError> {
    Ok(read(&configuration::document(text, KIND)?)?)
}

fn read(document: &Value) -> Result<Config, FieldError> {
    if document["kind"] != KIND {
        return Err(FieldError::must_be("kind", KIND));
    }
    if document["apiVersion"] != API_VERSION {
        return Err(FieldError::must_be("apiVersion", API_VERSION));
    }
    let file: KubeSchedulerConfiguration = strict::decode(document)?;
    process::check(&file)?;
    let ignored = process::ignored(&file);
    if file.extenders.is_some_and(|extenders| !extenders.is_empty()) {
        return Err(FieldError::new("extenders", Problem::Other("not supported".into())));
    }
    let seconds = |field: &str, value: Option<i64>, default: i64, least: i64| {
        let value = value.unwrap_or(default);
        let fits = u64::try_from(value).ok().filter(|_| (least..=LONGEST_BACKOFF).contains(&value));
        let why = || format!("{value}: must be at least {least} and at most {LONGEST_BACKOFF}");
        fits.map(Duration::from_secs).ok_or_else(|| FieldError::new(field, Problem::Other(why())))
    };
    let initial_backoff = seconds("podInitialBackoffSeconds", file.pod_initial_backoff_seconds, 1, 1)?;
    let least = file.pod_initial_backoff_seconds.unwrap_or(1);
    let max_backoff = seconds("podMaxBackoffSeconds", file.pod_max_backoff_seconds, 10.max(least), least)?;
    let overall = percentage("percentageOfNodesToScore", file.percentage_of_nodes_to_score)?;
    let given = file.profiles.filter(|profiles| !profiles.is_empty()).unwrap_or_else(|| vec![Default::default()]);
    let single = given.len() == 1;
    let (mut profiles, mut names) = (Vec::new(), BTreeSet::new());
    for (n, given) in given.into_iter().enumerate() {
        let at = |why: FieldError| why.below(&format!("profiles[{n}]."));
        let wrong = |problem| at(FieldError::new("schedulerName", problem));
        let name = given.scheduler_name.clone().filter(|name| !name.is_empty());
        let name = name.or_else(|| single.then(|| NAME.to_owned()));
        let name = name.ok_or_else(|| wrong(Problem::Missing))?;
        if !names.insert(name.clone()) {
            return Err(wrong(Problem::Duplicate(format!("{name:?}"))));
        }
        profiles.push(profile(name, given, overall).map_err(at)?);
    }
    Ok(Config { profiles, initial_backoff, max_backoff, ignored })
}

fn percentage(field: &str, value: Option<i64>) -> Result<Option<usize>, FieldError> {
    let within = |value: i64| usize::try_from(value).ok().filter(|value| *value <= 100);
    let wrong = |v| FieldError::new(field, Problem::Other(format!("{v}: must be in the range [0, 100]")));
    value.map(|v| within(v).ok_or_else(|| wrong(v))).transpose()
}

fn profile(name: String, given: SchedulerProfile, overall: Option<usize>) -> Result<Profile, FieldError> {
    let percentage = percentage("percentageOfNodesToScore", given.percentage_of_nodes_to_score)?;
    let mut args = Vec::new();
    for (n, config) in given.plugin_config.into_iter().flatten().enumerate() {
        if args.iter().any(|(name, _)| *name == config.name) {
            let twice = Problem::Duplicate(format!("{:?}", config.name));
            return Err(FieldError::new(format!("pluginConfig[{n}].name"), twice));
        }
        let path = format!("pluginConfig[{n}]");
        let own = own_fields(&config).map_err(|why| why.below(&format!("{path}.")))?;
        args.push((config.name, (path, own)));
    }
    let plan = ProfileConfig {
        name,
        percentage: percentage.or(overall).unwrap_or(0),
        args: args.into_iter().collect(),
        everywhere: None,
        points: Vec::new(),
    };
    Profile::new(with_plugins(plan, given.plugins.unwrap_or_default())?)
}

/// The arguments without `apiVersion` and `kind`.
fn own_fields(config: &PluginConfig) -> Result<Value, FieldError> {
    let mut args = config.args.clone();
    let Some(fields) = args.as_object_mut() else {
        return if args.is_null() { Ok(args) } else { Err(FieldError::must_be("args", "an object")) };
    };
    let expected = [("apiVersion", API_VERSION.to_owned()), ("kind", format!("{}Args", config.name))];
    for (field, expected) in expected {
        if fields.remove(field).is_some_and(|value| value != expected.as_str()) {
            return Err(FieldError::must_be(format!("args.{field}"), expected));
        }
    }
    Ok(args)
}

fn with_plugins(mut plan: ProfileConfig, plugins: Plugins) -> Result<ProfileConfig, FieldError> {
    let names = |path: &str, set: PluginSet| {
        let entry = |entry: Entry| Named { name: entry.name, weight: entry.weight };
        let enabled = set.enabled.into_iter().flatten().map(entry).collect();
        let disabled = set.disabled.into_iter().flatten().map(|entry| entry.name).collect();
        super::profile::Set { path: format!("plugins.{path}"), enabled, disabled }
    };
    plan.everywhere = plugins.multi_point.map(|set| names("multiPoint", set));
    let known = [
        ("preEnqueue", Point::PreEnqueue, plugins.pre_enqueue),
        ("queueSort", Point::QueueSort, plugins.queue_sort),
        ("preFilter", Point::PreFilter, plugins.pre_filter),
        ("filter", Point::Filter, plugins.filter),
        ("postFilter", Point::PostFilter, plugins.post_filter),
        ("preScore", Point::PreScore, plugins.pre_score),
        ("score", Point::Score, plugins.score),
        ("reserve", Point::Reserve, plugins.reserve),
        ("preBind", Point::PreBind, plugins.pre_bind),
        ("bind", Point::Bind, plugins.bind),
    ];
    for (path, point, set) in known {
        plan.points.extend(set.map(|set| (point, names(path, set))));
    }
    for (path, set) in [("permit", plugins.permit), ("postBind", plugins.post_bind)] {
        if set.and_then(|set| set.enabled).is_some_and(|enabled| !enabled.is_empty()) {
            let why = Problem::Other("no plugin has this extension point".into());
            return Err(FieldError::new(format!("plugins.{path}.enabled[0].name"), why));
        }
    }
    Ok(plan)
}
