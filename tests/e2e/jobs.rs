//! Jobs and CronJobs with real Pods, as described in their manifests.

use std::time::Duration;

use crate::support::{TestNode, eventually, leftovers::Machine};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A file of `manifests/`.
fn manifest(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// The condition of a Job, with reason.
fn reason(node: &TestNode, job: &str, condition: &str) -> String {
    node.field(&["-n", "batch", "job", job], &format!(".status.conditions[?(@.type==\"{condition}\")].reason"))
}

fn has_event(node: &TestNode, object: &str, event: &str) {
    eventually(&format!("the event {event} of {object}"), TIMEOUT, || {
        let all =
            node.ok(&["-n", "batch", "get", "events", "--field-selector", &format!("involvedObject.name={object}")]);
        if all.contains(event) { Ok(()) } else { Err(all) }
    });
}

#[test]
fn jobs_run_to_their_end() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(&manifest("job.yaml"));
    node.wait("condition=complete", &["-n", "batch", "job/tiles", "job/shards"], TIMEOUT);
    let job = |name: &str, field: &str| node.field(&["-n", "batch", "job", name], field);
    assert_eq!(job("tiles", ".status.succeeded"), "3");
    assert_eq!(job("tiles", ".status.uncountedTerminatedPods"), "{}");
    assert_eq!(reason(&node, "tiles", "Complete"), "CompletionsReached");
    has_event(&node, "tiles", "Job completed");
    assert_eq!(
        (job("shards", ".status.succeeded"), job("shards", ".status.completedIndexes")),
        ("3".into(), "0-2".into())
    );
    for index in 0..3 {
        let selector = format!("job-name=shards,batch.kubernetes.io/job-completion-index={index}");
        let said = node.ok(&["-n", "batch", "logs", "-l", &selector]);
        assert_eq!(said.trim(), format!("shard {index} on shards-{index}"));
    }
    let finalizers = node.field(&["-n", "batch", "pods", "-l", "job-name=tiles"], ".items[*].metadata.finalizers");
    assert_eq!(finalizers, "", "nothing holds Pods that are counted");

    node.wait("condition=failed", &["-n", "batch", "job/wrong"], TIMEOUT);
    assert_eq!(
        (reason(&node, "wrong", "Failed"), job("wrong", ".status.failed")),
        ("PodFailurePolicy".into(), "1".into())
    );
    node.wait("delete", &["-n", "batch", "job/brief"], TIMEOUT);
    node.wait("condition=failed", &["-n", "batch", "job/stubborn"], TIMEOUT);
    assert_eq!(reason(&node, "stubborn", "Failed"), "BackoffLimitExceeded");
    assert_eq!(job("stubborn", ".status.failed"), "2");
    has_event(&node, "stubborn", "Job has reached the specified backoff limit");
    eventually("the Pods of job/brief are gone", TIMEOUT, || {
        let left = node.ok(&["-n", "batch", "get", "pods", "-l", "job-name=brief", "-o", "name"]);
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    drop(node);
    untouched.assert_unchanged();
}

/// Its Pods run until they are told to end.
const LONG: &str = "
apiVersion: batch/v1
kind: Job
metadata: {name: long, namespace: batch}
spec:
  completions: 2
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: localhost/busybox:1
        command: [sh, -c, 'trap \"exit 3\" TERM; while :; do sleep 0.1; done']
";

#[test]
fn a_job_is_suspended_resumed_and_deleted() {
    let mut node = TestNode::start(&[]);
    node.import_busybox();
    node.ok(&["create", "namespace", "batch"]);
    node.apply(LONG);
    let (job, pods) =
        (["-n", "batch", "job/long"], ["-n", "batch", "get", "pods", "-l", "job-name=long", "-o", "name"]);
    let suspend = |node: &TestNode, suspend: bool| {
        let patch = format!(r#"{{"spec": {{"suspend": {suspend}}}}}"#);
        node.ok(&["-n", "batch", "patch", "job", "long", "--type=merge", "-p", &patch]);
    };
    let gone = |node: &TestNode| {
        eventually("its Pods are gone", TIMEOUT, || {
            let left = node.ok(&pods);
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
    };
    node.wait_field(&job, ".status.ready", "2", TIMEOUT);
    suspend(&node, true);
    node.wait("condition=Suspended", &job, TIMEOUT);
    gone(&node);
    assert_eq!(node.field(&job, ".status.failed"), "", "dismissed Pods have not failed");
    suspend(&node, false);
    node.wait_field(&job, ".status.ready", "2", TIMEOUT);
    has_event(&node, "long", "Job resumed");
    // Pods that end while the controller is down are counted afterwards, once.
    let first = node.ok(&pods).lines().next().unwrap().to_owned();
    // The container's first process takes all others down: including this one, if it has not exited by then.
    let killed = node.run(&["-n", "batch", "exec", &first, "--", "kill", "1"]);
    assert!([0, 137].contains(&killed.code), "{}", killed.all());
    node.kill();
    node.spawn();
    node.wait_ready();
    node.wait_field(&job, ".status.failed", "1", TIMEOUT);
    node.ok(&["-n", "batch", "delete", "job", "long"]);
    gone(&node);
    assert_eq!(node.terminate().unwrap().code(), Some(0));
}

#[test]
fn a_cron_job_makes_jobs() {
    let node = TestNode::start(&[]);
    node.import_busybox();
    node.apply(&manifest("cron-job.yaml"));
    let made = node.ok(&["-n", "cron", "create", "job", "now", "--from=cronjob/clock"]);
    assert_eq!(made.trim(), "job.batch/now created");
    node.wait("condition=complete", &["-n", "cron", "job/now"], TIMEOUT);
    assert_eq!(node.ok(&["-n", "cron", "logs", "job/now"]).lines().last(), Some("tick"));
    // The next full minute is at most one away.
    let minute = Duration::from_secs(60) + TIMEOUT;
    let due = eventually("a Job is due", minute, || {
        let jobs = node.field(&["-n", "cron", "jobs", "-l", "app=clock"], ".items[*].metadata.name");
        let due = jobs.split(' ').find(|name| name.starts_with("clock-")).map(str::to_owned);
        due.ok_or(jobs)
    });
    let job = format!("job/{due}");
    node.wait("condition=complete", &["-n", "cron", &job], TIMEOUT);
    let field = |path: &str| node.field(&["-n", "cron", &job], path);
    let scheduled = field(".metadata.annotations.batch\\.kubernetes\\.io/cronjob-scheduled-timestamp");
    let at: jiff::Timestamp = scheduled.parse().unwrap();
    assert_eq!(due, format!("clock-{}", at.as_second() / 60));
    assert!(!scheduled.ends_with('Z'), "it is told in the zone of the schedule: {scheduled}");
    assert_eq!(node.ok(&["-n", "cron", "logs", &job]).lines().last(), Some("tick"));
    let cron = ["-n", "cron", "cronjob/clock"];
    let done = field(".status.completionTime");
    node.wait_field(&cron, ".status.lastSuccessfulTime", &done, TIMEOUT);
    assert!(node.field(&cron, ".status.lastScheduleTime").parse::<jiff::Timestamp>().unwrap() >= at);
    eventually("the CronJob's events", TIMEOUT, || {
        let all = node.ok(&["-n", "cron", "get", "events", "--field-selector", "involvedObject.name=clock"]);
        let wanted = [format!("Created job {due}"), format!("Saw completed job: {due}, status: Complete")];
        if wanted.iter().all(|event| all.contains(event)) { Ok(()) } else { Err(all) }
    });
    node.ok(&["-n", "cron", "delete", "cronjob", "clock"]);
    eventually("its Jobs and their Pods go with it", TIMEOUT, || {
        let left = node.ok(&["-n", "cron", "get", "jobs,pods", "-o", "name"]);
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}
