//! Each ended Pod is counted exactly once, in steps each of which may be followed by a crash.

use podwright::{
    api::{kinds, patch::strategic, request::PatchType},
    controllers::write::Guard,
};
use serde_json::{Value, json};

use super::*;

fn job() -> Case {
    Case::new(json!({ "completions": 5, "parallelism": 2, "backoffLimit": 100 }))
}

/// The counters and the uncounted Pods.
fn counts(case: &Case) -> (i64, i64, Value) {
    let outcome = case.outcome();
    let count = |field: &str| outcome[field].as_i64().unwrap_or(0);
    (count("succeeded"), count("failed"), outcome["uncountedTerminatedPods"].clone())
}

#[test]
fn an_end_is_counted_in_three_steps() {
    let (yes, no) = (|| ended("yes", 0, 90), || ended("no", 1, 95));
    let pending = json!({ "succeeded": ["yes"], "failed": ["no"] });
    // First the uids are recorded, only then the finalizers are removed.
    let first = job().pods([yes(), no()]);
    assert_eq!(counts(&first), (0, 0, pending.clone()));
    let expected = ["patch jobs.batch/work/status", "patch pods/yes", "patch pods/no"];
    assert_eq!(lines(&first.plan())[..3], expected);
    let rest = starved(&first.plan(), expected[0]);
    assert_eq!(rest, lines(&first.plan())[1..], "the status is written before anything else begins");
    let release = first.plan().writes().nth(1).unwrap().request.body.clone().unwrap();
    assert_eq!(release["metadata"]["$deleteFromPrimitiveList/finalizers"], json!([job::FINALIZER]));
    assert_eq!(release["metadata"]["resourceVersion"], Value::Null, "its agent may go on reporting: that is recorded");
    // A crash after the first step: they are released without being recorded again.
    let status = json!({ "uncountedTerminatedPods": pending, "ready": 0, "terminating": 0 });
    let second = job().status(status.clone()).pods([yes(), no()]);
    assert_eq!(counts(&second), (0, 0, status["uncountedTerminatedPods"].clone()));
    assert_eq!(lines(&second.plan()), ["patch pods/yes", "patch pods/no"]);
    // One is deleted, one released: both are counted, and only once.
    let third = job().status(status).pods([released(no())]);
    assert_eq!(counts(&third), (1, 1, json!({})));
    let fourth = job().status(third.outcome()).pods([released(no())]);
    assert_eq!(counts(&fourth), (1, 1, json!({})));
    assert_eq!(lines(&fourth.plan()), [""; 0]);
}

#[test]
fn other_finalizers_stay() {
    let mut pod = ended("x", 0, 90);
    pod["metadata"]["finalizers"] = json!(["example.com/mine", job::FINALIZER]);
    let plan = job().pods([pod.clone()]).plan();
    let release = &plan.writes().find(|write| write.request.resource == "pods").unwrap().request;
    assert_eq!(release.options.patch_type, Some(PatchType::Strategic));
    let schema = kinds::lookup("pods").expect("a kind").schema();
    let released = strategic::merge(&schema, &pod, release.body.as_ref().unwrap()).expect("a patch");
    assert_eq!(released["metadata"]["finalizers"], json!(["example.com/mine"]));
}

#[test]
fn what_may_be_stale_is_asked_of_the_server() {
    let status = || json!({ "uncountedTerminatedPods": { "failed": ["gone"] } });
    let guards = |case: &Case| case.plan().writes().next().unwrap().guards.clone();
    let old = |mut pod: Value| {
        pod["metadata"]["resourceVersion"] = "40".into();
        pod
    };
    // The informer shows Pods up to a later revision than the Job's, 50: nothing earlier is missed.
    assert_eq!(guards(&job().status(status()).pods([old(ended("x", 0, 90))])), []);
    let mut case = job().status(status()).pods([old(ended("x", 0, 90)), ended("y", 0, 90)]);
    case.seen = 45;
    let Guard::Finalizers { held, free, .. } = &guards(&case)[0] else { panic!("another guard") };
    // The end of y is newer; x may have been counted, and "gone" may not have been seen yet.
    assert_eq!((held.as_slice(), free.as_slice()), (&["x".to_owned()][..], &["gone".to_owned()][..]));
}

#[test]
fn at_most_500_uids_wait() {
    let all = (0..700).map(|n| ended(&format!("p{n}"), 0, 50));
    let case = Case::new(json!({ "completions": 700, "parallelism": 700 })).pods(all);
    assert_eq!(case.outcome()["uncountedTerminatedPods"]["succeeded"].as_array().unwrap().len(), 500);
    assert_eq!(moves(&case.plan()), (0, 0, 500));
    // An earlier controller recorded that, and ended before it released any.
    let waiting: Vec<String> = (0..500).map(|n| format!("p{n}")).collect();
    let all = (0..700).map(|n| ended(&format!("p{n}"), 0, 50));
    let case = Case::new(json!({ "completions": 700, "parallelism": 700 })).pods(all);
    let case = case.status(json!({ "uncountedTerminatedPods": { "succeeded": waiting } }));
    assert_eq!(moves(&case.plan()).2, 500, "those are let go");
}

#[test]
fn completed_indexes_are_a_set() {
    let spec = || json!({ "completions": 9, "parallelism": 9, "completionMode": "Indexed" });
    let yes = |index: i32| indexed(ended(&format!("p{index}"), 0, 90), index);
    let status = json!({ "completedIndexes": "2,3", "succeeded": 2 });
    let case = Case::new(spec()).status(status).pods([yes(4), yes(0), yes(3), yes(12), yes(8)]);
    assert_eq!((&case.outcome()["completedIndexes"], counts(&case)), (&json!("0,2-4,8"), (5, 0, json!({}))));
    assert_eq!(moves(&case.plan()).2, 5, "all are let go, the one beyond the Job's completions too");
    let fewer = json!({ "completions": 3, "parallelism": 3, "completionMode": "Indexed" });
    let case = Case::new(fewer).status(json!({ "completedIndexes": "0,2-4,8", "succeeded": 5 }));
    assert_eq!((&case.outcome()["completedIndexes"], case.outcome()["succeeded"].as_i64()), (&json!("0,2"), Some(2)));
}

#[test]
fn dismissed_pods_have_not_failed() {
    let spec = json!({ "completions": 5, "parallelism": 1 });
    let case = Case::new(spec.clone()).pods([pod("x", "Running"), pod("y", "Pending")]);
    let expected = ["patch pods/y", "delete pods/y: Deleted pod: y"];
    assert_eq!(lines(&case.plan()), expected, "first nothing holds it, then it goes");
    let dismissal = case.plan().writes().next().unwrap().request.body.clone().unwrap();
    assert_eq!(dismissal["metadata"]["resourceVersion"], "70", "had it ended meanwhile, that would count");
    // While it is being terminated, and when it has ended by a signal.
    for pod in [pod("y", "Running"), ended("y", 143, 95)] {
        let case = Case::new(spec.clone()).pods([released(deleted(pod, 90))]);
        assert_eq!((counts(&case).1, moves(&case.plan()).0), (0, 1));
    }
}

#[test]
fn a_job_that_is_deleted_lets_all_go() {
    let mut case = job().pods([pod("x", "Running"), ended("y", 0, 9)]);
    case.job["metadata"]["deletionTimestamp"] = at(99).to_string().into();
    assert_eq!(lines(&case.plan()), ["patch jobs.batch/work/status", "patch pods/x", "patch pods/y"]);
    assert_eq!(counts(&case), (0, 0, json!({ "succeeded": ["y"] })));
}
