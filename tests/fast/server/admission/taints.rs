//! The times of taints.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use podwright::api::{Env, Object};
use podwright::server::{Config, Server};
use podwright::store::Memory;
use serde_json::{Value, json};

use super::super::Api;

/// Key, effect and time of each taint.
fn taints(node: &Object) -> Vec<String> {
    let taints = node.0["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    taints.iter().map(|t| format!("{} {} {}", text(&t["key"]), text(&t["effect"]), text(&t["timeAdded"]))).collect()
}

#[tokio::test]
async fn a_taint_that_evicts_says_since_when() {
    let start: Timestamp = "2027-01-15T08:00:00Z".parse().unwrap();
    let env = Env::simulated(start, 1);
    let api = Api(Server::open(Arc::new(Memory::new()), env.clone(), Config::default()).await.unwrap());
    let list = |taints: &[(&str, &str)]| -> Value {
        taints.iter().map(|(key, effect)| json!({"key": key, "effect": effect})).collect()
    };
    let node = |taints: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"taints": taints}});
    let made = api.create("nodes", node(list(&[("a", "NoExecute"), ("a", "NoSchedule")]))).await.unwrap();
    assert_eq!(taints(&made), ["a NoExecute 2027-01-15T08:00:00Z", "a NoSchedule -"]);

    // Written as it is in somebody's file, with another one and one that has a time.
    env.set_clock(SignedDuration::from_secs(60));
    let mut more = list(&[("b", "NoExecute"), ("a", "NoExecute"), ("c", "NoExecute")]);
    more[2]["timeAdded"] = "2027-01-01T00:00:00Z".into();
    let changed = api.patch("nodes", "n", json!({"spec": {"taints": more}})).await.unwrap();
    let expected =
        ["b NoExecute 2027-01-15T08:01:00Z", "a NoExecute 2027-01-15T08:00:00Z", "c NoExecute 2027-01-01T00:00:00Z"];
    assert_eq!(taints(&changed), expected);
    env.set_clock(SignedDuration::from_secs(60));
    let again = api.update("nodes", &changed).await.unwrap();
    assert_eq!(taints(&again), expected);

    // One that was gone for a while begins anew.
    api.patch("nodes", "n", json!({"spec": {"taints": []}})).await.unwrap();
    let anew = api.patch("nodes", "n", json!({"spec": {"taints": list(&[("a", "NoExecute")])}})).await.unwrap();
    assert_eq!(taints(&anew), ["a NoExecute 2027-01-15T08:02:00Z"]);
}
