//! Jobs: which Pods are created and terminated, how ended Pods are counted, how a Job finishes. The cases are upstream's documented
//! ones.

mod counting;
mod endings;
mod parts;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use podwright::{
    api::Verb,
    client::{Delta, Key},
    controllers::{
        Failure, Plan,
        job::{self, Inputs, wake},
    },
};
use serde_json::{Value, json};

use super::{at, lines, object, starved};

/// A Job, a status and its Pods, as one reconcile sees them.
struct Case {
    job: Value,
    pods: Vec<Value>,
    now: Timestamp,
    failure: Option<Failure>,
    seen: u64,
    last_success: Option<Timestamp>,
}

impl Case {
    /// Started at 0, it is now 100.
    fn new(spec: Value) -> Case {
        let mut full = json!({
            "parallelism": 1, "backoffLimit": 6, "suspend": false, "completionMode": "NonIndexed",
            "podReplacementPolicy": "TerminatingOrFailed",
            "selector": { "matchLabels": { "job": "work" } },
            "template": {
                "metadata": { "labels": { "job": "work" } },
                "spec": { "restartPolicy": "Never", "containers": [{ "name": "c" }], "initContainers": [{ "name": "i" }] },
            },
        });
        for (key, value) in spec.as_object().expect("a spec is an object") {
            full[key] = value.clone();
        }
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": { "name": "work", "namespace": "a", "uid": "job", "resourceVersion": "50" },
            "spec": full,
            "status": { "startTime": at(0).to_string() },
        });
        Case { job, pods: Vec::new(), now: at(100), failure: None, seen: 1000, last_success: None }
    }

    fn status(mut self, status: Value) -> Case {
        self.job["status"] = json!({ "startTime": at(0).to_string() });
        for (key, value) in status.as_object().expect("a status is an object") {
            self.job["status"][key] = value.clone();
        }
        self
    }

    fn pods(mut self, pods: impl IntoIterator<Item = Value>) -> Case {
        self.pods.extend(pods);
        self
    }

    fn plan(&self) -> Plan {
        let job: Arc<Job> = object(self.job.clone());
        let pods: Vec<Arc<Pod>> = self.pods.iter().cloned().map(object).collect();
        let failure = self.failure.as_ref();
        let (seen, now, most, last_success) = (self.seen, self.now, usize::MAX, self.last_success);
        job::plan(&Inputs { job: &job, pods: &pods, last_success, seen, now, failure, most })
    }

    /// The status that the plan writes.
    fn outcome(&self) -> Value {
        let mut status = self.job["status"].clone();
        for write in self.plan().writes().filter(|write| write.request.subresource.is_some()) {
            json_patch::merge(&mut status, &write.request.body.as_ref().unwrap()["status"]);
        }
        status
    }

    /// Its conditions: type, status, reason and message of each.
    fn conditions(&self) -> Vec<String> {
        let outcome = self.outcome();
        let all = outcome["conditions"].as_array().cloned().unwrap_or_default();
        let text = |condition: &Value, key: &str| condition[key].as_str().unwrap_or_default().to_owned();
        let told = |c: &Value| {
            format!("{}={} {}: {}", text(c, "type"), text(c, "status"), text(c, "reason"), text(c, "message"))
        };
        all.iter().map(told).collect()
    }
}

/// A Pod of the Job, with its finalizer.
fn pod(name: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "a", "uid": name, "resourceVersion": "70", "labels": { "job": "work" },
            "annotations": {}, "finalizers": [job::FINALIZER], "creationTimestamp": at(1).to_string(),
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": "work", "uid": "job", "controller": true,
            }],
        },
        "spec": { "containers": [{ "name": "c" }], "nodeName": "n" },
        "status": { "phase": phase },
    })
}

/// A Pod whose only container ended at a time with an exit code.
fn ended(name: &str, code: i32, time: i64) -> Value {
    let mut pod = pod(name, if code == 0 { "Succeeded" } else { "Failed" });
    let state = json!({ "terminated": { "exitCode": code, "finishedAt": at(time).to_string() } });
    pod["status"]["containerStatuses"] =
        json!([{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state }]);
    pod
}

fn indexed(mut pod: Value, index: i32) -> Value {
    pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] = index.to_string().into();
    pod
}

/// Its end has been counted: it has no finalizer any more.
fn released(mut pod: Value) -> Value {
    pod["metadata"]["finalizers"] = json!([]);
    pod
}

fn deleted(mut pod: Value, time: i64) -> Value {
    pod["metadata"]["deletionTimestamp"] = at(time).to_string().into();
    pod["metadata"]["deletionGracePeriodSeconds"] = 0.into();
    pod
}

/// How many Pods a plan creates, deletes and releases.
fn moves(plan: &Plan) -> (usize, usize, usize) {
    let lines = lines(plan);
    let count = |prefix: &str| lines.iter().filter(|line| line.starts_with(prefix)).count();
    (count("create pods/"), count("delete pods/"), count("patch pods/"))
}

#[test]
fn as_many_pods_as_there_is_work_left() {
    let running = |n: usize| (0..n).map(|n| pod(&format!("r{n}"), "Running")).collect::<Vec<_>>();
    for (why, spec, status, pods, expected) in [
        ("all of them", json!({ "completions": 3, "parallelism": 3 }), json!({}), vec![], (3, 0, 0)),
        ("as many at once as allowed", json!({ "completions": 9, "parallelism": 2 }), json!({}), vec![], (2, 0, 0)),
        ("what is missing", json!({ "completions": 9, "parallelism": 4 }), json!({}), running(1), (3, 0, 0)),
        (
            "no more than are left",
            json!({ "completions": 5, "parallelism": 4 }),
            json!({ "succeeded": 3 }),
            running(1),
            (1, 0, 0),
        ),
        (
            "none is missing",
            json!({ "completions": 5, "parallelism": 2 }),
            json!({ "active": 2, "ready": 0, "terminating": 0 }),
            running(2),
            (0, 0, 0),
        ),
        ("too many", json!({ "completions": 5, "parallelism": 2 }), json!({}), running(5), (0, 3, 3)),
        ("parallelism 0", json!({ "completions": 5, "parallelism": 0 }), json!({}), running(2), (0, 2, 2)),
        ("a work queue", json!({ "parallelism": 3 }), json!({}), running(1), (2, 0, 0)),
        ("a work queue that is empty", json!({ "parallelism": 3 }), json!({ "succeeded": 1 }), running(1), (0, 0, 0)),
        ("500 at a time", json!({ "completions": 900, "parallelism": 900 }), json!({}), vec![], (500, 0, 0)),
        ("suspended", json!({ "completions": 3, "parallelism": 3, "suspend": true }), json!({}), running(2), (0, 2, 2)),
    ] {
        let plan = Case::new(spec).status(status).pods(pods).plan();
        assert_eq!(moves(&plan), expected, "{why}: {:#?}", lines(&plan));
    }
}

#[test]
fn a_pod_is_made_of_the_template() {
    let plan = Case::new(json!({ "completions": 1 })).plan();
    let create = plan.writes().find(|write| write.request.verb == Verb::Create).expect("a creation");
    assert_eq!(create.done[0].message, "Created pod: {}");
    let body = create.request.body.as_ref().unwrap();
    assert_eq!(body["metadata"]["generateName"], "work-");
    assert_eq!(body["metadata"]["finalizers"], json!(["batch.kubernetes.io/job-tracking"]));
    assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "job");
    assert_eq!(body["metadata"]["labels"], json!({ "job": "work" }));
    assert_eq!(body["spec"]["hostname"], Value::Null);
}

#[test]
fn a_pod_of_an_indexed_job_knows_its_index() {
    let case = Case::new(json!({ "completions": 4, "parallelism": 4, "completionMode": "Indexed" }))
        .status(json!({ "completedIndexes": "1", "succeeded": 1 }))
        .pods([indexed(pod("x", "Running"), 0)]);
    let plan = case.plan();
    let bodies: Vec<&Value> = plan
        .writes()
        .filter(|write| write.request.verb == Verb::Create)
        .map(|w| w.request.body.as_ref().unwrap())
        .collect();
    let annotation = |body: &Value| body["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"].clone();
    assert_eq!(bodies.iter().map(|body| annotation(body)).collect::<Vec<_>>(), ["2", "3"]);
    let body = bodies[0];
    assert_eq!(body["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"], "2");
    assert_eq!((&body["metadata"]["generateName"], &body["spec"]["hostname"]), (&json!("work-2-"), &json!("work-2")));
    for containers in ["containers", "initContainers"] {
        let variable = &body["spec"][containers][0]["env"][0];
        assert_eq!(variable["name"], "JOB_COMPLETION_INDEX");
        let path = &variable["valueFrom"]["fieldRef"]["fieldPath"];
        assert_eq!(path, "metadata.labels['batch.kubernetes.io/job-completion-index']");
    }
}

#[test]
fn of_an_index_one_pod_is_enough() {
    let running = |name, index| indexed(pod(name, "Running"), index);
    let spec = json!({ "completions": 2, "parallelism": 2, "completionMode": "Indexed" });
    let pending = indexed(pod("pending", "Pending"), 0);
    let plan = Case::new(spec)
        .pods([running("a", 0), pending, running("b", 1), running("beyond", 2), pod("none", "Running")])
        .plan();
    let mut gone = lines(&plan);
    gone.retain(|line| line.starts_with("delete"));
    gone.sort();
    assert_eq!(
        gone,
        [
            "delete pods/beyond: Deleted pod: beyond",
            "delete pods/none: Deleted pod: none",
            "delete pods/pending: Deleted pod: pending",
        ]
    );
}

#[test]
fn another_try_waits_for_longer_each_time() {
    let spec = || json!({ "completions": 2, "parallelism": 1, "backoffLimit": 20 });
    let failures = |n: i64| (0..n).map(|i| released(ended(&format!("f{i}"), 1, i))).collect::<Vec<_>>();
    for (failed, wait) in [(1, 10), (2, 20), (3, 40), (6, 320), (7, 360), (9, 360)] {
        let mut case = Case::new(spec()).status(json!({ "failed": failed })).pods(failures(failed));
        case.now = at(failed - 1);
        let plan = case.plan();
        assert_eq!(
            (moves(&plan).0, plan.requeue_after.map(|wait| wait.as_secs())),
            (0, Some(wait)),
            "{failed} failures"
        );
        case.now = at(failed - 1 + wait as i64);
        assert_eq!(moves(&case.plan()).0, 1, "{failed} failures, {wait} s later");
    }
    // A success in between ends the history.
    let pods = [released(ended("f", 1, 0)), released(ended("s", 0, 5)), released(ended("g", 1, 95))];
    let case = Case::new(spec()).status(json!({ "failed": 2, "succeeded": 1 })).pods(pods);
    assert_eq!(case.plan().requeue_after.map(|wait| wait.as_secs()), Some(5), "one failure since");
    // The same where it is counted, and looked at no more.
    let pods = [released(ended("f", 1, 0)), released(ended("g", 1, 95))];
    let mut case = Case::new(spec()).status(json!({ "failed": 2, "succeeded": 1 })).pods(pods);
    for (last_success, wait) in [(None, Some(15)), (Some(at(5)), Some(5)), (Some(at(96)), None)] {
        case.last_success = last_success;
        assert_eq!(case.plan().requeue_after.map(|wait| wait.as_secs()), wait, "{last_success:?}");
    }
    // Two of three were deleted: the third is not the first.
    let left = |status: Value| {
        let case = Case::new(json!({ "completions": 5 })).status(status).pods([released(ended("f", 1, 95))]);
        case.plan().requeue_after.map(|wait| wait.as_secs())
    };
    assert_eq!(left(json!({ "failed": 3 })), Some(35));
    assert_eq!(left(json!({ "failed": 3, "succeeded": 1 })), Some(5), "there nobody knows which came before");
}

#[test]
fn a_pod_that_is_being_deleted_is_replaced_at_once_or_later() {
    for (policy, expected) in [("TerminatingOrFailed", 1), ("Failed", 0)] {
        let mut case = Case::new(json!({ "completions": 1, "podReplacementPolicy": policy }));
        case.pods.push(deleted(pod("x", "Running"), 50));
        case.now = at(200);
        assert_eq!(moves(&case.plan()).0, expected, "{policy}");
        // Uncounted failures already count, by the same rule.
        let uncounted = case.outcome()["uncountedTerminatedPods"].clone();
        assert_eq!(uncounted == json!({ "failed": ["x"] }), expected == 1, "{policy}: {uncounted}");
        assert_eq!(case.outcome()["terminating"], 1, "{policy}");
    }
}

#[test]
fn a_failed_creation_is_no_reason_to_say_nothing() {
    let mut case = Case::new(json!({ "completions": 3, "parallelism": 3 })).pods([pod("x", "Running")]);
    assert_eq!(moves(&case.plan()).0, 2);
    assert_eq!(lines(&case.plan()).iter().filter(|line| line.contains("/status")).count(), 0, "Pods come first");
    case.failure = Some(Failure { reason: "FailedCreate", message: "no".into() });
    assert_eq!(lines(&case.plan())[0], "patch jobs.batch/work/status");
    assert_eq!(case.outcome()["active"], 1);
}

#[test]
fn what_only_moves_counts_may_wait() {
    let change = |old: Value, new: Value| Delta {
        key: Key::new("a", "x"),
        old: Some(object(old)),
        new: Some(object(new)),
        undecodable: None,
    };
    let with = |mut pod: Value, path: &str, value: Value| {
        *pod.pointer_mut(path).expect("it is there") = value;
        pod
    };
    let ready = |status: &str| {
        let mut pod = pod("x", "Running");
        pod["status"]["conditions"] = json!([{ "type": "Ready", "status": status }]);
        pod
    };
    let restarted = |count: i32| {
        let mut pod = pod("x", "Running");
        pod["status"]["containerStatuses"] =
            json!([{ "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": count }]);
        pod
    };
    for (why, old, new, urgent) in [
        ("it starts", pod("x", "Pending"), pod("x", "Running"), false),
        ("it is ready", ready("False"), ready("True"), false),
        ("it has succeeded", pod("x", "Running"), ended("x", 0, 90), true),
        ("it is being deleted", pod("x", "Running"), deleted(pod("x", "Running"), 90), true),
        ("it has gone on to end", deleted(pod("x", "Running"), 90), deleted(ended("x", 1, 95), 90), true),
        ("a container was restarted", restarted(1), restarted(2), true),
        ("it is somebody else's", pod("x", "Running"), with(pod("x", "Running"), "/metadata/labels", json!({})), true),
        ("another index", indexed(pod("x", "Running"), 1), indexed(pod("x", "Running"), 2), true),
        ("nothing holds it", pod("x", "Running"), released(pod("x", "Running")), true),
    ] {
        assert_eq!(wake::is_urgent(&change(old, new)), urgent, "{why}");
    }
    let (one, none) = (change(pod("x", "Pending"), pod("x", "Pending")), || None);
    assert!(wake::is_urgent(&Delta { old: none(), ..one.clone() }), "it is there");
    assert!(wake::is_urgent(&Delta { new: none(), ..one }), "it is gone");
}
