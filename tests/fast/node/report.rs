//! When a Pod's status is reported.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Pod, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use podwright::{
    api::Status,
    node::{
        pod::{Report, Standing, Wanted, Work},
        resize::Allocation,
    },
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

/// Whether this status is reported now.
fn tells(report: &mut Report, status: PodStatus, now: Timestamp) -> bool {
    let pod = Arc::new(pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] })));
    report.next(&pod, status, Standing { removed: false, gone: false, now }).is_some()
}

/// What its sources say of a Pod that gets what it wishes.
fn wanted(pod: Pod) -> Wanted {
    let pod = Arc::new(pod);
    Wanted { wish: pod.clone(), allocated: Allocation::of(&pod), pod, gone: false }
}

#[test]
fn the_steps_of_a_pods_making_wait_for_the_next_one() {
    let (start, millis) = (at(0), |ms| at(0) + SignedDuration::from_millis(ms));
    let fresh = || Report::new(&pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] })));

    // That it runs is reported at once, with everything before it.
    let mut report = fresh();
    assert!(!tells(&mut report, coming(), start));
    assert_eq!(report.held_until(), Some(millis(100)));
    assert!(!tells(&mut report, coming(), millis(60)));
    assert_eq!(report.held_until(), Some(millis(100)), "counted from the first step");
    assert!(tells(&mut report, status("Running", json!({ "running": {} })), millis(70)));
    assert_eq!(report.held_until(), None);

    // What takes longer is reported then.
    let mut report = fresh();
    assert!(!tells(&mut report, coming(), start));
    assert!(tells(&mut report, coming(), millis(100)));

    // Failures are reported at once.
    let wrong = status("Pending", json!({ "waiting": { "reason": "ErrImagePull" } }));
    assert!(tells(&mut fresh(), wrong, start));
}

/// The first rejection may be due to the server's outdated state.
#[test]
fn a_pod_that_ends_keeps_its_last_status_until_it_is_refused_again_and_again() {
    let mut ended = pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] }));
    ended.metadata.deletion_timestamp = Some(Time(at(0)));
    let mut report = Report::new(&ended);
    let mut ended = wanted(ended);
    let forbidden = || Status::forbidden("pods", "", "p", "not the node's");
    let last = || status("Succeeded", json!({ "terminated": { "exitCode": 0 } }));
    let (mut now, mut writes) = (at(0), 0);
    // Once the object itself is deleted, there is nothing more to report.
    loop {
        match report.next(&ended.pod, last(), Standing { removed: true, gone: false, now }) {
            Some(Work::WriteStatus { .. }) => writes += 1,
            other => {
                assert!(matches!(other, Some(Work::DeleteObject { .. })), "{other:?}");
                break;
            }
        }
        assert!(writes < 100);
        assert!(report.written(Err(forbidden()), &mut ended, now).is_none());
        let again = report.next(&ended.pod, last(), Standing { removed: true, gone: false, now });
        assert!(again.is_none(), "{again:?}");
        now = report.held_until().expect("it waits");
        assert_eq!(now, at(2 * writes));
    }
    assert!((3..20).contains(&writes), "{writes}");
}

/// What is in the way of a write is read, once; a server that cannot answer is left alone for a moment.
#[test]
fn a_write_that_is_not_taken_is_tried_again_after_a_while() {
    let running = || status("Running", json!({ "running": {} }));
    let mut newest = wanted((*stored(1, &coming())).clone());
    let mut report = Report::new(&newest.pod);
    let millis = |ms| at(0) + SignedDuration::from_millis(ms);
    let standing = |now| Standing { removed: false, gone: false, now };
    let conflict = || Status::conflict("pods", "", "web", "somebody was faster");
    assert!(matches!(report.next(&newest.pod, running(), standing(at(0))), Some(Work::WriteStatus { .. })));
    let read = report.written(Err(conflict()), &mut newest, at(0));
    assert!(matches!(read, Some(Work::ReadStatus { .. })), "{read:?}");
    assert!(report.next(&newest.pod, running(), standing(at(0))).is_none(), "one at a time");
    report.read(Ok((*stored(5, &coming())).clone()), &mut newest, at(0));
    assert_eq!(newest.pod.metadata.resource_version.as_deref(), Some("5"));
    assert!(report.next(&newest.pod, running(), standing(at(0))).is_some(), "on top of what the server has");
    // It is down.
    assert!(report.written(Err(Status::internal("no")), &mut newest, at(0)).is_none());
    assert!(report.next(&newest.pod, running(), standing(millis(100))).is_none());
    assert_eq!(report.held_until(), Some(millis(200)));
    assert!(report.next(&newest.pod, running(), standing(millis(200))).is_some());
    // Another Pod has its name.
    let mut other = (*stored(9, &coming())).clone();
    other.metadata.uid = Some("u2".into());
    assert!(report.written(Err(conflict()), &mut newest, at(1)).is_some());
    report.read(Ok(other), &mut newest, at(1));
    assert!(newest.gone);
}

/// A Pod as stored at a revision, with this status.
fn stored(revision: u64, status: &PodStatus) -> Arc<Pod> {
    let mut pod = pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] }));
    pod.metadata.resource_version = Some(revision.to_string());
    pod.status = Some(status.clone());
    Arc::new(pod)
}

#[test]
fn what_somebody_else_has_written_meanwhile_is_not_taken_for_our_own() {
    let running = || status("Running", json!({ "running": {} }));
    let standing = || Standing { removed: false, gone: false, now: at(0) };
    let mut newest = wanted((*stored(1, &coming())).clone());
    let mut report = Report::new(&newest.pod);
    assert!(report.next(&newest.pod, running(), standing()).is_some());
    // Our write becomes revision 2; before the response arrives, the watch delivers a later change.
    newest.pod = stored(3, &status("Pending", json!({ "waiting": {} })));
    report.saw(&newest.pod.status);
    report.written(Ok((*stored(2, &running())).clone()), &mut newest, at(0));
    assert_eq!(newest.pod.metadata.resource_version.as_deref(), Some("3"));
    assert!(report.next(&newest.pod, running(), standing()).is_some(), "it is told again");
    report.written(Ok((*stored(4, &running())).clone()), &mut newest, at(0));
    assert!(report.next(&newest.pod, running(), standing()).is_none(), "and that is all");
}

#[test]
fn the_mirror_of_a_static_pod_says_what_the_pod_is() {
    let running = || status("Running", json!({ "running": {} }));
    let standing = || Standing { removed: false, gone: false, now: at(0) };
    let mut own = (*stored(0, &coming())).clone();
    own.metadata.resource_version = None;
    own.metadata.annotations = Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    let mut report = Report::new(&own);
    let mut own = wanted(own);
    report.shown_by(stored(1, &coming()));
    assert!(report.next(&own.pod, running(), standing()).is_some());
    report.written(Ok((*stored(2, &running())).clone()), &mut own, at(0));
    report.shown_by(stored(2, &running()));
    report.shown_by(stored(1, &coming()));
    assert!(report.next(&own.pod, running(), standing()).is_none());
    report.shown_by(stored(3, &status("Failed", json!({ "waiting": {} }))));
    assert!(report.next(&own.pod, running(), standing()).is_some(), "somebody else has written it");
}

#[test]
fn whoever_goes_on_changing_a_status_is_answered_ever_more_seldom() {
    let running = || status("Running", json!({ "running": {} }));
    let mut newest = wanted((*stored(1, &coming())).clone());
    let mut report = Report::new(&newest.pod);
    let (mut revision, mut writes) = (1, Vec::new());
    // Ten minutes, in steps of a tenth of a second.
    for step in 0..6000u32 {
        let now = at(0) + SignedDuration::from_millis(100 * i64::from(step));
        let standing = Standing { removed: false, gone: false, now };
        if report.next(&newest.pod, running(), standing).is_none() {
            continue;
        }
        writes.push(step);
        revision += 2;
        report.written(Ok((*stored(revision, &running())).clone()), &mut newest, now);
        newest.pod = stored(revision + 1, &coming());
        report.saw(&newest.pod.status);
    }
    assert_eq!(writes[..2], [0, 1], "at once");
    assert!((10..30).contains(&writes.len()), "{writes:?}");
}

/// A running Pod with the given readiness of its containers.
fn ready(containers: &[bool]) -> PodStatus {
    let all = containers.iter().enumerate().map(|(n, ready)| {
        json!({ "name": format!("c{n}"), "image": "i:1", "imageID": "", "ready": ready, "restartCount": 0,
            "state": { "running": {} } })
    });
    let word = if containers.iter().all(|ready| *ready) { "True" } else { "False" };
    let conditions = json!([{ "type": "Initialized", "status": "True" }, { "type": "Ready", "status": word }]);
    let status = json!({ "phase": "Running", "conditions": conditions, "containerStatuses": all.collect::<Vec<_>>() });
    serde_json::from_value(status).unwrap()
}

/// A report whose writes the server accepts at once.
struct Told {
    report: Report,
    pod: Wanted,
    writes: Vec<i64>,
}

impl Told {
    fn new() -> Told {
        let pod = wanted((*stored(1, &coming())).clone());
        Told { report: Report::new(&pod.pod), pod, writes: Vec::new() }
    }

    /// Whether this is reported at that time, in milliseconds.
    fn tells(&mut self, status: &PodStatus, millis: i64) -> bool {
        let now = at(0) + SignedDuration::from_millis(millis);
        let standing = Standing { removed: false, gone: false, now };
        if self.report.next(&self.pod.pod, status.clone(), standing).is_none() {
            return false;
        }
        self.writes.push(millis);
        let revision = self.writes.len() as u64 + 1;
        self.report.written(Ok((*stored(revision, status)).clone()), &mut self.pod, now);
        true
    }
}

#[test]
fn each_container_that_becomes_ready_for_the_first_time_is_told_at_once() {
    let (mut told, mut all) = (Told::new(), [false; 150]);
    assert!(told.tells(&ready(&all), 0));
    for n in 0..all.len() {
        all[n] = true;
        assert!(told.tells(&ready(&all), n as i64), "{n}");
    }
}

/// A hundred and fifty containers, one of which turns every ten milliseconds.
#[test]
fn readiness_that_turns_back_and_forth_has_a_pace() {
    let (mut told, mut all) = (Told::new(), [true; 150]);
    assert!(told.tells(&ready(&all), 0));
    for millis in (10..60_000).step_by(10) {
        let n = millis as usize / 10 % all.len();
        all[n] = !all[n];
        told.tells(&ready(&all), millis);
    }
    let writes = &told.writes;
    assert_eq!(writes[..10], [0, 10, 20, 30, 40, 50, 60, 70, 80, 90], "seldom is often enough");
    assert!((60..200).contains(&writes.len()), "{} writes", writes.len());
    let late = writes.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(late <= 1000, "{late} ms");
    // Other changes are not delayed.
    let mut ended = ready(&all);
    assert!(!told.tells(&ready(&[false; 150]), 60_000));
    ended.container_statuses.as_mut().unwrap()[0].restart_count = 1;
    assert!(told.tells(&ended, 60_000));
    // Nor does it after a while without.
    for millis in (75_000..75_020).step_by(2) {
        assert!(told.tells(&ready(&[false; 150]), millis));
        assert!(told.tells(&ready(&[true; 150]), millis + 1));
    }
}

/// What is owed is owed no longer than it would have been.
#[test]
fn a_clock_that_is_set_back_holds_no_readiness() {
    let mut told = Told::new();
    assert!(told.tells(&ready(&[true]), 7_200_000));
    for millis in 0..100 {
        told.tells(&ready(&[millis % 2 == 0]), 7_200_000 + millis);
    }
    assert!(!told.tells(&ready(&[true]), 7_200_100) || !told.tells(&ready(&[false]), 7_200_101));
    assert!(told.tells(&ready(&[true]), 0) || told.tells(&ready(&[false]), 0));
    assert!(told.tells(&ready(&[true]), 1_000) || told.tells(&ready(&[false]), 1_000));
}
