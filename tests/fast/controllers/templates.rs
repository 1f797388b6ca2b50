//! A template that is accepted makes objects that are accepted, whatever is added to them.

use podwright::api::{Object, Verb};
use serde_json::{Value, json};

use super::{
    refused::{all, pods},
    running::World,
};

fn labels(prefix: &str, n: usize) -> Value {
    (0..n).map(|i| (format!("{prefix}{i}"), json!("x"))).collect::<serde_json::Map<_, _>>().into()
}

fn many(n: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..n).map(item).collect::<Vec<_>>().into()
}

/// With so many labels.
fn template(count: usize, extra: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i:1"}]});
    json_patch::merge(&mut spec, &extra);
    json!({"metadata": {"labels": labels("l", count)}, "spec": spec})
}

/// Each at the bounds of what is added to it: labels, and a token, claims, tolerations or the variable of an index.
fn workloads() -> [(&'static str, &'static str, &'static str, Value); 4] {
    let volumes = json!({"volumes": many(1024, |i| json!({"name": format!("v{i}"), "emptyDir": {}}))});
    let tolerations = json!({"tolerations": many(1000, |_| json!({"operator": "Exists"}))});
    let env = many(4096, |i| json!({"name": format!("V{i}"), "value": "x"}));
    let job = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1", "env": env}]});
    let selector = |count| json!({"matchLabels": labels("l", count)});
    let claim = |i: usize| {
        json!({"metadata": {"name": format!("claim-{i}"), "labels": labels("m", 1024)}, "spec":
            {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
    };
    let by = |count: usize, extra: Value| json!({"selector": selector(count), "template": template(1024, extra)});
    let mut set = by(256, volumes);
    (set["serviceName"], set["volumeClaimTemplates"]) = ("x".into(), many(2, claim));
    // A Job's own labels come into its template before that is looked at.
    let job = json!({"completionMode": "Indexed", "completions": 1, "parallelism": 1, "template": template(1024, job)});
    [
        ("deployments.apps", "apps/v1", "ReplicaSet", by(255, json!({}))),
        ("statefulsets.apps", "apps/v1", "StatefulSet", set),
        ("daemonsets.apps", "apps/v1", "DaemonSet", by(256, tolerations)),
        ("jobs.batch", "batch/v1", "Job", job),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_template_at_its_bounds_makes_pods() {
    let world = World::new().await;
    let stop = world.start();
    world.create("nodes", "", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})).await;
    world.until("serviceaccounts", ("default", "default"), |it| it.is_some()).await;
    for (resource, api_version, maker, spec) in workloads() {
        let kind = if maker == "ReplicaSet" { "Deployment" } else { maker };
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec});
        world.create(resource, "default", object).await;
        let mut made = None;
        for _ in 0..100 {
            let is_its = |pod: &Value| pod["metadata"]["ownerReferences"][0]["kind"] == maker;
            made = pods(&world, "default").await.into_iter().find(is_its);
            if made.is_some() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        let Some(pod) = made else {
            let told: Result<Object, _> = world.ask(Verb::Get, resource, ("default", "x"), None).await;
            let why = world.events("default", "FailedCreate").await.into_iter().map(|event| event.message);
            panic!("{kind}: {:?} {:?}", told.map(|object| object.0["status"].clone()), why.collect::<Vec<_>>());
        };
        let mut volumes = pod["spec"]["volumes"].as_array().unwrap().iter();
        assert!(volumes.any(|volume| !volume["projected"].is_null()), "its token is among them");
    }
    stop.cancel();
}

/// So does a Service: its labels are its slices', too.
#[tokio::test(start_paused = true)]
async fn a_service_at_its_bound_has_slices() {
    let world = World::new().await;
    let stop = world.start();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x", "labels": labels("l", 1024)},
        "spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}});
    world.create("services", "default", service).await;
    world.until("endpoints", ("default", "x"), |it| it.is_some()).await;
    for _ in 0..100 {
        if !all(&world, "endpointslices.discovery.k8s.io", "default").await.is_empty() {
            return stop.cancel();
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("it has none");
}
