//! HorizontalPodAutoscalers: the replicas that the Pods' usage leads to. The cases are upstream's documented ones.

mod limits;
mod plan;
mod refusals;
mod remote;
mod replicas;
mod samples;
mod targets;

use podwright::controllers::horizontal_pod_autoscaler::{Settings, Spec};
use serde_json::{Value, json};

use super::at;

/// A Pod that has been running and ready for an hour. Its container requests one core.
fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "a", "uid": format!("uid-{name}"), "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1", "memory": "64Mi" } } }] },
        "status": {
            "phase": "Running", "startTime": at(-3600).to_string(),
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": at(-3590).to_string() }],
        },
    })
}

/// A spec as stored by the server: for a Deployment `web` of one to ten replicas.
fn spec(more: Value) -> Value {
    let mut spec = json!({
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
        "minReplicas": 1, "maxReplicas": 10,
        "metrics": [{ "type": "Resource", "resource": {
            "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 } } }],
    });
    json_patch::merge(&mut spec, &more);
    spec
}

fn read(more: Value) -> Spec {
    Spec::of(&spec(more), &Settings::default())
}
