//! CronJobs: when Jobs are started and how they end. The cases are upstream's documented ones.

mod unseen;

use std::sync::Arc;

use jiff::{Timestamp, tz::TimeZone};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use podwright::{
    api::cron::Schedule,
    controllers::{
        Plan,
        cron_job::{self, Inputs, Missed, most_recent},
    },
};
use serde_json::{Value, json};

use super::{lines, object, starved};

/// Midnight of a Thursday.
const DAY: &str = "2026-01-01T";

fn time(clock: &str) -> Timestamp {
    format!("{DAY}{clock}Z").parse().expect("a time")
}

/// The name of the Job for a time.
fn name_at(clock: &str) -> String {
    format!("report-{}", time(clock).as_second() / 60)
}

/// A CronJob created at midnight, and its Jobs.
struct Case {
    cron: Value,
    jobs: Vec<Value>,
    now: Timestamp,
}

impl Case {
    fn new(schedule: &str, spec: Value, now: &str) -> Case {
        let mut full = json!({
            "schedule": schedule, "concurrencyPolicy": "Allow", "suspend": false,
            "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1,
            "jobTemplate": {
                "metadata": { "labels": { "a": "b" }, "annotations": { "c": "d" } },
                "spec": { "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "c" }] } } },
            },
        });
        for (key, value) in spec.as_object().expect("a spec is an object") {
            full[key] = value.clone();
        }
        let metadata = json!({
            "name": "report", "namespace": "a", "uid": "cron", "creationTimestamp": time("00:00:00").to_string(),
        });
        let cron = json!({ "metadata": metadata, "spec": full, "status": {} });
        Case { cron, jobs: Vec::new(), now: time(now) }
    }

    fn last(mut self, clock: &str) -> Case {
        self.cron["status"]["lastScheduleTime"] = time(clock).to_string().into();
        self
    }

    /// Jobs; the unfinished ones are active in the status.
    fn jobs(mut self, jobs: impl IntoIterator<Item = Value>) -> Case {
        self.jobs.extend(jobs);
        let active = self.jobs.iter().filter(|job| job["status"]["conditions"].is_null());
        self.cron["status"]["active"] =
            active.map(|job| json!({ "name": job["metadata"]["name"], "uid": job["metadata"]["uid"] })).collect();
        self
    }

    fn plan(&self) -> Plan {
        let cron: Arc<CronJob> = object(self.cron.clone());
        let jobs: Vec<Arc<Job>> = self.jobs.iter().cloned().map(object).collect();
        let taken = |name: &str| jobs.iter().any(|job| job.metadata.name.as_deref() == Some(name));
        cron_job::plan(&Inputs { cron: &cron, jobs: &jobs, taken: &taken, local: &TimeZone::UTC, now: self.now })
    }

    fn created(&self) -> Vec<String> {
        let plan = self.plan();
        let bodies = plan.writes().filter(|w| w.request.subresource.is_none()).filter_map(|w| w.request.body.as_ref());
        bodies.filter_map(|body| body["metadata"]["name"].as_str().map(str::to_owned)).collect()
    }

    fn outcome(&self) -> Value {
        let mut status = self.cron["status"].clone();
        for write in self.plan().writes().filter(|write| write.request.subresource.is_some()) {
            json_patch::merge(&mut status, &write.request.body.as_ref().unwrap()["status"]);
        }
        status
    }

    fn events(&self) -> Vec<String> {
        let plan = self.plan();
        let done = plan.writes().filter(|w| w.request.subresource.is_some()).flat_map(|w| &w.done);
        { done }.chain(&plan.notes).map(|note| format!("{}: {}", note.reason, note.message)).collect()
    }

    /// Seconds until the next reconcile.
    fn wait(&self) -> Option<f64> {
        self.plan().requeue_after.map(|wait| wait.as_secs_f64())
    }
}

/// A Job due at a time; finished with a condition at another time, or running.
fn job(due: &str, finished: Option<(&str, &str)>) -> Value {
    let mut job = json!({
        "metadata": {
            "name": name_at(due), "namespace": "a", "uid": format!("uid-{due}"),
            "annotations": { "batch.kubernetes.io/cronjob-scheduled-timestamp": time(due).to_string() },
        },
        "spec": { "template": {} }, "status": { "startTime": time(due).to_string() },
    });
    if let Some((condition, at)) = finished {
        job["status"]["conditions"] = json!([{ "type": condition, "status": "True" }]);
        if condition == "Complete" {
            job["status"]["completionTime"] = time(at).to_string().into();
        }
    }
    job
}

#[test]
fn a_job_is_started_when_its_time_has_come() {
    let hourly = |spec: Value, now: &str| Case::new("0 * * * *", spec, now);
    for (why, case, created, wait) in [
        ("not yet", hourly(json!({}), "00:59:59"), None, Some(1.1)),
        ("on time", hourly(json!({}), "01:00:00"), Some("01:00:00"), Some(3600.1)),
        ("a little late", hourly(json!({}), "01:20:00"), Some("01:00:00"), Some(2400.1)),
        ("the last of those missed", hourly(json!({}), "05:20:00"), Some("05:00:00"), Some(2400.1)),
        ("done before", hourly(json!({}), "01:20:00").last("01:00:00"), None, Some(2400.1)),
        ("suspended", hourly(json!({ "suspend": true }), "01:20:00"), None, None),
        ("in time", hourly(json!({ "startingDeadlineSeconds": 1200 }), "01:19:59"), Some("01:00:00"), Some(2401.1)),
        ("too late", hourly(json!({ "startingDeadlineSeconds": 1200 }), "01:20:01"), None, Some(2399.1)),
        (
            "a zone half an hour off",
            hourly(json!({ "timeZone": "Asia/Kolkata" }), "01:20:00"),
            Some("00:30:00"),
            Some(600.1),
        ),
        ("every 90 min", Case::new("@every 1h30m", json!({}), "10:00:00"), Some("09:00:00"), Some(1800.1)),
    ] {
        let expected: Vec<String> = created.map(name_at).into_iter().collect();
        assert_eq!((case.created(), case.wait()), (expected, wait), "{why}");
    }
}

/// A daily schedule changed at 15:00 to an earlier time of day: today's run at that time is not a missed one.
#[test]
fn a_schedule_that_was_changed_counts_from_then_on() {
    let case = |now: &str| {
        let mut case = Case::new("0 3 * * *", json!({}), now);
        case.cron["metadata"]["annotations"] = json!({ "podwright/scheduled-since": time("15:00:00").to_string() });
        case
    };
    assert_eq!((case("15:00:01").created(), case("15:00:01").wait()), (vec![], Some(12.0 * 3600.0 - 1.0 + 0.1)));
    assert_eq!(case("15:00:01").last("02:00:00").created(), [""; 0]);
    assert_eq!(case("15:00:01").events(), [""; 0], "nor is it missed");
    let mut hourly = case("15:59:00");
    hourly.cron["spec"]["schedule"] = "30 * * * *".into();
    assert_eq!(hourly.created(), [name_at("15:30:00")], "what comes after the change does come");
}

#[test]
fn a_job_is_made_of_the_template() {
    let zone = json!({ "timeZone": "America/New_York" });
    for (spec, scheduled) in [(zone, "2025-12-31T20:00:00-05:00"), (json!({}), "2026-01-01T01:00:00Z")] {
        let plan = Case::new("0 * * * *", spec, "01:00:00").plan();
        let write = plan.writes().last().unwrap();
        assert_eq!(write.done[0].message, "Created job {}");
        let body = write.request.body.as_ref().unwrap();
        let annotations = json!({ "c": "d", "batch.kubernetes.io/cronjob-scheduled-timestamp": scheduled });
        assert_eq!((&body["metadata"]["annotations"], &body["metadata"]["labels"]["a"]), (&annotations, &json!("b")));
        assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "cron");
        assert_eq!(body["spec"]["template"]["spec"]["restartPolicy"], "Never");
    }
}

#[test]
fn one_job_at_a_time_or_several() {
    let case = |policy: &str| {
        let spec = json!({ "concurrencyPolicy": policy });
        Case::new("0 * * * *", spec, "02:10:00").last("01:00:00").jobs([job("01:00:00", None)])
    };
    let new = format!("create jobs.batch/{}: Created job {{}}", name_at("02:00:00"));
    let old = name_at("01:00:00");
    assert_eq!(lines(&case("Allow").plan()), [new.clone()]);
    assert_eq!(lines(&case("Forbid").plan()), [""; 0]);
    let told =
        ["JobAlreadyActive: Not starting job because prior execution is running and concurrency policy is Forbid"];
    assert_eq!((case("Forbid").events(), case("Forbid").wait()), (told.map(str::to_owned).into(), Some(3000.1)));
    let replaced = case("Replace");
    let expected =
        [format!("delete jobs.batch/{old}: Deleted job {old}"), "patch cronjobs.batch/report/status".to_owned(), new];
    assert_eq!(lines(&replaced.plan()), expected);
    let waits = starved(&replaced.plan(), &expected[0]);
    assert_eq!(waits, expected[1..], "it is gone before it is forgotten, and before the other begins");
    assert_eq!(replaced.outcome()["active"], Value::Null);
    // When the running Job has finished, the waiting one is started.
    let mut waited = case("Forbid");
    waited.jobs = vec![job("01:00:00", Some(("Complete", "02:09:00")))];
    assert_eq!(waited.created(), [name_at("02:00:00")]);
}

#[test]
fn the_status_is_read_off_the_jobs() {
    // Started, then a crash: the Job is neither lost nor started again.
    let mut case = Case::new("0 * * * *", json!({}), "01:00:02");
    case.jobs.push(job("01:00:00", None));
    assert_eq!(case.created(), [""; 0]);
    let outcome = case.outcome();
    assert_eq!(outcome["active"][0]["name"], name_at("01:00:00").as_str());
    assert_eq!(outcome["lastScheduleTime"].as_str().unwrap().parse::<Timestamp>().unwrap(), time("01:00:00"));
    assert_eq!(case.events(), [""; 0]);
    // It completes.
    case.cron["status"] = outcome;
    case.jobs = vec![job("01:00:00", Some(("Complete", "01:05:00")))];
    assert_eq!(
        case.events(),
        [format!("SawCompletedJob: Saw completed job: {}, status: Complete", name_at("01:00:00"))]
    );
    let outcome = case.outcome();
    assert_eq!(outcome["active"], Value::Null);
    assert_eq!(outcome["lastSuccessfulTime"].as_str().unwrap().parse::<Timestamp>().unwrap(), time("01:05:00"));
    // That is reported once.
    case.cron["status"] = outcome;
    assert_eq!((case.events(), lines(&case.plan())), (vec![], vec![]));
    // A Job that disappeared without finishing.
    let mut gone = Case::new("0 * * * *", json!({}), "01:10:00").last("01:00:00").jobs([job("01:00:00", None)]);
    gone.jobs.clear();
    assert_eq!(gone.events(), [format!("MissingJob: Active job went missing: {}", name_at("01:00:00"))]);
    assert_eq!(gone.outcome()["active"], Value::Null);
    // A Job created manually.
    let mut other = Case::new("0 * * * *", json!({ "concurrencyPolicy": "Forbid" }), "01:10:00");
    let mut by_hand = job("00:30:00", None);
    by_hand["metadata"]["name"] = "now".into();
    other.jobs.push(by_hand);
    assert_eq!(other.events(), ["UnexpectedJob: Saw a job that the controller did not create or forgot: now"]);
    assert_eq!(other.created(), [name_at("01:00:00")], "it does not stand in the schedule's way");
}

#[test]
fn a_few_finished_jobs_are_kept() {
    let done = |clock: &str, condition| job(clock, Some((condition, clock)));
    let jobs = || {
        let complete = ["04:00:00", "01:00:00", "03:00:00", "02:00:00"].map(|clock| done(clock, "Complete"));
        let failed = ["06:00:00", "05:00:00"].map(|clock| done(clock, "Failed"));
        complete.into_iter().chain(failed)
    };
    let deleted = |spec: Value| {
        let case = Case::new("0 * * * *", spec, "06:30:00").last("06:00:00").jobs(jobs());
        let mut lines = lines(&case.plan());
        lines.retain(|line| line.starts_with("delete"));
        lines
    };
    let line = |clock: &str| format!("delete jobs.batch/{0}: Deleted job {0}", name_at(clock));
    assert_eq!(deleted(json!({})), [line("01:00:00"), line("05:00:00")]);
    assert_eq!(deleted(json!({ "successfulJobsHistoryLimit": 4, "failedJobsHistoryLimit": 2 })), [""; 0]);
    let none = deleted(json!({ "successfulJobsHistoryLimit": 0, "failedJobsHistoryLimit": 0 }));
    assert_eq!((none.len(), none[0].clone()), (6, line("01:00:00")));
    assert_eq!(deleted(json!({ "suspend": true })).len(), 2, "a suspended one too");
}

#[test]
fn old_jobs_that_may_not_be_deleted_keep_no_new_one_from_starting() {
    let done = Some(("Complete", "02:30:00"));
    let case = Case::new("0 * * * *", json!({ "successfulJobsHistoryLimit": 1 }), "03:00:00").last("02:00:00");
    let plan = case.jobs([job("01:00:00", done), job("02:00:00", done)]).plan();
    let all = lines(&plan);
    let [told, created, deleted] = &all[..] else { panic!("{all:#?}") };
    let verbs = [told, created, deleted].map(|line| line.split(' ').next().unwrap());
    assert_eq!(verbs, ["patch", "create", "delete"]);
    for refused in [told, created, deleted] {
        assert_eq!(starved(&plan, refused), [""; 0], "without {refused:?}");
    }
}

#[test]
fn events_are_told_with_the_status_that_does_not_show_again_what_they_are_about() {
    let done = |due: &str| job(due, Some(("Complete", "02:30:00")));
    let mut case = Case::new("0 * * * *", json!({}), "02:40:00").last("02:00:00");
    let ended = [done("01:00:00"), done("02:00:00")];
    case = case.jobs([job("01:00:00", None), job("02:00:00", None)]);
    case.jobs = ended.into();
    let plan = case.plan();
    let told: Vec<&str> = plan.report.as_ref().unwrap().done.iter().map(|note| note.reason).collect();
    assert_eq!((told, plan.notes.len()), (vec!["SawCompletedJob"; 2], 0));
}

#[test]
fn what_goes_wrong_is_told() {
    let case = |schedule: &str, spec: Value| Case::new(schedule, spec, "01:20:01");
    let late = "MissSchedule: Missed scheduled time to start a job: Thu, 01 Jan 2026 01:00:00 +0000";
    let never =
        "InvalidSchedule: invalid schedule: 0 0 30 2 * : time difference between two schedules is less than 1 second";
    let many = "TooManyMissedTimes: too many missed start times. \
                Set or decrease .spec.startingDeadlineSeconds or check clock skew";
    for (case, expected) in [
        (case("0 0 30 2 *", json!({})), vec![never]),
        (case("* * * * *", json!({})), vec![]),
        (Case::new("* * * * *", json!({}), "01:40:59"), vec![]),
        (Case::new("* * * * *", json!({}), "01:41:00"), vec![many]),
        (Case::new("* * * * *", json!({ "startingDeadlineSeconds": 600 }), "11:41:00"), vec![]),
        (case("0 * * * *", json!({ "startingDeadlineSeconds": 1200 })), vec![late]),
        (case("0 * * * *", json!({ "startingDeadlineSeconds": 1201 })), vec![late]),
        (case("0 * * * *", json!({ "startingDeadlineSeconds": 1202 })), vec![]),
        (case("0 * * * *", json!({ "startingDeadlineSeconds": 10 })).last("01:00:00"), vec![]),
    ] {
        assert_eq!(case.events(), expected);
    }
    let zone = case("0 * * * *", json!({ "timeZone": "Moon/Tycho" })).events();
    assert!(zone[0].starts_with("UnknownTimeZone: invalid timeZone: \"Moon/Tycho\": "), "{zone:?}");
    let words = case("0 * * *", json!({})).events();
    assert!(
        words[0].starts_with("UnparseableSchedule: unparseable schedule: \"0 * * *\" : expected exactly 5"),
        "{words:?}"
    );
}

#[test]
fn the_last_time_that_has_come_is_found() {
    let found = |schedule: &str, zone: &str, from: &str, now: &str| {
        let (schedule, zone) = (Schedule::parse(schedule).unwrap(), TimeZone::get(zone).unwrap());
        let (last, missed) = most_recent(&schedule, &zone, from.parse().unwrap(), now.parse().unwrap()).unwrap();
        (last.map(|last| last.to_string()), missed)
    };
    let some = |text: &str| Some(text.to_owned());
    for (schedule, from, now, expected) in [
        ("0 * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:59:59Z", (None, Missed::None)),
        ("0 * * * *", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", (some("2026-01-01T01:00:00Z"), Missed::None)),
        ("0 * * * *", "2026-01-01T00:00:00Z", "2026-01-01T03:30:00Z", (some("2026-01-01T03:00:00Z"), Missed::Few)),
        // After a first gap of a minute comes one of a day.
        (
            "58,59 23 * * *",
            "2026-01-01T00:00:00Z",
            "2026-01-03T12:00:00Z",
            (some("2026-01-02T23:59:00Z"), Missed::Many),
        ),
        (
            "0 9 * * mon-fri",
            "2026-01-01T10:00:00Z",
            "2026-01-04T12:00:00Z",
            (some("2026-01-02T09:00:00Z"), Missed::None),
        ),
        (
            "30 6-16/4 * * mon-fri",
            "2026-01-01T10:00:00Z",
            "2026-01-05T12:00:00Z",
            (some("2026-01-05T10:30:00Z"), Missed::Few),
        ),
        ("*/5 * * * *", "2020-01-01T00:00:00Z", "2026-01-01T00:04:00Z", (some("2026-01-01T00:00:00Z"), Missed::Many)),
    ] {
        assert_eq!(found(schedule, "UTC", from, now), expected, "{schedule}, from {from}");
    }
    // 02:30 does not come on the day the clocks go forward, and comes twice on the day they go back.
    let berlin = |from, now| found("30 2 * * *", "Europe/Berlin", from, now).0;
    assert_eq!(berlin("2026-03-28T12:00:00Z", "2026-03-29T12:00:00Z"), None);
    assert_eq!(berlin("2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"), some("2026-10-25T01:30:00Z"));
}
