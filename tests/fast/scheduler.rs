//! The scheduler: its rules as tables, its queue as properties, its loop on the memory store and a paused clock.

mod affinity;
mod carriers;
mod config;
mod decide;
mod index;
mod making_room;
mod preemption;
mod queue;
mod run;
mod scores;
mod spread;
mod timing;
mod volumes;
mod waking;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use podwright::{
    api::patch,
    scheduler::{self, cluster::Cluster, pod::PodInfo, profile::Profile},
};
use serde_json::{Value, json};

/// A node of 4 CPUs, 8 GiB and 10 Pods, with `changes` merged in.
fn node(name: &str, changes: Value) -> Arc<Node> {
    let base = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        "status": { "allocatable": { "cpu": "4", "memory": "8Gi", "ephemeral-storage": "100Gi", "pods": "10" } },
    });
    Arc::new(serde_json::from_value(patch::merge(&base, &changes)).expect("a Node"))
}

/// A Pod of one container without requests, with `spec` merged in.
fn pod(name: &str, spec: Value) -> Arc<PodInfo> {
    let base = json!({ "containers": [{ "name": "c", "image": "i" }] });
    let meta = json!({ "name": name, "namespace": "default", "uid": format!("uid-{name}") });
    let pod: Pod =
        serde_json::from_value(json!({ "metadata": meta, "spec": patch::merge(&base, &spec) })).expect("a Pod");
    PodInfo::of(Arc::new(pod))
}

/// A Pod of one container with these labels, with `changes` merged into all of it.
fn labelled(name: &str, labels: Value, changes: Value) -> Arc<PodInfo> {
    let base = json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": labels },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    PodInfo::of(Arc::new(serde_json::from_value(patch::merge(&base, &changes)).expect("a Pod")))
}

/// A node in a zone.
fn zoned(name: &str, zone: &str) -> Arc<Node> {
    node(name, json!({ "metadata": { "labels": { "zone": zone } } }))
}

/// What is said against each node, in order of their names: `n1: why`; those that fit alone are named alone.
fn verdicts(pod: &PodInfo, cluster: &mut Cluster, profile: &Profile) -> Vec<String> {
    profile.prepare(pod, cluster);
    let mut all: Vec<String> = cluster
        .nodes()
        .map(|node| match scheduler::decide::check(pod, cluster, profile, node.slot) {
            None => node.name.clone(),
            Some((_, rejection)) => format!("{}: {}", node.name, rejection.why.join(", ")),
        })
        .collect();
    all.sort();
    all
}

/// The names of all nodes with their points of one plugin's profile, in order of their names.
fn points(pod: &PodInfo, cluster: &mut Cluster, profile: &Profile) -> Vec<(String, i64)> {
    profile.prepare(pod, cluster);
    let mut nodes: Vec<_> = cluster.nodes().collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let points = scheduler::decide::scores(pod, cluster, profile, &nodes);
    nodes.iter().map(|node| node.name.clone()).zip(points).collect()
}

/// A profile whose only score is that of one plugin, weighing 1, with its arguments in YAML.
fn scoring(plugin: &str, args: Value) -> Profile {
    let file = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "plugins": { "score": { "disabled": [{ "name": "*" }], "enabled": [{ "name": plugin, "weight": 1 }] } },
            "pluginConfig": [{ "name": plugin, "args": args }],
        }],
    });
    let config = podwright::scheduler::config::parse(&file.to_string()).expect("a valid file");
    config.profiles.into_iter().next().expect("one profile")
}

fn requesting(requests: Value) -> Value {
    json!({ "containers": [{ "name": "c", "image": "i", "resources": { "requests": requests } }] })
}

fn cluster(nodes: impl IntoIterator<Item = Arc<Node>>) -> Cluster {
    let mut cluster = Cluster::default();
    nodes.into_iter().for_each(|node| cluster.set_node(node));
    cluster
}
