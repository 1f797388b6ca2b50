//! Pods of which the server remembers more than the machine: a backup was restored, or the machine's disk is new.

use k8s_openapi::api::core::v1::Pod;
use podwright::node::{
    plan::{self, Action},
    pod::Intent,
    restore_status::recall,
    status::{Host, status},
};
use serde_json::{Value, json};

use super::{Known, at, pod};

fn remembered(policy: &str, statuses: Value) -> (Pod, Known) {
    let containers = json!([{ "name": "a", "image": "i:1" }, { "name": "b", "image": "i:1" }]);
    let mut pod = pod(json!({ "restartPolicy": policy, "containers": containers }));
    let told = json!({ "phase": "Running", "startTime": at(0), "containerStatuses": statuses });
    pod.status = Some(serde_json::from_value(told).unwrap());
    let (seen, progress) = recall(&pod, at(100));
    (pod, Known { intent: Intent::Run, seen, progress })
}

fn ended(name: &str, code: i32) -> Value {
    let terminated = json!({ "exitCode": code, "reason": "Error", "message": "bye", "startedAt": at(1),
        "finishedAt": at(5), "containerID": "podwright://u1_0/x.2" });
    json!({ "name": name, "image": "i:1", "imageID": "sha256:1", "ready": false, "restartCount": 2,
        "containerID": "podwright://u1_0/x.2", "started": false, "lastState": {}, "resources": {},
        "state": { "terminated": terminated } })
}

fn running(name: &str) -> Value {
    json!({ "name": name, "image": "i:1", "imageID": "sha256:1", "ready": true, "restartCount": 2, "started": true,
        "containerID": "podwright://u1_0/y.2", "state": { "running": { "startedAt": at(1) } } })
}

fn shown(pod: &Pod, known: &Known) -> Value {
    serde_json::to_value(status(pod, known.inputs(), &Host::default(), at(200))).unwrap()
}

#[test]
fn what_ended_for_good_stays_as_it_ended() {
    let (pod, seen) = remembered("Never", json!([ended("a", 0), ended("b", 3)]));
    assert_eq!(plan::plan(&pod, seen.inputs(), at(100)).actions, [Action::Finish]);
    let shown = shown(&pod, &seen);
    assert_eq!(shown["phase"], "Failed");
    assert_eq!(shown["containerStatuses"], json!([ended("a", 0), ended("b", 3)]));
}

#[test]
fn what_ended_for_good_stays_so_while_others_start_again() {
    let (pod, seen) = remembered("OnFailure", json!([ended("a", 0), ended("b", 3)]));
    let actions = plan::plan(&pod, seen.inputs(), at(100)).actions;
    assert!(!actions.contains(&Action::Pull("a".into())) && actions.contains(&Action::Pull("b".into())), "{actions:?}");
    let shown = shown(&pod, &seen);
    assert_eq!(shown["containerStatuses"][0], ended("a", 0));
    let second = &shown["containerStatuses"][1];
    assert_eq!(second["state"]["waiting"]["reason"], "ContainerCreating");
    assert_eq!(second["lastState"], ended("b", 3)["state"]);
    assert_eq!(second["restartCount"], 2);
}

/// One that was stopped for other resources or another image, and was waiting for its new start when all was lost.
#[test]
fn what_was_to_be_started_anew_is() {
    let mut anew = ended("a", 0);
    anew["lastState"] = anew["state"].take();
    anew["state"] = json!({ "waiting": { "reason": "ContainerCreating" } });
    let (pod, seen) = remembered("OnFailure", json!([anew, ended("b", 0)]));
    let actions = plan::plan(&pod, seen.inputs(), at(100)).actions;
    assert!(actions.contains(&Action::Pull("a".into())) && !actions.contains(&Action::Pull("b".into())), "{actions:?}");
}

#[test]
fn what_ran_is_lost() {
    let (pod, seen) = remembered("Never", json!([ended("a", 0), running("b")]));
    assert_eq!(plan::plan(&pod, seen.inputs(), at(100)).actions, [Action::Finish]);
    let shown = shown(&pod, &seen);
    assert_eq!(shown["containerStatuses"][0], ended("a", 0));
    let lost = &shown["containerStatuses"][1]["state"]["terminated"];
    assert_eq!((&lost["exitCode"], &lost["reason"]), (&json!(137), &json!("ContainerStatusUnknown")));
    let (pod, seen) = remembered("Always", json!([running("a"), running("b")]));
    let actions = plan::plan(&pod, seen.inputs(), at(100)).actions;
    assert!(actions.contains(&Action::Pull("a".into())), "{actions:?}");
    assert_eq!(seen.seen.container("a").next_restart(), 3);
}

#[test]
fn what_is_over_is_not_looked_at_again() {
    let (mut pod, _) = remembered("Never", json!([ended("a", 0), ended("b", 0)]));
    pod.status.as_mut().unwrap().phase = Some("Succeeded".into());
    assert!(recall(&pod, at(100)).0.containers.is_empty());
}
