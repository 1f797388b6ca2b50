//! `KubeSchedulerConfiguration`: what is set up by it, and how it is told what is wrong.

use std::{collections::BTreeMap, time::Duration};

use podwright::api::{Env, configuration::ConfigError};
use podwright::scheduler::{
    config::parse,
    decide::{Decision, decide},
};
use serde_json::json;

use super::{cluster, node, pod};

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

#[test]
fn a_file_as_upstream_documents_them() {
    let config = parse(&format!(
        "{HEAD}
parallelism: 16
leaderElection: {{leaderElect: false}}
clientConnection: {{kubeconfig: /etc/kubernetes/scheduler.conf, qps: 50, burst: 100}}
percentageOfNodesToScore: 50
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 20
profiles:
- schedulerName: default-scheduler
- schedulerName: packing
  percentageOfNodesToScore: 100
  plugins:
    multiPoint:
      enabled:
      - {{name: TaintToleration, weight: 7}}
      disabled:
      - {{name: PodTopologySpread}}
    score:
      disabled:
      - {{name: ImageLocality}}
    postFilter:
      disabled:
      - {{name: '*'}}
    permit: {{}}
  pluginConfig:
  - name: NodeResourcesFit
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      scoringStrategy:
        type: MostAllocated
        resources: [{{name: cpu, weight: 1}}]
  - name: DefaultPreemption
    args: {{minCandidateNodesPercentage: 20, minCandidateNodesAbsolute: 10}}
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints: [{{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}}]
"
    ));
    let config = config.expect("valid");
    assert_eq!(config.ignored, ["parallelism", "leaderElection", "clientConnection"]);
    assert_eq!((config.initial_backoff, config.max_backoff), (Duration::from_secs(2), Duration::from_secs(20)));
    let names: Vec<&str> = config.profiles.iter().map(|profile| profile.name.as_str()).collect();
    assert_eq!(names, ["default-scheduler", "packing"]);
    assert_eq!((config.profiles[0].enough(1000), config.profiles[1].enough(1000)), (500, 1000));
    let filters: Vec<&str> = config.profiles[1].filter_plugins().map(|(name, _)| name).collect();
    assert!(filters.contains(&"NodeResourcesFit") && !filters.contains(&"PodTopologySpread"), "{filters:?}");
    let weights: Vec<i64> = config.profiles[1].scores().map(|(_, _, weight)| weight).collect();
    // TaintToleration, NodeAffinity, NodeResourcesFit, InterPodAffinity, NodeResourcesBalancedAllocation.
    assert_eq!(weights, [7, 2, 1, 2, 1]);
    // Without preemption nothing is said of it.
    let mut nodes = cluster([node("n1", json!({ "spec": { "unschedulable": true } }))]);
    let decision = decide(&pod("p", json!({})), &mut nodes, &config.profiles[1], &Env::system());
    let Decision::Unschedulable { message, .. } = decision else { panic!("{decision:?}") };
    assert_eq!(message, "0/1 nodes are available: 1 node(s) were unschedulable.");
    let plain = parse(HEAD).expect("nothing said is upstream's defaults");
    assert_eq!(plain.ignored, [""; 0]);
    assert_eq!((plain.profiles.len(), plain.profiles[0].name.as_str()), (1, "default-scheduler"));
}

#[test]
fn a_plugin_that_is_named_without_a_weight_weighs_one() {
    // Of TaintToleration, NodeAffinity and NodeResourcesFit, which weigh 3, 2 and 1 by default.
    let table = [
        ("{}", [3, 2, 1]),
        ("{multiPoint: {enabled: [{name: NodeAffinity}]}}", [3, 1, 1]),
        ("{multiPoint: {enabled: [{name: NodeAffinity, weight: 0}]}}", [3, 1, 1]),
        ("{multiPoint: {enabled: [{name: NodeAffinity, weight: 5}]}}", [3, 5, 1]),
        ("{score: {disabled: [{name: TaintToleration}], enabled: [{name: TaintToleration}]}}", [1, 2, 1]),
        (
            "{multiPoint: {enabled: [{name: NodeAffinity, weight: 5}]}, score: {enabled: [{name: NodeAffinity}]}}",
            [3, 1, 1],
        ),
        (
            "{multiPoint: {enabled: [{name: NodeAffinity}]}, score: {enabled: [{name: NodeAffinity, weight: 4}]}}",
            [3, 4, 1],
        ),
    ];
    for (plugins, expected) in table {
        let config = parse(&format!("{HEAD}profiles: [{{plugins: {plugins}}}]\n")).expect("valid");
        let weights: BTreeMap<&str, i64> =
            config.profiles[0].scores().map(|(name, _, weight)| (name, weight)).collect();
        let found = ["TaintToleration", "NodeAffinity", "NodeResourcesFit"].map(|name| weights[name]);
        assert_eq!(found, expected, "{plugins}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let profile = |rest: &str| format!("profiles: [{rest}]");
    let args = |plugin: &str, args: &str| profile(&format!("{{pluginConfig: [{{name: {plugin}, args: {args}}}]}}"));
    let plugins = |rest: &str| profile(&format!("{{plugins: {rest}}}"));
    let table: Vec<(String, &str)> = vec![
        ("paralelism: 3".into(), "paralelism: unknown field"),
        ("parallelism: many".into(), "parallelism: "),
        ("parallelism: 0".into(), "parallelism: Invalid value: 0: should be an integer value greater than zero"),
        ("clientConnection: {burst: -1}".into(), "clientConnection.burst: Invalid value: -1: must be non-negative"),
        (
            "leaderElection: {leaderElect: false, retryPeriod: soon}".into(),
            "leaderElection.retryPeriod: Invalid value: ",
        ),
        ("leaderElection: {retryPeriod: -2s}".into(), "leaderElection.retryPeriod: Invalid value: \"-2s\""),
        (
            "leaderElection: {leaseDuration: 10s}".into(),
            "leaderElection.leaseDuration: Invalid value: LeaseDuration must",
        ),
        (
            "leaderElection: {renewDeadline: 1500ms}".into(),
            "leaderElection.renewDeadline: Invalid value: RenewDeadline",
        ),
        (
            "leaderElection: {resourceLock: endpoints}".into(),
            "leaderElection.resourceLock: Invalid value: \"endpoints\"",
        ),
        ("podInitialBackoffSeconds: 0".into(), "podInitialBackoffSeconds: "),
        ("podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 2".into(), "podMaxBackoffSeconds: "),
        ("percentageOfNodesToScore: 101".into(), "percentageOfNodesToScore: "),
        ("extenders: [{urlPrefix: 'http://a'}]".into(), "extenders: not supported"),
        (profile("{}, {}"), "profiles[0].schedulerName: Required value"),
        (profile("{schedulerName: a}, {schedulerName: a}"), "profiles[1].schedulerName: Duplicate value"),
        (profile("{schedulerName: 3}"), "profiles[0].schedulerName: "),
        (plugins("{scores: {}}"), "profiles[0].plugins.scores: unknown field"),
        (
            plugins("{score: {enabled: [{name: Nobody}]}}"),
            "profiles[0].plugins.score.enabled[0].name: Invalid value: \"Nobody\"",
        ),
        (plugins("{score: {enabled: [{name: NodeName}]}}"), "profiles[0].plugins.score.enabled[0].name: Invalid value"),
        (
            plugins("{score: {enabled: [{name: NodeAffinity, weight: -1}]}}"),
            "profiles[0].plugins.score.enabled[0].weight: ",
        ),
        (
            plugins("{multiPoint: {enabled: [{name: NodeName}, {name: NodeName}]}}"),
            "profiles[0].plugins.multiPoint.enabled[1].name: Duplicate value",
        ),
        (plugins("{queueSort: {disabled: [{name: '*'}]}}"), "profiles[0].plugins.queueSort: Required value"),
        (plugins("{permit: {enabled: [{name: NodeName}]}}"), "profiles[0].plugins.permit.enabled[0].name: "),
        (args("Nobody", "{}"), "profiles[0].pluginConfig[0].name: Invalid value"),
        (args("NodeName", "{a: 1}"), "profiles[0].pluginConfig[0].args.a: unknown field"),
        (args("NodeName", "3"), "profiles[0].pluginConfig[0].args: must be an object"),
        (args("NodeAffinity", "{kind: InterPodAffinityArgs}"), "profiles[0].pluginConfig[0].args.kind: "),
        (
            args("InterPodAffinity", "{hardPodAffinityWeight: 101}"),
            "profiles[0].pluginConfig[0].args.hardPodAffinityWeight: ",
        ),
        (
            args("InterPodAffinity", "{hardPodAffinityWeight: x}"),
            "profiles[0].pluginConfig[0].args.hardPodAffinityWeight: ",
        ),
        (
            args("NodeResourcesFit", "{ignoredResources: [example.com/a, a b]}"),
            "profiles[0].pluginConfig[0].args.ignoredResources[1]: Invalid value: \"a b\"",
        ),
        (
            args("NodeResourcesFit", "{ignoredResourceGroups: [example.com/a]}"),
            "profiles[0].pluginConfig[0].args.ignoredResourceGroups[0]: Invalid value: \"example.com/a\": resource group",
        ),
        (
            args("NodeResourcesFit", "{ignoredResourceGroups: ['-']}"),
            "profiles[0].pluginConfig[0].args.ignoredResourceGroups[0]: Invalid value: \"-\"",
        ),
        (
            args("NodeResourcesFit", "{scoringStrategy: {type: Most}}"),
            "profiles[0].pluginConfig[0].args.scoringStrategy.type: Unsupported value",
        ),
        (
            args("NodeResourcesFit", "{scoringStrategy: {resources: [{name: cpu, weight: 101}]}}"),
            "profiles[0].pluginConfig[0].args.scoringStrategy.resources[0].weight: ",
        ),
        (
            args("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio}}"),
            "profiles[0].pluginConfig[0].args.scoringStrategy.requestedToCapacityRatio.shape: Required value",
        ),
        (
            args("NodeAffinity", "{addedAffinity: {requiredDuringScheduling: {}}}"),
            "profiles[0].pluginConfig[0].args.addedAffinity.requiredDuringScheduling: unknown field",
        ),
        (
            args(
                "PodTopologySpread",
                "{defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway}]}",
            ),
            "profiles[0].pluginConfig[0].args.defaultConstraints: ",
        ),
        (
            args(
                "PodTopologySpread",
                "{defaultingType: List, defaultConstraints: [{maxSkew: 0, topologyKey: a, whenUnsatisfiable: ScheduleAnyway}]}",
            ),
            "profiles[0].pluginConfig[0].args.defaultConstraints[0].maxSkew: ",
        ),
        (
            args(
                "PodTopologySpread",
                "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: a b, whenUnsatisfiable: ScheduleAnyway}]}",
            ),
            "profiles[0].pluginConfig[0].args.defaultConstraints[0].topologyKey: Invalid value",
        ),
        (
            args(
                "PodTopologySpread",
                "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway}, \
                 {maxSkew: 2, topologyKey: a, whenUnsatisfiable: ScheduleAnyway}]}",
            ),
            "profiles[0].pluginConfig[0].args.defaultConstraints[1]: Duplicate value: \"{a, ScheduleAnyway}\"",
        ),
        (
            args("DefaultPreemption", "{minCandidateNodesPercentage: 200}"),
            "profiles[0].pluginConfig[0].args.minCandidateNodesPercentage: ",
        ),
    ];
    let mut wrong = Vec::new();
    for (text, expected) in table {
        let why = parse(&format!("{HEAD}{text}\n")).err().map_or("nothing".into(), |why| why.to_string());
        if !why.starts_with(expected) {
            wrong.push(format!("{text}\n  says {why}\n  not {expected}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
    let of = |why: &ConfigError, name: &str| matches!(why, ConfigError::Field(why) if why.field == name);
    assert!(parse("kind: [").is_err_and(|why| matches!(why, ConfigError::Yaml(_))));
    assert!(
        parse("kind: Pod\n---\nkind: Pod")
            .is_err_and(|why| matches!(why, ConfigError::Documents("KubeSchedulerConfiguration")))
    );
    assert!(parse("kind: KubeSchedulerConfiguration").is_err_and(|why| of(&why, "apiVersion")));
    assert!(parse("apiVersion: v1\nkind: Pod").is_err_and(|why| of(&why, "kind")));
}
