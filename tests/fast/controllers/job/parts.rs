//! The building blocks of Job decisions: index sets and policies; and the time that finished Jobs are kept.

use podwright::controllers::{
    job::{
        indexes::Indexes,
        policy::{self, Verdict},
    },
    ttl_after_finished,
};
use serde_json::json;

use super::*;

#[test]
fn indexes_are_spans_in_order() {
    for (text, completions, expected, count) in [
        ("", 10, "", 0),
        ("0", 10, "0", 1),
        ("0,1", 10, "0,1", 2),
        ("0,1,2", 10, "0-2", 3),
        ("0-2,5", 10, "0-2,5", 4),
        ("3-9", 5, "3,4", 2),
        ("7", 5, "", 0),
        ("x,2,-1,4-", 10, "2", 1),
    ] {
        let indexes = Indexes::parse(text, completions);
        assert_eq!((indexes.to_string().as_str(), indexes.count()), (expected, count), "{text:?} of {completions}");
    }
    let of = |text: &str| Indexes::parse(text, 100);
    assert_eq!(of("0-2,7").union(&of("3,9-10")).to_string(), "0-3,7,9,10");
    assert_eq!(of("1,4-6").missing(8, 4), [0, 2, 3, 7]);
    assert_eq!(of("0-7").missing(8, 4), [0; 0]);
    assert_eq!(of("1").missing(50_000, 2), [0, 2]);
    assert_eq!(of("0-5,8-9").common(&of("2-3,5-8,20")), 4);
    assert_eq!([0, 3, 5].map(|index| of("1-3,5").has(index)), [false, true, true]);
}

#[test]
fn the_first_rule_that_matches_decides() {
    let rules = json!({ "rules": [
        { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] },
        { "action": "FailJob", "onExitCodes": { "containerName": "c", "operator": "In", "values": [5, 6] } },
        { "action": "FailIndex", "onExitCodes": { "containerName": "i", "operator": "NotIn", "values": [1] } },
        { "action": "Count", "onExitCodes": { "operator": "NotIn", "values": [5] } },
        { "action": "FailJob", "onPodConditions": [{ "type": "Config", "status": "False" }] },
    ]});
    let policy = serde_json::from_value(rules).unwrap();
    let init = |code: i32| {
        let mut pod = ended("x", code, 5);
        let mut list = pod["status"]["containerStatuses"].take();
        list[0]["name"] = "i".into();
        pod["status"]["initContainerStatuses"] = list;
        pod
    };
    let with = |mut pod: Value, kind: &str, status: &str| {
        pod["status"]["conditions"] = json!([{ "type": kind, "status": status }]);
        pod
    };
    let told = |text: &str| Verdict::FailJob(text.to_owned());
    for (pod, expected) in [
        (ended("x", 6, 5), told("Container c for pod a/x failed with exit code 6 matching FailJob rule at index 1")),
        (with(ended("x", 6, 5), "DisruptionTarget", "True"), Verdict::Ignore),
        (with(pod("x", "Failed"), "DisruptionTarget", "False"), Verdict::Count),
        (
            with(pod("x", "Failed"), "Config", "False"),
            told("Pod a/x has condition Config matching FailJob rule at index 4"),
        ),
        (init(6), Verdict::FailIndex),
        (init(1), Verdict::Count),
        (pod("x", "Failed"), Verdict::Count),
    ] {
        let told = format!("{}", pod["status"]);
        let pod: Arc<Pod> = object(pod);
        assert_eq!(policy::judge(Some(&policy), &pod), expected, "{told}");
        assert_eq!(policy::judge(None, &pod), Verdict::Count);
    }
}

#[test]
fn a_finished_job_stays_for_as_long_as_it_asks() {
    let job = |condition: &str, ttl: Value| -> Arc<Job> {
        object(json!({
            "metadata": { "name": "work", "namespace": "a", "uid": "job", "resourceVersion": "50" },
            "spec": { "template": {}, "ttlSecondsAfterFinished": ttl },
            "status": { "conditions": [{
                "type": condition, "status": "True", "lastTransitionTime": at(0).to_string(),
            }]},
        }))
    };
    let plan = ttl_after_finished::plan(&job("Complete", json!(30)), at(29));
    assert_eq!((lines(&plan), plan.requeue_after.map(|wait| wait.as_secs())), (vec![], Some(1)));
    for (condition, ttl, now) in [("Complete", 30, 30), ("Failed", 0, 0)] {
        let plan = ttl_after_finished::plan(&job(condition, json!(ttl)), at(now));
        assert_eq!(lines(&plan), ["delete jobs.batch/work"], "{condition}");
        let options = &plan.writes().next().unwrap().request.options;
        assert_eq!(options.propagation_policy.as_deref(), Some("Foreground"));
        let preconditions = options.preconditions.as_ref().unwrap();
        let expected = (Some("job"), Some("50"));
        assert_eq!((preconditions.uid.as_deref(), preconditions.resource_version.as_deref()), expected);
    }
    for job in [job("Complete", Value::Null), job("Suspended", json!(0))] {
        let plan = ttl_after_finished::plan(&job, at(99));
        assert!(plan.is_empty() && plan.requeue_after.is_none());
    }
}
