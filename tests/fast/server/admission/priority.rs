//! Priorities, default tolerations, default classes.

use podwright::server::{Config, TolerationSeconds};
use serde_json::{Value, json};

use super::{Api, pod, with};

fn class(name: &str, value: i64, more: Value) -> Value {
    let mut class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value});
    class.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    class
}

fn of_class(name: &str, class: &str) -> Value {
    with(pod(name), "/spec/priorityClassName", class.into())
}

#[tokio::test]
async fn a_pods_priority_comes_of_its_class() {
    let api = Api::new().await;
    let none = api.create("pods", pod("none")).await.unwrap().0;
    let of =
        |pod: &Value| (pod["spec"]["priority"].as_i64(), pod["spec"]["preemptionPolicy"].as_str().map(str::to_owned));
    assert_eq!(of(&none), (Some(0), Some("PreemptLowerPriority".into())));
    for (name, value) in [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)] {
        assert_eq!(api.create("pods", of_class(name, name)).await.unwrap().0["spec"]["priority"], value);
    }
    api.create("priorityclasses", class("high", 100, json!({"preemptionPolicy": "Never"}))).await.unwrap();
    let high = api.create("pods", of_class("high", "high")).await.unwrap().0;
    assert_eq!(of(&high), (Some(100), Some("Never".into())));
    // The number itself may be given where it is the class's.
    api.create("pods", with(of_class("same", "high"), "/spec/priority", 100.into())).await.unwrap();

    for (object, why) in [
        (of_class("p", "none"), "no PriorityClass with name none was found"),
        (
            with(of_class("p", "high"), "/spec/priority", 7.into()),
            "the integer value of priority (7) must not be provided in pod spec; priority admission controller computed 100 \
             from the given PriorityClass name",
        ),
        (
            with(of_class("p", "high"), "/spec/preemptionPolicy", "PreemptLowerPriority".into()),
            "the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod spec; priority \
             admission controller computed Never from the given PriorityClass name",
        ),
    ] {
        let refused = api.create("pods", object).await.unwrap_err();
        assert_eq!(refused.message, format!("pods \"p\" is forbidden: {why}"));
    }
    // An update may leave out what admission filled in.
    let mut update = api.get("pods", "high").await.unwrap();
    update.0["spec"].as_object_mut().unwrap().shift_remove("priority");
    update.0["metadata"]["labels"]["x"] = "y".into();
    assert_eq!(api.update("pods", &update).await.unwrap().0["spec"]["priority"], 100);
}

#[tokio::test]
async fn there_is_one_default_class() {
    let api = Api::new().await;
    api.create("priorityclasses", class("usual", 10, json!({"globalDefault": true}))).await.unwrap();
    let pod = api.create("pods", pod("p")).await.unwrap().0;
    assert_eq!((&pod["spec"]["priority"], &pod["spec"]["priorityClassName"]), (&json!(10), &json!("usual")));
    let second = api.create("priorityclasses", class("more", 20, json!({"globalDefault": true}))).await.unwrap_err();
    let why = "is forbidden: PriorityClass usual is already marked as default. Only one default can exist";
    assert_eq!(second.message, format!("priorityclasses.scheduling.k8s.io \"more\" {why}"));
    api.create("priorityclasses", class("more", 20, json!({}))).await.unwrap();
    let marked = api.patch("priorityclasses", "more", json!({"globalDefault": true})).await.unwrap_err();
    assert!(marked.message.ends_with(why), "{marked}");
    api.patch("priorityclasses", "usual", json!({"description": "still"})).await.unwrap();
}

#[tokio::test]
async fn tolerations_of_trouble_last_as_configured() {
    let toleration_seconds = TolerationSeconds { not_ready: 7, unreachable: 9 };
    let api = Api::with(Config { toleration_seconds, ..Config::default() }).await;
    let own = json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}]);
    let made = api.create("pods", with(pod("p"), "/spec/tolerations", own)).await.unwrap();
    let seconds: Vec<(&str, i64)> = made.0["spec"]["tolerations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (t["key"].as_str().unwrap(), t["tolerationSeconds"].as_i64().unwrap()))
        .collect();
    assert_eq!(seconds, [("node.kubernetes.io/unreachable", 1), ("node.kubernetes.io/not-ready", 7)]);
    let made = api.create("pods", pod("q")).await.unwrap();
    assert_eq!(made.0["spec"]["tolerations"][1]["tolerationSeconds"], 9);
}

#[tokio::test]
async fn a_claim_without_a_class_gets_the_default_one() {
    let api = Api::new().await;
    let class = |name: &str, default: &str| {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "x/y", "metadata": {"name": name,
            "annotations": {"storageclass.kubernetes.io/is-default-class": default}}})
    };
    let claim = |name: &str, class: Value| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": class}})
    };
    let class_of = |claim: &podwright::api::Object| claim.0["spec"]["storageClassName"].clone();
    let made = api.create("persistentvolumeclaims", claim("before", Value::Null)).await.unwrap();
    assert!(class_of(&made).is_null());
    for (name, default) in [("a", "false"), ("b", "true"), ("c", "true")] {
        api.create("storageclasses", class(name, default)).await.unwrap();
    }
    let made = api.create("persistentvolumeclaims", claim("p", Value::Null)).await.unwrap();
    assert!(["b", "c"].contains(&class_of(&made).as_str().unwrap()), "{}", made.0);
    for asked in ["", "a"] {
        let made = api.create("persistentvolumeclaims", claim(&format!("own{asked}"), asked.into())).await.unwrap();
        assert_eq!(class_of(&made), asked);
    }
}
