//! When a Pod's status is told.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Pod, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
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

/// One of the server's, at a revision, with this status.
fn stored(revision: u64, status: &PodStatus) -> Arc<Pod> {
    let mut pod = pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] }));
    pod.metadata.resource_version = Some(revision.to_string());
    pod.status = Some(status.clone());
    Arc::new(pod)
}

#[test]
fn what_somebody_else_has_written_meanwhile_is_not_taken_for_our_own() {
    let running = || status("Running", json!({ "running": {} }));
    let client = || rpc::client("/nowhere".parse().unwrap(), "test");
    let standing = || Standing { removed: false, gone: false, now: at(0) };
    let mut newest = stored(1, &coming());
    let mut publisher = Publisher::new(&newest);
    let mut gone = false;
    assert!(publisher.next(client(), &newest, running(), standing()).is_some());
    // Ours is taken as revision 2; before the answer comes, the watch brings what somebody has made of it.
    newest = stored(3, &status("Pending", json!({ "waiting": {} })));
    publisher.saw(&newest.status);
    publisher.written(Ok((*stored(2, &running())).clone()), &mut newest, &mut gone);
    assert_eq!(newest.metadata.resource_version.as_deref(), Some("3"));
    assert!(publisher.next(client(), &newest, running(), standing()).is_some(), "it is told again");
    publisher.written(Ok((*stored(4, &running())).clone()), &mut newest, &mut gone);
    assert!(publisher.next(client(), &newest, running(), standing()).is_none(), "and that is all");
}

#[test]
fn the_mirror_of_a_static_pod_says_what_the_pod_is() {
    let running = || status("Running", json!({ "running": {} }));
    let client = || rpc::client("/nowhere".parse().unwrap(), "test");
    let standing = || Standing { removed: false, gone: false, now: at(0) };
    let mut own = (*stored(0, &coming())).clone();
    own.metadata.resource_version = None;
    own.metadata.annotations = Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    let mut own = Arc::new(own);
    let mut publisher = Publisher::new(&own);
    let mut gone = false;
    publisher.shown_by(stored(1, &coming()));
    assert!(publisher.next(client(), &own, running(), standing()).is_some());
    publisher.written(Ok((*stored(2, &running())).clone()), &mut own, &mut gone);
    publisher.shown_by(stored(2, &running()));
    publisher.shown_by(stored(1, &coming()));
    assert!(publisher.next(client(), &own, running(), standing()).is_none());
    publisher.shown_by(stored(3, &status("Failed", json!({ "waiting": {} }))));
    assert!(publisher.next(client(), &own, running(), standing()).is_some(), "somebody else has written it");
}

#[test]
fn whoever_goes_on_changing_a_status_is_answered_ever_more_seldom() {
    let running = || status("Running", json!({ "running": {} }));
    let client = || rpc::client("/nowhere".parse().unwrap(), "test");
    let mut newest = stored(1, &coming());
    let mut publisher = Publisher::new(&newest);
    let (mut revision, mut gone, mut writes) = (1, false, Vec::new());
    // Ten minutes, in steps of a tenth of a second.
    for step in 0..6000u32 {
        let now = at(0) + SignedDuration::from_millis(100 * i64::from(step));
        let standing = Standing { removed: false, gone: false, now };
        if publisher.next(client(), &newest, running(), standing).is_none() {
            continue;
        }
        writes.push(step);
        revision += 2;
        publisher.written(Ok((*stored(revision, &running())).clone()), &mut newest, &mut gone);
        newest = stored(revision + 1, &coming());
        publisher.saw(&newest.status);
    }
    assert_eq!(writes[..2], [0, 1], "at once");
    assert!((10..30).contains(&writes.len()), "{writes:?}");
}
