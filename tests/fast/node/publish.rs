//! When a Pod's status is told.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::PodStatus, apimachinery::pkg::apis::meta::v1::Time};
use podwright::{
    api::Status,
    client::rpc,
    node::publish::{Publisher, Standing},
};
use serde_json::{Value, json};

use super::{at, pod};

fn status(phase: &str, state: Value) -> PodStatus {
    let container =
        json!({ "name": "a", "image": "i:1", "imageID": "", "ready": false, "restartCount": 0, "state": state });
    serde_json::from_value(json!({ "phase": phase, "containerStatuses": [container] })).unwrap()
}

fn coming() -> PodStatus {
    status("Pending", json!({ "waiting": { "reason": "ContainerCreating" } }))
}

/// Whether this status is told now.
fn tells(publisher: &mut Publisher, status: PodStatus, now: Timestamp) -> bool {
    // Nothing is dialled before a call is awaited.
    let client = rpc::client("/nowhere".parse().unwrap(), "test");
    let pod = Arc::new(pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] })));
    publisher.next(client, &pod, status, Standing { removed: false, gone: false, now }).is_some()
}

#[test]
fn the_steps_of_a_pods_making_wait_for_the_next_one() {
    let (start, millis) = (at(0), |ms| at(0) + SignedDuration::from_millis(ms));
    let fresh = || Publisher::new(&pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] })));

    // That it runs is told at once, and all that came before with it.
    let mut publisher = fresh();
    assert!(!tells(&mut publisher, coming(), start));
    assert_eq!(publisher.held_until(), Some(millis(100)));
    assert!(!tells(&mut publisher, coming(), millis(60)));
    assert_eq!(publisher.held_until(), Some(millis(100)), "counted from the first step");
    assert!(tells(&mut publisher, status("Running", json!({ "running": {} })), millis(70)));
    assert_eq!(publisher.held_until(), None);

    // What takes longer is told then.
    let mut publisher = fresh();
    assert!(!tells(&mut publisher, coming(), start));
    assert!(tells(&mut publisher, coming(), millis(100)));

    // What is wrong is told at once.
    let wrong = status("Pending", json!({ "waiting": { "reason": "ErrImagePull" } }));
    assert!(tells(&mut fresh(), wrong, start));
}

/// The first refusal may come of what the server does not know yet.
#[test]
fn a_pod_that_ends_keeps_its_last_status_until_it_is_refused_again_and_again() {
    let mut ended = pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] }));
    ended.metadata.deletion_timestamp = Some(Time(at(0)));
    let mut ended = Arc::new(ended);
    let mut publisher = Publisher::new(&ended);
    let forbidden = || Status::forbidden("pods", "", "p", "not the node's");
    let (mut writes, mut gone) = (0, false);
    let last = || status("Succeeded", json!({ "terminated": { "exitCode": 0 } }));
    let standing = || Standing { removed: true, gone: false, now: at(0) };
    let client = rpc::client("/nowhere".parse().unwrap(), "test");
    // Once the object itself is deleted, there is nothing more to tell.
    while publisher.next(client.clone(), &ended, last(), standing()).is_some() && writes < 100 {
        publisher.written(Err(forbidden()), &mut ended, &mut gone);
        writes += 1;
    }
    assert!((3..20).contains(&writes), "{writes}");
}
