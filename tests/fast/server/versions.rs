//! Kinds in several versions, kinds whose objects make something of their own name, and verbs that a kind lacks.

use podwright::api::request::EventKind;
use podwright::api::{Object, Options, Verb};
use serde_json::json;

use super::{Api, object_of, request};

fn autoscaler(version: &str) -> serde_json::Value {
    let mut it = json!({"apiVersion": version, "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"},
        "spec": {"maxReplicas": 5, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"}}});
    if version == "autoscaling/v1" {
        it["spec"]["targetCPUUtilizationPercentage"] = 60.into();
    }
    it
}

const V1: &str = "horizontalpodautoscalers.v1.autoscaling";
const V2: &str = "horizontalpodautoscalers.autoscaling";

#[tokio::test]
async fn each_version_shows_the_same_object() {
    let api = Api::new().await;
    let made = api.create(V1, autoscaler("autoscaling/v1")).await.unwrap();
    assert_eq!((made.api_version(), &made.0["spec"]["targetCPUUtilizationPercentage"]), ("autoscaling/v1", &json!(60)));
    let v2 = api.get(V2, "a").await.unwrap();
    assert_eq!(v2.api_version(), "autoscaling/v2");
    assert_eq!(v2.0["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 60);
    assert_eq!((v2.uid(), v2.resource_version()), (made.uid(), made.resource_version()));
    // Each version refuses the other's objects, and patches what it shows.
    assert_eq!(api.create(V2, autoscaler("autoscaling/v1")).await.unwrap_err().code, 400);
    let patched = api.patch(V1, "a", json!({"spec": {"targetCPUUtilizationPercentage": 70}})).await.unwrap();
    assert_eq!(patched.0["spec"]["targetCPUUtilizationPercentage"], 70);
    let v2 = api.get(V2, "a").await.unwrap();
    assert_eq!(v2.0["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 70);
    let list = api.list(V1, Options::default()).await.unwrap();
    assert_eq!(list.api_version, "autoscaling/v1");
    assert_eq!(Object::from_slice(&list.items[0]).unwrap().api_version(), "autoscaling/v1");
}

/// What the older form carries for the newer one is what a user has written: each client of that decodes it.
#[tokio::test]
async fn an_annotation_that_v2_would_not_have_so_is_dropped() {
    let api = Api::new().await;
    let metric = |utilization: serde_json::Value| {
        json!([{"type": "Resource", "resource": {"name": "memory", "unknown": 1,
            "target": {"type": "Utilization", "averageUtilization": utilization}}}])
    };
    let window = json!({"scaleDown": {"stabilizationWindowSeconds": 7}});
    for (name, metrics, behavior, kept) in
        [("bad", metric("abc".into()), json!(5), false), ("good", metric(50.into()), window, true)]
    {
        let mut it = autoscaler("autoscaling/v1");
        it["metadata"] = json!({"name": name, "annotations": {
            "autoscaling.alpha.kubernetes.io/metrics": metrics.to_string(),
            "autoscaling.alpha.kubernetes.io/behavior": behavior.to_string(),
        }});
        api.create(V1, it).await.unwrap();
        let v2 = api.get(V2, name).await.unwrap();
        let spec = &v2.0["spec"];
        assert_eq!(spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 7, kept, "{spec}");
        assert_eq!(spec["metrics"].as_array().unwrap().len(), 1 + usize::from(kept), "{spec}");
        assert!(!spec["behavior"].is_number() && !spec.to_string().contains("unknown"), "{spec}");
        let read: k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler = serde_json::from_value(v2.0).unwrap();
        assert_eq!(read.metadata.annotations.unwrap_or_default().len(), 0);
    }
}

/// What v1 cannot say lies in annotations, which hold any text.
#[tokio::test]
async fn what_an_annotation_says_of_a_field_fits_the_field_or_says_nothing() {
    let api = Api::new().await;
    let alpha = "autoscaling.alpha.kubernetes.io/";
    for (annotation, text) in [
        ("behavior", "5"),
        ("behavior", "[]"),
        ("behavior", "{\"scaleUp\": {\"policies\": 3}}"),
        ("metrics", "[{\"type\": \"Resource\", \"resource\": {\"target\": {\"averageUtilization\": \"abc\"}}}]"),
        ("metrics", "\"no list\""),
        ("metrics", "null"),
        ("behavior", "{"),
    ] {
        let mut it = autoscaler("autoscaling/v1");
        it["metadata"]["annotations"] = json!({ format!("{alpha}{annotation}"): text });
        let made = api.create(V1, it).await.unwrap();
        assert!(made.annotation(&format!("{alpha}{annotation}")).is_none(), "{made:?}");
        let v2 = api.get(V2, "a").await.unwrap();
        assert!(v2.0["spec"].get("behavior").is_none(), "{annotation} {text}: {v2:?}");
        assert_eq!(v2.0["spec"]["metrics"].as_array().map(Vec::len), Some(1), "{annotation} {text}: {v2:?}");
        api.patch(V2, "a", json!({"spec": {"maxReplicas": 6}})).await.unwrap();
        api.delete(V2, "a", Options::default()).await.unwrap();
    }
    let mut it = autoscaler("autoscaling/v1");
    let text = "{\"scaleDown\": {\"stabilizationWindowSeconds\": 7, \"other\": 1}, \"more\": 2}";
    it["metadata"]["annotations"] = json!({ format!("{alpha}behavior"): text });
    api.create(V1, it).await.unwrap();
    let behavior = api.get(V2, "a").await.unwrap().0["spec"]["behavior"].clone();
    assert_eq!(behavior["scaleDown"]["stabilizationWindowSeconds"], 7);
    assert!(behavior.get("more").is_none() && behavior["scaleDown"].get("other").is_none(), "{behavior}");
}

#[tokio::test]
async fn events_are_watched_and_selected_under_both_names() {
    let api = Api::new().await;
    let options = |text: &str| Options { field_selector: Some(text.into()), ..Options::default() };
    let mut watch = api.watch("events.events.k8s.io", options("regarding.name=p")).await.unwrap();
    let event = |name: &str, about: &str| {
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "message": "m", "type": "Normal",
            "involvedObject": {"kind": "Pod", "name": about, "namespace": "default"}})
    };
    api.create("events", event("x", "other")).await.unwrap();
    api.create("events", event("y", "p")).await.unwrap();
    let told = watch.recv().await.unwrap();
    let object = Object::from_slice(&told.object).unwrap();
    assert_eq!((told.kind, object.name(), object.api_version()), (EventKind::Added, "y", "events.k8s.io/v1"));
    assert_eq!((&object.0["note"], &object.0["regarding"]["name"]), (&json!("m"), &json!("p")));
    assert!(object.0.get("message").is_none());
    let list = api.list("events", options("involvedObject.name=p")).await.unwrap();
    assert_eq!(list.items.len(), 1);
    let refused = api.list("events.events.k8s.io", options("involvedObject.name=p")).await.unwrap_err();
    assert!(refused.message.contains("field label not supported"), "{refused}");
}

#[tokio::test]
async fn a_job_selects_its_own_pods() {
    let api = Api::new().await;
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "j-"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}}}});
    let made = api.create("jobs", job).await.unwrap();
    let labels = &made.0["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["job-name"], made.name());
    assert_eq!(labels["batch.kubernetes.io/controller-uid"], made.uid());
    let selector = &made.0["spec"]["selector"]["matchLabels"];
    assert_eq!(selector, &json!({"batch.kubernetes.io/controller-uid": made.uid()}));
    // The same manifest again is no change of it.
    let again = request(Verb::Update, "jobs", made.name(), Some(made.0.clone()), Options::default());
    assert_eq!(object_of(api.0.handle(again).await.unwrap()), made);
}

#[tokio::test]
async fn controllers_with_plain_selectors_scale() {
    let api = Api::new().await;
    let rc = json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "a"}, "spec": {"replicas": 2,
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}});
    api.create("replicationcontrollers", rc).await.unwrap();
    let scale = object_of(api.sub(Verb::Get, "rc", "a", "scale", json!({})).await.unwrap());
    assert_eq!((&scale.0["spec"]["replicas"], &scale.0["status"]["selector"]), (&json!(2), &json!("a=b")));
}

#[tokio::test]
async fn a_note_has_an_end() {
    let api = Api::new().await;
    let event = |name: &str, note: String| {
        json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
            "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}, "type": "Normal", "reason": "r",
            "action": "a", "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "a.b/c",
            "reportingInstance": "i", "note": note})
    };
    api.create("events.events.k8s.io", event("short", "x".repeat(1024))).await.unwrap();
    let refused = api.create("events.events.k8s.io", event("long", "\u{e4}".repeat(513))).await.unwrap_err();
    assert_eq!(refused.code, 422);
    assert!(refused.message.contains("message: Invalid value: \"\": can have at most 1024 bytes"), "{refused}");
}
