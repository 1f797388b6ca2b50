//! Disruption budgets: what they require, what they allow, and how long an evicted Pod is awaited.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use podwright::{
    api::Request,
    client::{Delta, Key, Partial},
    controllers::{
        Plan, disruption, meta,
        scales::{self, Scale},
        write::Note,
    },
};
use serde_json::{Value, json};

use super::{at, lines, object, pod};

/// `number` Pods of an owner; the first `ready` of them are ready.
fn pods(owner: &str, number: usize, ready: usize) -> Vec<Value> {
    let one = |n: usize| {
        let mut pod = pod(&format!("{owner}{n}"), "n", (n < ready).then_some(-9));
        let kind =
            json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": true }]);
        pod["metadata"]["ownerReferences"] = if owner.is_empty() { Value::Null } else { kind };
        pod
    };
    (0..number).map(one).collect()
}

fn budget(spec: Value, status: Value) -> PodDisruptionBudget {
    let mut spec = spec;
    spec["selector"] = json!({ "matchLabels": { "app": "web" } });
    PodDisruptionBudget::clone(&object(json!({
        "metadata": { "name": "b", "namespace": "a", "uid": "b", "generation": 3, "resourceVersion": "7" },
        "spec": spec, "status": status,
    })))
}

fn counted() -> Value {
    json!({ "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0 })
}

/// ReplicaSets `x` and `y` belong to one Deployment of 10, `z` by itself wants 3; there are no others.
fn plan(budget: &PodDisruptionBudget, pods: &[Value], now: i64) -> Plan {
    let pods: Vec<Pod> = pods.iter().map(|pod| Pod::clone(&object(pod.clone()))).collect();
    let scales: HashMap<&str, (&str, i32)> = [("x", ("d", 10)), ("y", ("d", 10)), ("z", ("z", 3))].into();
    let scale = |owner: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference| match owner.uid.as_str() {
        "job" => Scale::Never("jobs.batch does not implement the scale subresource".into()),
        "widget" => Scale::Ask(Box::new(Request { resource: "widgets.e.com".into(), ..Request::default() })),
        "mute" => Scale::Untold("the server is busy".into()),
        uid => match scales.get(uid) {
            Some((uid, replicas)) => Scale::Of { uid: (*uid).into(), replicas: *replicas },
            None => Scale::Gone,
        },
    };
    disruption::plan(budget, &pods.iter().collect::<Vec<_>>(), &scale, at(now))
}

/// The events reported with the status.
fn news(plan: &Plan) -> Vec<Note> {
    plan.report.iter().flat_map(|write| write.done.clone()).collect()
}

fn status(plan: &Plan) -> Value {
    let request = &plan.writes().next().expect("a write").request;
    assert_eq!(request.subresource.as_deref(), Some("status"));
    let body = request.body.as_ref().expect("a body");
    assert_eq!(body["metadata"]["resourceVersion"], "7", "evictions write it as well");
    body["status"].clone()
}

#[test]
fn what_a_budget_wants_and_allows() {
    let both = [pods("x", 4, 4), pods("z", 3, 2)].concat();
    // Expected, desired, healthy, allowed.
    for (spec, pods, counts) in [
        (json!({ "minAvailable": 2 }), pods("x", 4, 4), [4, 2, 4, 2]),
        (json!({ "minAvailable": 2 }), pods("x", 4, 2), [4, 2, 2, 0]),
        (json!({ "minAvailable": 2 }), pods("x", 4, 1), [4, 2, 1, 0]),
        (json!({ "minAvailable": 0 }), pods("x", 2, 2), [2, 0, 2, 2]),
        // Pods without a controller count where no scale is needed.
        (json!({ "minAvailable": 1 }), pods("", 2, 2), [2, 1, 2, 1]),
        // Percentages and maxUnavailable refer to the controllers' scales; both round up.
        (json!({ "minAvailable": "25%" }), pods("x", 4, 4), [10, 3, 4, 1]),
        (json!({ "minAvailable": "100%" }), pods("z", 3, 3), [3, 3, 3, 0]),
        (json!({ "maxUnavailable": "25%" }), pods("x", 9, 9), [10, 7, 9, 2]),
        (json!({ "maxUnavailable": "50%" }), pods("z", 3, 3), [3, 1, 3, 2]),
        (json!({ "maxUnavailable": 1 }), pods("z", 3, 3), [3, 2, 3, 1]),
        (json!({ "maxUnavailable": 5 }), pods("z", 3, 3), [3, 0, 3, 3]),
        (json!({ "maxUnavailable": 0 }), pods("z", 3, 3), [3, 3, 3, 0]),
        // Two controllers are added up; two ReplicaSets of one Deployment are not.
        (json!({ "maxUnavailable": 8 }), both, [13, 5, 6, 1]),
        (json!({ "maxUnavailable": 8 }), [pods("x", 2, 2), pods("y", 2, 2)].concat(), [10, 2, 4, 2]),
        // A budget that matches nothing yet allows nothing.
        (json!({ "minAvailable": 0 }), vec![], [0, 0, 0, 0]),
    ] {
        let plan = plan(&budget(spec.clone(), Value::Null), &pods, 0);
        let status = status(&plan);
        let fields = ["expectedPods", "desiredHealthy", "currentHealthy", "disruptionsAllowed"];
        assert_eq!(fields.map(|field| status[field].as_i64().expect("a count")), counts, "{spec}");
        let (allowed, reason) = if counts[3] > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
        let condition = &status["conditions"][0];
        assert_eq!(
            (condition["type"].as_str(), condition["status"].as_str(), condition["reason"].as_str()),
            (Some("DisruptionAllowed"), Some(allowed), Some(reason)),
            "{spec}"
        );
        assert_eq!((&status["observedGeneration"], &condition["observedGeneration"]), (&json!(3), &json!(3)));
    }
}

/// A status does not change the desired scale: it must wake no budget.
#[test]
fn only_another_generation_can_be_another_scale() {
    let known = |uid: &str, generation: Option<i64>, revision: &str| -> Option<Arc<Partial>> {
        let metadata =
            json!({ "name": "x", "namespace": "a", "uid": uid, "generation": generation, "resourceVersion": revision });
        Some(Arc::new(serde_json::from_value(json!({ "metadata": metadata })).unwrap()))
    };
    for (why, old, new, expected) in [
        ("another status", known("u", Some(2), "5"), known("u", Some(2), "6"), false),
        ("another spec", known("u", Some(2), "5"), known("u", Some(3), "6"), true),
        ("a namesake", known("u", Some(1), "5"), known("v", Some(1), "9"), true),
        ("it comes", None, known("u", Some(1), "5"), true),
        ("it goes", known("u", Some(1), "5"), None, true),
        ("a kind that does not count", known("u", None, "5"), known("u", None, "6"), true),
    ] {
        let change = Delta { key: Key::new("a", "x"), old, new, undecodable: None };
        assert_eq!(scales::may_differ(&change), expected, "{why}");
    }
}

#[test]
fn what_has_been_counted_is_not_written_again() {
    let old = budget(json!({ "minAvailable": 2 }), Value::Null);
    let pods = pods("x", 4, 4);
    let mut new = old.clone();
    new.status = serde_json::from_value(status(&plan(&old, &pods, 0))).unwrap();
    assert!(plan(&new, &pods, 50).is_empty());
    // One fewer is allowed: the transition time stays, as the condition's status is the same.
    let fewer = status(&plan(&new, &pods[..3], 50));
    assert_eq!((fewer["disruptionsAllowed"].clone(), fewer["conditions"].clone()), (json!(1), Value::Null));
}

#[test]
fn an_evicted_pod_does_not_count_until_it_is_clear_that_it_stays() {
    let mut known = counted();
    known["disruptedPods"] = json!({ "x0": at(0).to_string(), "x1": at(50).to_string(), "gone": at(50).to_string() });
    let budget = budget(json!({ "minAvailable": 1 }), known);
    let mut pods = pods("x", 4, 4);
    pods[3]["metadata"]["deletionTimestamp"] = at(0).to_string().into();

    let soon = plan(&budget, &pods, 100);
    assert_eq!(soon.requeue_after.map(|wait| wait.as_secs()), Some(20), "until x0 is given up");
    let told = status(&soon);
    assert_eq!((told["currentHealthy"].clone(), told["disruptedPods"]["gone"].clone()), (json!(1), Value::Null));
    assert!(told["disruptedPods"].as_object().unwrap().contains_key("gone"), "it is taken out");
    assert!(soon.notes.is_empty(), "{:?}", soon.notes);

    let late = plan(&budget, &pods, 130);
    assert_eq!(late.requeue_after.map(|wait| wait.as_secs()), Some(40));
    assert_eq!(
        (status(&late)["currentHealthy"].clone(), status(&late)["disruptionsAllowed"].clone()),
        (json!(2), json!(1))
    );
    assert_eq!(late.notes[0].message, "Pod was expected by PDB a/b to be deleted but it wasn't");
}

#[test]
fn what_cannot_be_counted_allows_nothing() {
    let mut known = counted();
    known["disruptionsAllowed"] = 2.into();
    let most = budget(json!({ "maxUnavailable": 1 }), known);
    for (owner, why) in [
        ("nobody", "found no controllers for pod \"nobody0\""),
        ("job", "jobs.batch does not implement the scale subresource"),
    ] {
        let plan = plan(&most, &pods(owner, 2, 2), 0);
        let status = status(&plan);
        assert_eq!(status["disruptionsAllowed"], 0);
        let condition = &status["conditions"][0];
        assert_eq!((condition["reason"].as_str(), condition["message"].as_str()), (Some("SyncFailed"), Some(why)));
        assert_eq!(news(&plan)[0].message, format!("Failed to calculate the number of expected pods: {why}"));
    }
    let unmanaged = plan(&most, &pods("", 2, 2), 0);
    assert_eq!(news(&unmanaged)[0].reason, "UnmanagedPods");
    assert_eq!(
        (status(&unmanaged)["expectedPods"].clone(), status(&unmanaged)["disruptionsAllowed"].clone()),
        (Value::Null, json!(0))
    );
    // The scale of a custom resource is requested first.
    let asked = plan(&most, &pods("widget", 2, 2), 0);
    let questions: Vec<_> = asked.live_reads.iter().map(|question| question.resource.as_str()).collect();
    assert_eq!((questions, asked.is_empty(), asked.requeue_after), (vec!["widgets.e.com"], true, None));
    // A scale that the server cannot give now is requested again, and nothing is allowed meanwhile.
    let untold = plan(&most, &pods("mute", 2, 2), 0);
    assert_eq!(status(&untold)["conditions"][0]["message"], "the server is busy");
    assert_eq!(untold.requeue_after.map(|wait| wait.as_secs()), Some(5));
}

#[test]
fn a_pod_that_was_to_be_disrupted_and_was_not_says_so_no_longer() {
    let marked = |status: &str, reason: &str| {
        let mut pod = pod("p", "n", Some(0));
        pod["status"]["conditions"].as_array_mut().unwrap().push(json!({
            "type": "DisruptionTarget", "status": status, "reason": reason, "lastTransitionTime": at(0).to_string(),
        }));
        pod
    };
    let stale = |pod: Value, now: i64| disruption::stale(&object(pod), at(now));
    let early = stale(marked("True", "EvictionByEvictionAPI"), 100);
    assert_eq!((early.is_empty(), early.requeue_after.map(|wait| wait.as_secs())), (true, Some(20)));
    let late = stale(marked("True", "EvictionByEvictionAPI"), 120);
    assert_eq!(lines(&late), ["patch pods/p/status"]);
    let conditions = &late.writes().next().unwrap().request.body.as_ref().unwrap()["status"]["conditions"];
    assert_eq!((conditions[1]["status"].as_str(), conditions[1].get("reason")), (Some("False"), None));
    assert!(stale(marked("True", "TerminationByKubelet"), 120).is_empty());
    assert!(stale(marked("False", "EvictionByEvictionAPI"), 120).is_empty());
    let mut going = marked("True", "EvictionByEvictionAPI");
    going["metadata"]["deletionTimestamp"] = at(0).to_string().into();
    assert!(stale(going, 120).is_empty());
}

/// Waking a controller for a change evaluates the raw selector; the controller then counts by the parsed one.
#[test]
fn a_selector_says_the_same_as_it_stands_and_made_into_another() {
    let labels = [json!({}), json!({ "a": "b" }), json!({ "a": "c", "d": "" }), Value::Null];
    let expression = |operator: &str, values: Value| json!([{ "key": "a", "operator": operator, "values": values }]);
    let selectors = [
        json!({}),
        json!({ "matchLabels": { "a": "b" } }),
        json!({ "matchLabels": { "a": "c", "d": "" } }),
        json!({ "matchLabels": { "d": "" }, "matchExpressions": expression("In", json!(["b", "c"])) }),
        json!({ "matchExpressions": expression("In", json!(["b", "x"])) }),
        json!({ "matchExpressions": expression("NotIn", json!(["b"])) }),
        json!({ "matchExpressions": expression("NotIn", Value::Null) }),
        json!({ "matchExpressions": expression("Exists", Value::Null) }),
        json!({ "matchExpressions": expression("DoesNotExist", Value::Null) }),
        json!({ "matchExpressions": expression("Like", json!(["b"])) }),
    ];
    for selector in &selectors {
        let given = serde_json::from_value(selector.clone()).unwrap();
        for labels in &labels {
            let meta = serde_json::from_value(json!({ "labels": labels })).unwrap();
            let made = meta::selector(&given).is_some_and(|made| meta::matches(&made, &meta));
            assert_eq!(meta::selects(&given, &meta), made, "{selector} of {labels}");
        }
    }
}
