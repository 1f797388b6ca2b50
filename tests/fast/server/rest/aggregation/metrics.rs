//! Autoscalers by metrics that an extension server tells, and documents that are made of what it has.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, Uri};
use podwright::api::{Env, Options};
use podwright::client::{Informers, local};
use podwright::controllers;
use podwright::server::SessionLimits;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::world::{NAME, THINGS, World};

const METRICS: &str = "/apis/custom.metrics.k8s.io/v1beta2";

/// It tells of each Service that it has 30 hits, and has an OpenAPI document of the second version alone.
fn answer(_: &Method, uri: &Uri, _: &str) -> (u16, String) {
    let (code, value) = match uri.path() {
        METRICS => (200, json!({"kind": "APIResourceList", "resources": []})),
        path if path.starts_with(METRICS) => {
            let parts: Vec<&str> = path[METRICS.len() + 1..].split('/').collect();
            match parts.as_slice() {
                ["namespaces", "default", "services", name, "hits"] => {
                    let item = json!({"describedObject": {"name": name}, "value": "30"});
                    (200, json!({"kind": "MetricValueList", "items": [item]}))
                }
                _ => (
                    404,
                    json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
                    "message": format!("the server could not find the metric of {path}")}),
                ),
            }
        }
        "/apis/ext.example.com/v1" => (
            200,
            json!({"kind": "APIResourceList", "resources": [
            {"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get", "list"]}]}),
        ),
        "/openapi/v2" => (
            200,
            json!({
                "paths": {THINGS: {"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/Thing"}}}}}},
                "definitions": {"Thing": {"type": "object", "description": "Somebody else's."}},
            }),
        ),
        _ => (404, json!({})),
    };
    (code, value.to_string())
}

#[tokio::test]
async fn a_server_without_a_v3_document_has_one_made() {
    let world = World::of(SessionLimits::default(), Arc::new(answer)).await;
    world.serve().await;
    world.register(json!({})).await;
    world.until(NAME, "Passed").await;
    let index = world.document("/openapi/v3", "application/json", "apis/ext.example.com/v1").await;
    let at = index["paths"]["apis/ext.example.com/v1"]["serverRelativeURL"].as_str().unwrap();
    let made = world.rest.get(at).await.json();
    assert_eq!(made["openapi"], "3.0.0");
    assert_eq!(made["components"]["schemas"]["Thing"]["description"], "Somebody else's.");
    let of = &made["paths"][THINGS]["get"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"];
    assert_eq!(*of, "#/components/schemas/Thing");
    // Merging is work of the kind that has its turn aside from what others wait for.
    let turns = world.rest.api.0.large_turns();
    world.document("/openapi/v2", "application/json", "Somebody else").await;
    assert!(world.rest.api.0.large_turns() > turns);
}

async fn hpa(world: &World, what: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    for _ in 0..2000 {
        last = world.rest.api.get("horizontalpodautoscalers", "web").await.unwrap().0["status"].clone();
        if what(&last) {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never comes to that: {last}");
}

fn condition(status: &Value, of: &str) -> String {
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|condition| condition["type"] == of).cloned().unwrap_or_default();
    format!("{} {}: {}", found["status"], found["reason"], found["message"]).replace('"', "")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_autoscaler_reads_what_an_adapter_tells() {
    let world = World::of(SessionLimits::default(), Arc::new(answer)).await;
    world.serve().await;
    let client = local::client(world.rest.api.0.clone(), "controllers");
    tokio::spawn(async move {
        let informers = Informers::start(client.clone());
        let mut config = controllers::Config::default();
        config.autoscaling.sync_period = Duration::from_millis(200);
        controllers::run(client, Env::system(), informers, config, CancellationToken::new()).await;
    });
    let containers = json!([{"name": "c", "image": "busybox:1"}]);
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}}}});
    world.rest.api.create("deployments", deployment).await.unwrap();
    let object = json!({"metric": {"name": "hits"}, "describedObject": {"apiVersion": "v1", "kind": "Service", "name": "front"},
        "target": {"type": "AverageValue", "averageValue": "10"}});
    let autoscaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"}, "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 5,
        "metrics": [{"type": "Object", "object": object}]}});
    world.rest.api.create("horizontalpodautoscalers", autoscaler).await.unwrap();
    let failed = "False FailedGetObjectMetric: the HPA was unable to compute the replica count: unable to get metric hits on \
                  Service default/front: unable to fetch metrics from custom metrics API: ";
    let nobody = format!("{failed}no custom metrics API (custom.metrics.k8s.io) registered");
    hpa(&world, |status| condition(status, "ScalingActive") == nobody).await;
    let group = json!({"metadata": {"name": "v1beta2.custom.metrics.k8s.io"}, "spec": {"group": "custom.metrics.k8s.io", "version": "v1beta2"}});
    world.register(group).await;
    // 30 hits, 10 for each: three.
    let status = hpa(&world, |status| status["desiredReplicas"] == 3).await;
    assert!(condition(&status, "ScalingActive").starts_with("True ValidMetricFound"), "{status}");
    assert_eq!(world.rest.api.get("deployments", "web").await.unwrap().0["spec"]["replicas"], 3);
    let shown = &status["currentMetrics"][0]["object"];
    assert_eq!((&shown["metric"]["name"], &shown["describedObject"]["name"]), (&json!("hits"), &json!("front")));
    let (headers, _) = world.heard(&format!("GET {METRICS}/namespaces/default/services/front/hits"));
    assert!(headers.contains(&"x-remote-user: system:controllers".to_owned()), "{headers:?}");
    // And then it is gone.
    world.rest.api.delete("apiservices", "v1beta2.custom.metrics.k8s.io", Options::default()).await.unwrap();
    hpa(&world, |status| condition(status, "ScalingActive") == nobody).await;
}
