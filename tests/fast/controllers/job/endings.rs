//! How Jobs finish, and what they report about it.

use serde_json::{Value, json};

use super::*;

fn events(plan: &Plan) -> Vec<String> {
    let done = plan.writes().flat_map(|write| &write.done);
    { done }.chain(&plan.notes).map(|note| format!("{}: {}", note.reason, note.message)).collect()
}

#[test]
fn a_job_completes_when_all_is_counted() {
    let spec = || json!({ "completions": 1 });
    let met = "SuccessCriteriaMet=True CompletionsReached: Reached expected number of succeeded pods";
    let complete = "Complete=True CompletionsReached: Reached expected number of succeeded pods";
    let first = Case::new(spec()).pods([ended("x", 0, 90)]);
    assert_eq!(first.conditions(), [met]);
    let second = Case::new(spec()).status(first.outcome()).pods([released(ended("x", 0, 90))]);
    assert_eq!(second.conditions(), [met, complete]);
    assert_eq!(second.outcome()["completionTime"].as_str().unwrap().parse::<Timestamp>().unwrap(), at(100));
    assert_eq!((&second.outcome()["succeeded"], &second.outcome()["uncountedTerminatedPods"]), (&json!(1), &json!({})));
    assert_eq!(events(&second.plan()), ["Completed: Job completed"]);
    // Not while one of its Pods is still terminating.
    let going = released(deleted(pod("y", "Running"), 90));
    let waits = Case::new(spec()).status(first.outcome()).pods([released(ended("x", 0, 90)), going]);
    assert_eq!(waits.conditions(), [met]);
}

#[test]
fn a_work_queue_completes_when_one_has_succeeded_and_none_runs() {
    let spec = || json!({ "parallelism": 3 });
    let status = || json!({ "succeeded": 1 });
    assert_eq!(Case::new(spec()).status(status()).pods([pod("x", "Running")]).conditions(), [""; 0]);
    let done = Case::new(spec()).status(status());
    assert_eq!(done.conditions().len(), 2, "{:?}", done.conditions());
}

#[test]
fn a_job_without_work_completes_at_once() {
    let done = Case::new(json!({ "completions": 0 }));
    assert_eq!(events(&done.plan()), ["Completed: Job completed"]);
}

#[test]
fn jobs_fail_for_these_reasons() {
    let failed = |n: usize| (0..n).map(|n| ended(&format!("f{n}"), 7, 20)).collect::<Vec<_>>();
    let restarted = |count: i32| {
        let mut pod = pod("r", "Running");
        pod["status"]["containerStatuses"] =
            json!([{ "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": count }]);
        vec![pod]
    };
    let again = |limit: i32| {
        let template = json!({
            "metadata": { "labels": { "job": "work" } },
            "spec": { "restartPolicy": "OnFailure", "containers": [{ "name": "c" }] },
        });
        json!({ "completions": 1, "backoffLimit": limit, "template": template })
    };
    let limit = "FailureTarget=True BackoffLimitExceeded: Job has reached the specified backoff limit";
    let late = "FailureTarget=True DeadlineExceeded: Job was active longer than specified deadline";
    let policy = |action: &str| {
        let codes = json!({ "operator": "In", "values": [7] });
        json!({
            "completions": 3, "backoffLimit": 1, "podReplacementPolicy": "Failed",
            "podFailurePolicy": { "rules": [{ "action": action, "onExitCodes": codes }] },
        })
    };
    let bug = "FailureTarget=True PodFailurePolicy: \
               Container c for pod a/f0 failed with exit code 7 matching FailJob rule at index 0";
    for (why, spec, pods, expected) in [
        ("as many as allowed", json!({ "completions": 3, "backoffLimit": 2 }), failed(2), None),
        ("one more", json!({ "completions": 3, "backoffLimit": 2 }), failed(3), Some(limit)),
        ("none allowed", json!({ "completions": 3, "backoffLimit": 0 }), failed(1), Some(limit)),
        ("fewer restarts", again(3), restarted(2), None),
        ("too many restarts", again(3), restarted(3), Some(limit)),
        ("none allowed, none made", again(0), restarted(0), None),
        ("no restart allowed", again(0), restarted(1), Some(limit)),
        ("in time", json!({ "activeDeadlineSeconds": 101 }), vec![], None),
        ("late", json!({ "activeDeadlineSeconds": 100 }), vec![pod("x", "Running")], Some(late)),
        ("late but suspended", json!({ "activeDeadlineSeconds": 100, "suspend": true }), vec![], None),
        ("a bug", policy("FailJob"), failed(1), Some(bug)),
        ("ignored", policy("Ignore"), failed(5), None),
        ("counted", policy("Count"), failed(2), Some(limit)),
    ] {
        let conditions = Case::new(spec).pods(pods).conditions();
        let target = conditions.iter().find(|text| text.starts_with("FailureTarget")).map(String::as_str);
        assert_eq!(target, expected, "{why}");
    }
}

#[test]
fn a_job_that_fails_takes_its_pods_along() {
    let spec = || json!({ "completions": 5, "parallelism": 2, "backoffLimit": 0 });
    let first = Case::new(spec()).pods([ended("f", 1, 90), pod("x", "Running")]);
    let expected = ["patch jobs.batch/work/status", "patch pods/f", "delete pods/x: Deleted pod: x"];
    assert_eq!(lines(&first.plan()), expected, "the reason is written first");
    let second = Case::new(spec())
        .status(first.outcome())
        .pods([released(ended("f", 1, 90)), deleted(pod("x", "Running"), 130)]);
    assert_eq!((&second.outcome()["failed"], second.conditions().len()), (&json!(1), 1));
    assert_eq!(second.outcome()["uncountedTerminatedPods"], json!({ "failed": ["x"] }), "it failed with its Job");
    let last = Case::new(spec()).status(second.outcome()).pods([released(ended("f", 1, 90))]);
    assert_eq!(last.outcome()["failed"], 2);
    assert_eq!(last.conditions()[1], "Failed=True BackoffLimitExceeded: Job has reached the specified backoff limit");
    assert_eq!(events(&last.plan()), ["BackoffLimitExceeded: Job has reached the specified backoff limit"]);
    assert_eq!(last.outcome()["completionTime"], Value::Null);
}

#[test]
fn indexes_have_limits_of_their_own() {
    let spec = |more: Value| {
        let mut spec = json!({
            "completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimit": i32::MAX,
            "backoffLimitPerIndex": 1,
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let failed = |index: i32, before: i32| {
        let mut pod = indexed(ended(&format!("f{index}-{before}"), 1, 95), index);
        pod["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"] = before.to_string().into();
        pod
    };
    // The first failure: the Pod stays until it is replaced, 10 s later.
    let mut case = Case::new(spec(json!({}))).pods([failed(0, 0), indexed(pod("x", "Running"), 1)]);
    let plan = case.plan();
    assert_eq!(
        (moves(&plan), plan.requeue_after.map(|wait| wait.as_secs())),
        ((1, 0, 0), Some(5)),
        "{:?}",
        lines(&plan)
    );
    case.now = at(105);
    let plan = case.plan();
    let create = plan.writes().find(|write| write.request.verb == Verb::Create).unwrap();
    let body = create.request.body.as_ref().unwrap();
    let annotation = |name: &str| body["metadata"]["annotations"][format!("batch.kubernetes.io/{name}")].clone();
    assert_eq!((annotation("job-completion-index"), annotation("job-index-failure-count")), (json!("0"), json!("1")));
    // Its replacement exists: the first one is counted and released.
    let case = Case::new(spec(json!({}))).pods([failed(0, 0), indexed(pod("again", "Running"), 0)]);
    assert_eq!(case.outcome()["uncountedTerminatedPods"], json!({ "failed": ["f0-0"] }));
    // The second failure is the index's last.
    let case = Case::new(spec(json!({}))).pods([failed(0, 1)]);
    assert_eq!((&case.outcome()["failedIndexes"], moves(&case.plan()).2), (&json!("0"), 1));
    let made: Vec<String> = lines(&case.plan()).into_iter().filter(|line| line.starts_with("create")).collect();
    assert_eq!(made, ["create pods/work-1-: Created pod: {}", "create pods/work-2-: Created pod: {}"]);

    let too_many = "FailureTarget=True MaxFailedIndexesExceeded: \
                    Job has exceeded the specified maximal number of failed indexes";
    let all = "FailureTarget=True FailedIndexes: Job has failed indexes";
    let now = |index| failed(index, 0);
    let codes = json!({ "operator": "NotIn", "values": [2] });
    let fail_index = json!({ "podFailurePolicy": { "rules": [{ "action": "FailIndex", "onExitCodes": codes }] } });
    for (spec, status, pods, expected) in [
        (spec(json!({ "maxFailedIndexes": 0 })), json!({}), vec![failed(1, 1)], Some(too_many)),
        (spec(json!({ "maxFailedIndexes": 1 })), json!({}), vec![failed(1, 1)], None),
        (spec(json!({})), json!({ "completedIndexes": "0,2" }), vec![failed(1, 1)], Some(all)),
        (spec(json!({})), json!({ "completedIndexes": "0" }), vec![failed(1, 1)], None),
        (spec(json!({})), json!({ "failedIndexes": "0,1" }), vec![failed(2, 1)], Some(all)),
        (spec(fail_index), json!({ "completedIndexes": "0,2" }), vec![now(1)], Some(all)),
    ] {
        let conditions = Case::new(spec).status(status).pods(pods).conditions();
        assert_eq!(conditions.first().map(String::as_str), expected);
    }
}

#[test]
fn enough_indexes_may_be_fewer_than_all() {
    let spec = json!({
        "completions": 5, "parallelism": 5, "completionMode": "Indexed",
        "successPolicy": { "rules": [{ "succeededIndexes": "0,2-3", "succeededCount": 2 }] },
    });
    let running = || indexed(pod("x", "Running"), 1);
    let status = json!({ "completedIndexes": "0,4", "succeeded": 2 });
    assert_eq!(Case::new(spec.clone()).status(status).pods([running()]).conditions(), [""; 0]);
    let first = Case::new(spec.clone()).status(json!({ "completedIndexes": "0,2", "succeeded": 2 })).pods([running()]);
    assert_eq!(first.conditions(), ["SuccessCriteriaMet=True SuccessPolicy: Matched rules at index 0"]);
    let expected = ["patch jobs.batch/work/status", "patch pods/x", "delete pods/x: Deleted pod: x"];
    assert_eq!(lines(&first.plan()), expected, "what is not needed any more is dismissed");
    let last = Case::new(spec).status(first.outcome());
    assert_eq!(last.conditions()[1], "Complete=True SuccessPolicy: Matched rules at index 0");
    assert_eq!(last.outcome()["failed"], Value::Null);
}

#[test]
fn a_job_is_suspended_and_resumed() {
    let spec = |suspend: bool| json!({ "completions": 2, "suspend": suspend, "activeDeadlineSeconds": 60 });
    let mut case = Case::new(spec(true)).pods([pod("x", "Running")]);
    assert_eq!(case.conditions(), ["Suspended=True JobSuspended: Job suspended"]);
    let told = events(&case.plan());
    assert_eq!(told, ["Suspended: Job suspended", "SuccessfulDelete: Deleted pod: x"]);
    // A Job created suspended does not start.
    case.job["status"] = json!({});
    assert_eq!(case.outcome()["startTime"], Value::Null);
    // When resumed it starts afresh: the elapsed time does not count.
    case.job["status"] = json!({ "startTime": at(0).to_string(), "conditions": [{
        "type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended",
    }]});
    let resumed = Case { job: Case::new(spec(false)).status(case.job["status"].clone()).job, pods: vec![], ..case };
    assert_eq!(resumed.conditions(), ["Suspended=False JobResumed: Job resumed"]);
    assert_eq!(resumed.outcome()["startTime"].as_str().unwrap().parse::<Timestamp>().unwrap(), at(100));
    assert_eq!((moves(&resumed.plan()).0, events(&resumed.plan())[0].as_str()), (1, "Resumed: Job resumed"));
    assert_eq!(resumed.plan().requeue_after.map(|wait| wait.as_secs()), Some(60));
}
