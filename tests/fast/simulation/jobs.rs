//! Jobs count exactly: what their Pods did is what their status says, however controllers stop and crash.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::{batch::v1::JobStatus, core::v1::Pod};
use podwright::{
    api::{
        Object, Options, Request, Verb,
        request::{Body, PatchType},
    },
    client::Key,
    controllers::{
        job::{self, FINALIZER},
        meta,
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use super::{cluster::Cluster, first_seed, run};

/// What Pods of a Job did while it counted on them.
#[derive(Default)]
struct Ends {
    succeeded: i32,
    failed: i32,
    indexes: BTreeSet<i32>,
    /// The uids of all that have ended: a Pod ends once, though it may be seen to run a little longer.
    all: BTreeSet<Option<String>>,
}

fn pods(cluster: &Cluster) -> Vec<Arc<Pod>> {
    cluster.seen.pods.list_namespace("a")
}

/// Ends a Pod as its agent would. One that nothing holds any more is no part of its Job.
async fn end(cluster: &Cluster, pod: &Pod, code: i32, now: &str, ends: &mut Ends) {
    let state = json!({ "terminated": { "exitCode": code, "finishedAt": now } });
    let container =
        json!({ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state });
    if !ends.all.insert(pod.metadata.uid.clone()) {
        return;
    }
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let key = Key::of(pod);
    let answer = cluster.client.call(Request {
        verb: Verb::Patch,
        resource: "pods".into(),
        subresource: Some("status".into()),
        namespace: key.namespace().map(str::to_owned),
        name: Some(key.name),
        body: Some(json!({
            "metadata": { "uid": pod.metadata.uid },
            "status": { "phase": phase, "containerStatuses": [container] },
        })),
        options: Options { patch_type: Some(PatchType::Merge), ..Options::default() },
        ..Request::default()
    });
    // It may be gone by now.
    let Ok(answer) = answer.await else { return };
    let Body::Object { bytes, .. } = answer.body else { panic!("no object") };
    if !Object::from_slice(&bytes).expect("a Pod").finalizers().contains(&FINALIZER) {
        return;
    }
    let index = meta::annotation(&pod.metadata, "batch.kubernetes.io/job-completion-index");
    match code {
        0 => {
            ends.succeeded += 1;
            ends.indexes.extend(index.and_then(|index| index.parse::<i32>().ok()));
        }
        _ => ends.failed += 1,
    }
}

/// Runs a Job whose Pods end at random, under controllers that stop and crash, until it has finished.
async fn run_job(cluster: &mut Cluster, rng: &mut StdRng, spec: Value, suspends: bool) -> (JobStatus, Ends) {
    let key = Key::new("a", "work");
    let parallelism = spec["parallelism"].as_u64().expect("a number") as usize;
    cluster.create("jobs.batch", "a", json!({ "metadata": { "name": "work" }, "spec": spec })).await;
    let (mut ends, mut suspended) = (Ends::default(), false);
    let start = tokio::time::Instant::now();
    loop {
        let finished = cluster.seen.jobs.get(&key).filter(|job| job::is_finished(job));
        if let Some(job) = finished {
            return (job.status.clone().expect("it has a status"), ends);
        }
        let all = pods(cluster);
        let active = all.iter().filter(|pod| meta::is_active(pod)).count();
        assert!(active <= parallelism, "{active} Pods at once");
        for pod in all.iter().filter(|pod| meta::is_active(pod) && meta::phase(pod) == "Running") {
            if rng.random_bool(0.15) {
                let code = i32::from(rng.random_bool(0.25));
                let since = i64::try_from(start.elapsed().as_secs()).expect("a short test");
                let now = jiff::Timestamp::from_second(1_767_225_600 + since).expect("a time").to_string();
                end(cluster, pod, code, &now, &mut ends).await;
            }
        }
        match rng.random_range(0..100) {
            0..4 => {
                cluster.stop_controllers().await;
                tokio::time::sleep(Duration::from_millis(rng.random_range(0..500))).await;
                cluster.start_controllers();
            }
            4..10 => {
                cluster.crash_controllers();
                cluster.start_controllers();
            }
            10..13 if suspends => {
                suspended = !suspended;
                cluster.patch("jobs.batch", &key, json!({ "spec": { "suspend": suspended } })).await;
            }
            _ => tokio::time::sleep(Duration::from_millis(rng.random_range(0..1500))).await,
        }
        assert!(start.elapsed() < Duration::from_secs(6 * 3600), "it never ends: {:?}", cluster.seen.jobs.get(&key));
    }
}

#[test]
fn each_end_is_counted_once() {
    let first = first_seed();
    let template = json!({ "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "v1" }] } });
    let plain = json!({ "completions": 12, "parallelism": 4, "backoffLimit": 1000, "template": template });
    let mut indexed = plain.clone();
    indexed["completionMode"] = "Indexed".into();
    let mut per_index = indexed.clone();
    per_index["backoffLimitPerIndex"] = 100.into();
    let mut late = plain.clone();
    late["podReplacementPolicy"] = "Failed".into();
    for (n, (spec, suspends)) in
        [(plain.clone(), false), (indexed, false), (per_index, false), (plain, true), (late, true)]
            .into_iter()
            .enumerate()
    {
        let seed = first + n as u64;
        println!("SIMULATION_SEED={seed} {spec}");
        run(async {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut cluster = Cluster::rough(seed).await;
            cluster.add_node("n1").await;
            cluster.add_namespace("a").await;
            let (status, ends) = run_job(&mut cluster, &mut rng, spec.clone(), suspends).await;
            println!("{} Pods succeeded, {} failed", ends.succeeded, ends.failed);
            let counts = (status.succeeded.unwrap_or(0), status.failed.unwrap_or(0));
            assert_eq!(counts, (ends.succeeded, ends.failed), "{status:?}");
            if spec["completionMode"] == "Indexed" {
                assert_eq!(status.completed_indexes.as_deref(), Some("0-11"));
                assert_eq!(ends.indexes, (0..12).collect(), "none twice");
                assert_eq!(ends.succeeded, 12, "none twice");
            }
            assert_eq!((status.active, status.terminating), (None, Some(0)));
            let held = pods(&cluster).iter().filter(|pod| pod.metadata.finalizers.is_some()).count();
            assert_eq!(held, 0, "Pods that are counted are let go");
            cluster.delete_namespace("a").await;
            let gone = |cluster: &Cluster| cluster.seen.namespaces.get(&Key::new("", "a")).is_none();
            cluster.until("the namespace is gone", gone).await;
        });
    }
}

#[test]
fn the_status_of_a_job_is_not_written_for_each_pod_that_starts() {
    run(async {
        let mut cluster = Cluster::new(first_seed()).await;
        cluster.add_node("n1").await;
        cluster.add_namespace("a").await;
        let mut changes = cluster.seen.jobs.subscribe();
        let template = json!({ "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "v1" }] } });
        let spec = json!({ "completions": 60, "parallelism": 60, "template": template });
        let start = tokio::time::Instant::now();
        cluster.create("jobs.batch", "a", json!({ "metadata": { "name": "work" }, "spec": spec })).await;
        let ready = |cluster: &Cluster| cluster.seen.jobs.get(&Key::new("a", "work"))?.status.as_ref()?.ready;
        cluster.until("all are ready", |cluster| ready(cluster) == Some(60)).await;
        let mut writes = 0;
        while changes.try_recv().is_ok() {
            writes += 1;
        }
        let seconds = start.elapsed().as_secs();
        println!("{writes} writes in {seconds} s");
        assert!(writes <= seconds + 5, "{writes} writes in {seconds} s");
    });
}

#[test]
fn a_job_is_due_soon_after_the_clock_was_set() {
    run(async {
        let mut cluster = Cluster::new(first_seed()).await;
        cluster.add_namespace("a").await;
        let template = json!({ "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "v1" }] } });
        let cron = json!({ "schedule": "0 3 * * *", "jobTemplate": { "spec": { "template": template } } });
        cluster.create("cronjobs.batch", "a", json!({ "metadata": { "name": "daily" }, "spec": cron })).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(cluster.seen.jobs.list_namespace("a").len(), 0);
        // A board that has no clock of its own hears the time.
        cluster.env.set_clock(jiff::SignedDuration::from_hours(10));
        tokio::time::sleep(Duration::from_secs(35)).await;
        assert_eq!(cluster.seen.jobs.list_namespace("a").len(), 1);
    });
}
