//! ReplicaSets: creation, deletion order, status.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{Pod, ReplicationController},
};
use podwright::{
    api::request::Verb,
    controllers::{
        Failure,
        replica_set::{self, Replicated},
        write::Write,
    },
};
use serde_json::{Value, json};

use super::{at, lines, object, pod, tries};

fn set(replicas: i32, min_ready: i32) -> Arc<ReplicaSet> {
    object(json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": { "name": "web", "namespace": "a", "uid": "rs", "generation": 3 },
        "spec": {
            "replicas": replicas, "minReadySeconds": min_ready, "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [] } },
        },
    }))
}

fn pods(all: Vec<Value>) -> Vec<Arc<Pod>> {
    all.into_iter().map(object).collect()
}

#[test]
fn missing_pods_are_created_in_a_slow_start() {
    let set = set(5, 0);
    let plan =
        replica_set::plan(&*set, &pods(vec![pod("one", "n", Some(0))]), &HashMap::new(), usize::MAX, at(0), None);
    let creates: Vec<&Write> = plan.writes().filter(|write| write.request.verb == Verb::Create).collect();
    assert_eq!((creates.len(), tries(&plan)), (4, 3));
    let request = &creates[0].request;
    assert_eq!((request.verb, request.resource.as_str()), (Verb::Create, "pods"));
    let body = request.body.as_ref().unwrap();
    assert_eq!(body["metadata"]["generateName"], "web-");
    assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "rs");
    assert_eq!(body["metadata"]["ownerReferences"][0]["blockOwnerDeletion"], true);
    assert_eq!(creates[0].done[0].message, "Created pod: {}");
}

#[test]
fn at_most_five_hundred_at_a_time() {
    let plan = replica_set::plan(&*set(2000, 0), &[], &HashMap::new(), usize::MAX, at(0), None);
    assert_eq!(plan.writes().filter(|write| write.request.verb == Verb::Create).count(), 500);
}

/// All Pods of a batch are in memory together, and the template's author chooses its size.
#[test]
fn of_large_pods_there_are_fewer_at_a_time() {
    let mut set = ReplicaSet::clone(&set(2000, 0));
    let made = |set: &ReplicaSet, bytes: usize| {
        let mut set = set.clone();
        let template = set.spec.as_mut().unwrap().template.as_mut().unwrap();
        let note = ("note".to_owned(), "x".repeat(bytes));
        template.metadata.as_mut().unwrap().annotations = Some([note].into());
        let plan = replica_set::plan(&set, &[], &HashMap::new(), usize::MAX, at(0), None);
        plan.writes().filter(|write| write.request.verb == Verb::Create).count()
    };
    assert_eq!((made(&set, 1_000), made(&set, 100_000), made(&set, 20_000_000)), (500, 83, 1));
    set.spec.as_mut().unwrap().replicas = Some(3);
    assert_eq!(made(&set, 100_000), 3);
}

#[test]
fn what_is_news_is_told_while_pods_are_still_made() {
    let has = |pods: &[Arc<Pod>], set: &ReplicaSet| {
        let plan = replica_set::plan(set, pods, &HashMap::new(), usize::MAX, at(0), None);
        assert!(plan.writes().any(|write| write.request.verb == Verb::Create), "it is not done");
        plan.report.map(|write| write.request.body.unwrap()["status"].clone())
    };
    let mut set = ReplicaSet::clone(&set(2000, 0));
    assert_eq!(has(&[], &set).expect("it has been seen")["observedGeneration"], 3);
    set.status = Some(replica_set::status(&set, &[], at(0), None));
    let (starts, ready) = (pod("a", "n", None), pod("b", "n", Some(0)));
    assert_eq!(has(&pods(vec![starts.clone()]), &set), None, "how many there are is about to change");
    assert_eq!(has(&pods(vec![starts.clone(), ready]), &set).expect("one is ready")["readyReplicas"], 1);
    set.metadata.generation = Some(4);
    assert_eq!(has(&pods(vec![starts]), &set).expect("it was resized")["observedGeneration"], 4);
}

#[test]
fn surplus_pods_go_in_this_order() {
    let cost = |mut pod: Value, cost: &str| {
        pod["metadata"]["annotations"] = json!({ "controller.kubernetes.io/pod-deletion-cost": cost });
        pod
    };
    let restarted = |mut pod: Value| {
        pod["status"]["containerStatuses"] =
            json!([{ "name": "c", "restartCount": 7, "image": "", "imageID": "", "ready": true }]);
        pod
    };
    let sidecar = |mut pod: Value, restarts: i32| {
        pod["spec"]["initContainers"] = json!([{ "name": "s", "restartPolicy": "Always" }, { "name": "i" }]);
        let status =
            |name: &str, n: i32| json!({ "name": name, "restartCount": n, "image": "", "imageID": "", "ready": true });
        pod["status"]["initContainerStatuses"] = json!([status("s", restarts), status("i", 9 - restarts)]);
        pod
    };
    let young = |mut pod: Value| {
        pod["metadata"]["creationTimestamp"] = at(-1).to_string().into();
        pod
    };
    // The first one named is deleted.
    for (why, first, second) in [
        ("not scheduled", pod("z", "", None), pod("a", "n", None)),
        ("not ready", pod("z", "n", None), pod("a", "n", Some(-500))),
        ("cheaper", cost(pod("z", "n", Some(-500)), "-5"), pod("a", "n", Some(-500))),
        ("on a crowded node", pod("z", "crowded", Some(-500)), pod("a", "n", Some(-500))),
        ("ready for a shorter time", pod("z", "n", Some(-5)), pod("a", "n", Some(-500))),
        ("restarted more often", restarted(pod("z", "n", Some(-500))), pod("a", "n", Some(-500))),
        ("younger", young(pod("z", "n", Some(-500))), pod("a", "n", Some(-500))),
        ("cost beats crowd", cost(pod("z", "n", Some(-500)), "1"), cost(pod("a", "crowded", Some(-500)), "2")),
        (
            "a cost that is no plain number is none",
            cost(pod("z", "n", Some(-500)), "-1"),
            cost(pod("a", "n", Some(-500)), "-x"),
        ),
        ("nor is one with a plus", cost(pod("z", "n", Some(-500)), "+9"), cost(pod("a", "n", Some(-500)), "1")),
        (
            "a sidecar's restarts count last",
            sidecar(pod("z", "n", Some(-500)), 3),
            sidecar(pod("a", "n", Some(-500)), 2),
        ),
        // Ages of the same magnitude count as equal.
        ("about as long ready", pod("1", "n", Some(-490)), pod("2", "n", Some(-500))),
        ("restarted more often, ready about as long", restarted(pod("z", "n", Some(-500))), pod("a", "n", Some(-490))),
        ("readiness beats cost", pod("z", "n", None), cost(pod("a", "n", Some(-500)), "-9")),
    ] {
        let crowd = HashMap::from([("crowded".to_owned(), 2), ("n".to_owned(), 1)]);
        let pods = pods(vec![second, first]);
        let victims = replica_set::victims(&pods, 1, &crowd, at(0));
        let expected = if why.starts_with("about") { "1" } else { "z" };
        assert_eq!(victims[0].metadata.name.as_deref(), Some(expected), "{why}");
    }
}

#[test]
fn the_order_of_many_pods_of_about_one_age_is_one() {
    // By upstream's own comparison 0 goes before 1, 1 before 2 and 2 before 0.
    let restarted = |mut pod: Value, count: usize| {
        pod["status"]["containerStatuses"] =
            json!([{ "name": "c", "restartCount": count, "image": "", "imageID": "", "ready": true }]);
        pod
    };
    let one = |n: usize| restarted(pod(&format!("{:03}", n * 37 % 300), "n", Some(-500 + (n % 3) as i64)), n % 5);
    let all = pods((0..300).map(one).collect());
    let names = |pods: &[Arc<Pod>], surplus| -> Vec<String> {
        let victims = replica_set::victims(pods, surplus, &HashMap::new(), at(0));
        victims.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect()
    };
    let first = names(&all, 299);
    for turn in [1, 100, 299] {
        let mut turned = all.clone();
        turned.rotate_left(turn);
        assert_eq!(names(&turned, 299), first);
    }
    assert_eq!(names(&all, 0), [""; 0]);
}

#[test]
fn surplus_pods_are_deleted_by_uid() {
    let pods = pods(vec![pod("a", "n", Some(0)), pod("b", "n", None), pod("c", "n", Some(0))]);
    let plan = replica_set::plan(&*set(2, 0), &pods, &HashMap::new(), usize::MAX, at(10), None);
    assert_eq!(lines(&plan), ["patch replicasets.apps/web/status", "delete pods/b: Deleted pod: b"]);
    let delete = plan.writes().last().unwrap();
    assert_eq!(delete.request.options.preconditions.as_ref().unwrap().uid.as_deref(), Some("uid-b"));
}

#[test]
fn a_deleted_replica_set_makes_no_pods() {
    let mut set = ReplicaSet::clone(&set(3, 0));
    set.metadata.deletion_timestamp = Some(at(0).into());
    assert_eq!(
        lines(&replica_set::plan(&set, &[], &HashMap::new(), usize::MAX, at(0), None)),
        ["patch replicasets.apps/web/status"]
    );
}

#[test]
fn available_is_ready_for_min_ready_seconds() {
    let pods = pods(vec![pod("a", "n", Some(0)), pod("b", "n", Some(20)), pod("c", "n", None)]);
    let plan = replica_set::plan(&*set(3, 30), &pods, &HashMap::new(), usize::MAX, at(35), None);
    assert_eq!(plan.requeue_after.map(|wait| wait.as_secs()), Some(15), "b becomes available then");
    let status = replica_set::status(&set(3, 30), &pods, at(35), None);
    let counts = (status.replicas, status.ready_replicas, status.available_replicas, status.fully_labeled_replicas);
    assert_eq!(counts, (3, Some(2), Some(1), Some(3)));
    assert_eq!(status.observed_generation, Some(3));
}

#[test]
fn a_failure_is_a_condition_until_it_is_over() {
    let failure = Failure { reason: "FailedCreate", message: "pods \"web\" is forbidden".into() };
    let status = replica_set::status(&set(1, 0), &[], at(0), Some(&failure));
    let condition = &status.conditions.as_ref().unwrap()[0];
    let told = (condition.type_.as_str(), condition.status.as_str(), condition.reason.as_deref());
    assert_eq!(told, ("ReplicaFailure", "True", Some("FailedCreate")));
    let mut set = ReplicaSet::clone(&set(1, 0));
    set.status = Some(status);
    assert_eq!(replica_set::status(&set, &[], at(9), None).conditions, None);
}

#[test]
fn pods_that_are_leaving_are_told_of() {
    let leaving = |name: &str, phase: &str| {
        let mut pod = pod(name, "n", Some(0));
        pod["metadata"]["deletionTimestamp"] = at(0).to_string().into();
        pod["status"]["phase"] = phase.into();
        pod
    };
    let pods = pods(vec![pod("a", "n", Some(0)), leaving("b", "Running"), leaving("c", "Succeeded")]);
    let status = replica_set::status(&set(1, 0), &pods, at(9), None);
    assert_eq!((status.replicas, status.ready_replicas, status.terminating_replicas), (1, Some(1), Some(1)));
    assert_eq!(
        lines(&replica_set::plan(&*set(1, 0), &pods, &HashMap::new(), usize::MAX, at(9), None)),
        ["patch replicasets.apps/web/status"]
    );
}

#[test]
fn a_replication_controller_is_a_replica_set_by_another_name() {
    let controller: Arc<ReplicationController> = object(json!({
        "metadata": { "name": "old", "namespace": "a", "uid": "rc", "generation": 2 },
        "spec": {
            "replicas": 2, "selector": { "app": "web" },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [] } },
        },
    }));
    let plan = replica_set::plan(&*controller, &[], &HashMap::new(), usize::MAX, at(0), None);
    let create = "create pods/old-: Created pod: {}";
    assert_eq!(lines(&plan), ["patch replicationcontrollers/old/status", create, create]);
    let write = plan.work.writes().next().unwrap();
    let owner = &write.request.body.as_ref().unwrap()["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["apiVersion"], &owner["kind"], &owner["uid"]),
        (&json!("v1"), &json!("ReplicationController"), &json!("rc"))
    );
    assert_eq!(write.done[0].about.kind.as_deref(), Some("ReplicationController"));

    let three = pods(vec![pod("a", "n", Some(0)), pod("b", "n", None), pod("c", "n", Some(0))]);
    let plan = replica_set::plan(&*controller, &three, &HashMap::new(), usize::MAX, at(9), None);
    assert_eq!(lines(&plan), ["patch replicationcontrollers/old/status", "delete pods/b: Deleted pod: b"]);
    let mut seen = ReplicationController::clone(&controller);
    let status = replica_set::status(&seen.as_set(), &[], at(0), None);
    seen = seen.with_status(status);
    let starts = pods(vec![pod("a", "n", None)]);
    let plan = replica_set::plan(&seen, &starts, &HashMap::new(), usize::MAX, at(9), None);
    assert_eq!(lines(&plan), [create], "how many there are is about to change");
    let failure = Failure { reason: "FailedCreate", message: "no".into() };
    let plan = replica_set::plan(&*controller, &three[..1], &HashMap::new(), usize::MAX, at(9), Some(&failure));
    assert_eq!(lines(&plan)[0], "patch replicationcontrollers/old/status");
    let status = &plan.writes().next().unwrap().request.body.as_ref().unwrap()["status"];
    let counts = ["replicas", "readyReplicas", "availableReplicas", "fullyLabeledReplicas", "observedGeneration"];
    assert_eq!(counts.map(|count| status[count].as_i64()), [1, 1, 1, 1, 2].map(Some));
    assert_eq!(
        (&status["conditions"][0]["type"], &status["conditions"][0]["status"]),
        (&json!("ReplicaFailure"), &json!("True"))
    );
}
