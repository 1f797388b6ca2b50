//! Controller decisions: tables of cases for the pure functions.

mod admission_policy;
mod bootstrap;
mod certificate_cleaner;
mod clock;
mod cron_job;
mod custom;
mod daemon_set;
mod deployment;
mod disruption;
mod endpoint_slice;
mod endpoints;
mod garbage;
mod horizontal_pod_autoscaler;
mod job;
mod load_balancer;
mod local_volumes;
mod nodes;
mod persistent_volume;
mod queue;
mod refusals;
mod refused;
mod replica_set;
mod root_ca;
mod running;
mod sets;
mod short_lives;
mod stateful_set;
mod templates;
mod thousands;

use std::{
    future::ready,
    sync::{Arc, Mutex},
};

use futures::FutureExt;
use jiff::Timestamp;
use podwright::controllers::{Plan, write::Write};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// A typed object from JSON.
fn object<K: DeserializeOwned>(value: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(value).expect("the test's object decodes"))
}

/// Applies a merge patch.
fn merge<K: Serialize + DeserializeOwned>(object: &mut K, patch: &Value) {
    let mut value = serde_json::to_value(&*object).expect("encodes");
    json_patch::merge(&mut value, patch);
    *object = serde_json::from_value(value).expect("decodes");
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("a valid time")
}

/// What a plan does, one line per write: the verb, the object, the subresource, the patch, and the event.
fn lines(plan: &Plan) -> Vec<String> {
    plan.writes().map(line).collect()
}

fn line(write: &Write) -> String {
    let request = &write.request;
    let body = request.body.as_ref().unwrap_or(&Value::Null);
    let generated = body["metadata"]["generateName"].as_str();
    let name = request.name.as_deref().or(generated).unwrap_or("");
    let mut text = format!("{:?} {}/{name}", request.verb, request.resource).to_lowercase();
    text.extend(request.subresource.iter().flat_map(|sub| ["/", sub.as_str()]));
    for note in &write.done {
        text.push_str(&format!(": {}", note.message));
    }
    text
}

/// Executes a plan: `act` does a write and returns its name, and whether it succeeded. Returns the writes begun, in order.
fn begun(plan: Plan, act: &(dyn Fn(&Write) -> (String, bool) + Sync)) -> Vec<String> {
    let begun = Mutex::new(Vec::new());
    let done = |write: Write| {
        let (line, succeeded) = act(&write);
        begun.lock().unwrap().push(line);
        ready(succeeded.then_some(()).ok_or(())).boxed()
    };
    plan.into_work().carry_out(&done).now_or_never().expect("nobody waits");
    begun.into_inner().unwrap()
}

/// The writes of a plan that are never begun while one write fails.
fn starved(plan: &Plan, refused: &str) -> Vec<String> {
    let begun = begun(plan.clone(), &|write| (line(write), line(write) != refused));
    assert!(begun.iter().any(|line| line == refused), "{refused:?} is none of {:#?}", lines(plan));
    lines(plan).into_iter().filter(|line| !begun.contains(line)).collect()
}

/// How many requests are made when all fail.
fn tries(plan: &Plan) -> usize {
    begun(plan.clone(), &|write| (line(write), false)).len()
}

/// A Pod that has been ready for `ready` seconds (negative: for long); None: it is not ready.
fn pod(name: &str, node: &str, ready: Option<i64>) -> Value {
    let (phase, status) = match (node, ready) {
        ("", _) => ("Pending", "False"),
        (_, Some(_)) => ("Running", "True"),
        (_, None) => ("Running", "False"),
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "a", "uid": format!("uid-{name}"), "labels": { "app": "web" },
            "creationTimestamp": at(-1000).to_string(),
        },
        "spec": { "containers": [{ "name": "c", "ports": [{ "name": "http", "containerPort": 8080 }] }], "nodeName": node },
        "status": {
            "phase": phase, "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }],
            "conditions": [{ "type": "Ready", "status": status, "lastTransitionTime": at(ready.unwrap_or(0)).to_string() }],
        },
    })
}
