//! Objects that can never succeed: their controllers retry ever less often, whatever events arrive.

use std::time::Duration;

use podwright::{
    api::{Object, Request, User, Verb, request::Body},
    controllers,
};
use serde_json::{Value, json};

use super::running::World;

/// The store's revision.
async fn revision(world: &World) -> u64 {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "m"}});
    world.create("configmaps", "default", map).await.0["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn template() -> Value {
    json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "i"}]}})
}

async fn guarded(world: &World, name: &str) {
    let labels = json!({"pod-security.kubernetes.io/enforce": "baseline"});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    world.create("namespaces", "", namespace).await;
}

fn failure(object: Option<&Object>) -> Option<Value> {
    let conditions = object?.0["status"]["conditions"].as_array()?.clone();
    conditions.into_iter().find(|condition| condition["type"] == "ReplicaFailure" && condition["status"] == "True")
}

/// Each rejection names another Pod.
#[tokio::test(start_paused = true)]
async fn what_admission_refuses_is_tried_ever_less_often() {
    let world = World::new().await;
    let stop = world.start();
    guarded(&world, "a").await;
    let selector = json!({"matchLabels": {"a": "b"}});
    let spec = json!({"replicas": 1, "selector": selector, "template": template()});
    let bare = json!({"replicas": 1, "selector": {"a": "b"}, "template": template()});
    for (resource, kind, api_version, spec) in [
        ("replicasets.apps", "ReplicaSet", "apps/v1", &spec),
        ("deployments.apps", "Deployment", "apps/v1", &spec),
        ("replicationcontrollers", "ReplicationController", "v1", &bare),
    ] {
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec});
        world.create(resource, "a", object).await;
        world.until(resource, ("a", "x"), |object| failure(object).is_some()).await;
    }
    let before = revision(&world).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    let written = revision(&world).await - before;
    assert!(written < 300, "{written} revisions in 300 s of three objects that nobody touches");
    stop.cancel();
}

/// Some other writer (an autoscaler, a tenant's own controller) keeps writing its status.
#[tokio::test(start_paused = true)]
async fn a_change_of_a_status_cuts_no_wait() {
    const CHANGES: u64 = 500;
    let world = World::new().await;
    let stop = world.start();
    guarded(&world, "a").await;
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template()});
    let object = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "x"}, "spec": spec});
    world.create("replicasets.apps", "a", object).await;
    world.until("replicasets.apps", ("a", "x"), |object| failure(object).is_some()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = revision(&world).await;
    for n in 0..CHANGES {
        let status = json!({"status": {"replicas": n % 2 + 1}});
        world.ask_of(Verb::Patch, "replicasets.apps", ("a", "x"), "status", status).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let written = revision(&world).await - before - CHANGES;
    assert!(written < 30, "{written} revisions for {CHANGES} changes of a status");
    // A change of the spec is processed at once.
    let loose = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
    world.ask(Verb::Patch, "namespaces", ("", "a"), Some(loose)).await.unwrap();
    let since = world.seconds();
    let wish = json!({"spec": {"replicas": 2}});
    world.ask(Verb::Patch, "replicasets.apps", ("a", "x"), Some(wish)).await.unwrap();
    world.until("replicasets.apps", ("a", "x"), |set| set.is_some_and(|set| set.0["status"]["replicas"] == 2)).await;
    assert!(world.seconds() - since < 5.0, "after {} s", world.seconds() - since);
    stop.cancel();
}

/// All Pods of a namespace.
pub async fn pods(world: &World, namespace: &str) -> Vec<Value> {
    all(world, "pods", namespace).await
}

/// All objects of a resource there.
pub async fn all(world: &World, resource: &str, namespace: &str) -> Vec<Value> {
    let (namespace, user) = (Some(namespace.to_owned()), User::system("test"));
    let request = Request { verb: Verb::List, resource: resource.into(), namespace, user, ..Request::default() };
    match world.server.handle(request).await.unwrap().body {
        Body::List(list) => list.items.iter().map(|item| serde_json::from_slice(item).unwrap()).collect(),
        other => panic!("{other:?}"),
    }
}

/// Plays a node that rejects its Pods, for some seconds.
async fn refuse(world: &World, namespace: &str, seconds: u64) {
    for _ in 0..seconds * 20 {
        for pod in pods(world, namespace).await {
            if pod["status"]["phase"] != "Failed" {
                let status = json!({"status": {"phase": "Failed", "reason": "NodeAffinity"}});
                let key = (namespace, pod["metadata"]["name"].as_str().unwrap());
                world.ask_of(Verb::Patch, "pods", key, "status", status).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub async fn node(world: &World, taints: Value) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"taints": taints}});
    world.create("nodes", "", node).await;
}

fn on_node() -> Value {
    json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}})
}

/// A ReplicaSet of `replicas` Pods, as in `on_node`.
async fn replica_set(world: &World, replicas: usize) {
    let spec = json!({"replicas": replicas, "selector": {"matchLabels": {"a": "b"}}, "template": on_node()});
    let object = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "x"}, "spec": spec});
    world.create("replicasets.apps", "default", object).await;
}

/// Here the owner's template names the node.
#[tokio::test(start_paused = true)]
async fn pods_that_a_node_refuses_are_replaced_ever_more_slowly() {
    let world = World::new().await;
    let stop = world.start();
    node(&world, json!([])).await;
    replica_set(&world, 3).await;
    refuse(&world, "default", 30).await;
    let made = pods(&world, "default").await.len();
    // Twelve rounds of three; the last ones are many seconds apart.
    assert!((9..=60).contains(&made), "{made} Pods in 30 s");
    refuse(&world, "default", 20).await;
    let more = pods(&world, "default").await.len() - made;
    assert!(more <= 9, "{more} more Pods in 20 s");
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn who_waits_to_make_pods_says_so_until_that_is_over() {
    let world = World::new().await;
    let stop = world.start();
    node(&world, json!([])).await;
    replica_set(&world, 2).await;
    refuse(&world, "default", 30).await;
    let key = ("default", "x");
    let waits = |set: Option<&Object>| {
        failure(set).is_some_and(|it| it["reason"] == "CreationBackOff")
            && set.is_some_and(|set| set.0["status"]["replicas"] == 0)
    };
    world.until("replicasets.apps", key, waits).await;
    let events = world.events("default", "CreationBackOff").await;
    assert!(events.iter().all(|event| event.involved_object.kind.as_deref() == Some("ReplicaSet")));
    let told: i32 = events.iter().map(|event| event.count.unwrap_or(1)).sum();
    assert!((3..=15).contains(&told), "told {told} times in 30 s");
    // The node now accepts its Pods.
    world.until("replicasets.apps", key, |set| set.is_some_and(|set| set.0["status"]["replicas"] == 2)).await;
    tokio::time::sleep(Duration::from_secs(150)).await;
    world.until("replicasets.apps", key, |set| failure(set).is_none()).await;
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn another_template_is_tried_at_once() {
    let world = World::new().await;
    let stop = world.start();
    node(&world, json!([])).await;
    replica_set(&world, 3).await;
    refuse(&world, "default", 30).await;
    let before = pods(&world, "default").await.len();
    let elsewhere = json!({"spec": {"template": {"spec": {"nodeName": null}}}});
    world.ask(Verb::Patch, "replicasets.apps", ("default", "x"), Some(elsewhere)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(pods(&world, "default").await.len() - before, 3);
    stop.cancel();
}

/// Pods are created one by one, and some are deleted meanwhile.
#[tokio::test(start_paused = true)]
async fn how_many_pods_there_are_is_told_while_others_wait() {
    let world = World::new().await;
    let stop = world.start_with(controllers::Config { crowd: 5, ..controllers::Config::default() });
    let mut template = on_node();
    template["spec"].as_object_mut().unwrap().remove("nodeName");
    let spec = json!({"replicas": 1000, "selector": {"matchLabels": {"a": "b"}}, "template": template});
    let object = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "x"}, "spec": spec});
    world.create("replicasets.apps", "default", object).await;
    let mut of_job = template.clone();
    of_job["spec"]["restartPolicy"] = "Never".into();
    let spec = json!({"completions": 1000, "parallelism": 1000, "template": of_job});
    let object = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec});
    world
        .create("namespaces", "", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "jobs"}}))
        .await;
    world.create("jobs.batch", "jobs", object).await;
    for (resource, namespace, field) in [("replicasets.apps", "default", "replicas"), ("jobs.batch", "jobs", "active")]
    {
        tokio::time::sleep(Duration::from_secs(10)).await;
        let there = pods(&world, namespace).await.len() as u64;
        let about = move |object: Option<&Object>| {
            object.and_then(|it| it.0["status"][field].as_u64()).is_some_and(|told| told >= there)
        };
        let since = world.seconds();
        world.until(resource, (namespace, "x"), about).await;
        assert!(there > 30 && world.seconds() - since < 5.0, "{there} Pods, told after {} s", world.seconds() - since);
    }
    stop.cancel();
}

/// A Job of so many indexes, each of which may be tried once.
pub async fn indexed_job(world: &World, completions: usize, parallelism: usize) {
    let mut template = on_node();
    template["spec"]["restartPolicy"] = "Never".into();
    let spec = json!({"completionMode": "Indexed", "completions": completions, "parallelism": parallelism,
        "backoffLimitPerIndex": 0, "maxFailedIndexes": completions, "template": template});
    let object = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec});
    world.create("jobs.batch", "default", object).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_ends_when_all_of_its_indexes_have_failed() {
    let world = World::new().await;
    let stop = world.start();
    node(&world, json!([])).await;
    indexed_job(&world, 300, 50).await;
    let is_over = |job: &Object| {
        let conditions = job.0["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|it| it["type"] == "Failed" && it["reason"] == "FailedIndexes")
    };
    let job = loop {
        refuse(&world, "default", 1).await;
        let job = world.ask(Verb::Get, "jobs.batch", ("default", "x"), None).await.unwrap();
        if is_over(&job) {
            break job;
        }
        assert!(world.seconds() < 300.0, "{job:?}");
    };
    assert_eq!((&job.0["status"]["failed"], &job.0["status"]["failedIndexes"]), (&json!(300), &json!("0-299")));
    stop.cancel();
}
