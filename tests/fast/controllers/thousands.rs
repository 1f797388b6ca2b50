//! Jobs of thousands of Pods that all fail: they end, and each Pod costs the same, however many there were before it.

use std::{sync::Arc, time::Duration};

use podwright::api::Verb;
use serde_json::{Value, json};

use super::{
    at,
    refused::{indexed_job, node, pods},
    running::World,
};

/// Is a node on which each Pod fails, later than right after its birth.
async fn fail_each(world: Arc<World>) {
    let (_pods, mut changes) = world.pods();
    while let Some(change) = changes.recv().await {
        if change.old.is_some() || change.new.is_none() {
            continue;
        }
        let world = world.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(11)).await;
            let ended = at(world.seconds() as i64).to_string();
            let unready = json!([{"type": "Ready", "status": "False", "lastTransitionTime": ended}]);
            let failed = json!({"status": {"phase": "Failed", "conditions": unready}});
            world.ask_of(Verb::Patch, "pods", ("default", &change.key.name), "status", failed).await;
        });
    }
}

/// The CPU time of this thread, in which all of a world runs.
fn cpu() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    Duration::new(time.tv_sec().unsigned_abs(), u32::try_from(time.tv_nsec()).unwrap())
}

/// Runs such a Job to its end: the CPU time that it took, and how long it was.
async fn run(completions: usize) -> (Duration, f64) {
    let world = Arc::new(World::new().await);
    let (begun, stop) = (cpu(), world.start());
    node(&world, json!([])).await;
    let failing = tokio::spawn(fail_each(world.clone()));
    indexed_job(&world, completions, 100).await;
    let told = loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let job = world.ask(Verb::Get, "jobs.batch", ("default", "x"), None).await.unwrap();
        let conditions = job.0["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if conditions.iter().any(|it| it["type"] == "Failed" && it["reason"] == "FailedIndexes") {
            break job;
        }
        assert!(world.seconds() < 2.0 * completions as f64, "{job:?}");
    };
    let (failed, all) = (&told.0["status"]["failed"], format!("0-{}", completions - 1));
    assert_eq!((failed, &told.0["status"]["failedIndexes"]), (&json!(completions), &Value::from(all)));
    stop.cancel();
    failing.abort();
    (cpu() - begun, world.seconds())
}

/// Also while the first failure is counted: its Pod is released before the status says so.
#[tokio::test(start_paused = true)]
async fn the_first_failure_has_its_back_off() {
    let world = Arc::new(World::new().await);
    let stop = world.start();
    node(&world, json!([])).await;
    let failing = tokio::spawn(fail_each(world.clone()));
    let template =
        json!({"spec": {"restartPolicy": "Never", "nodeName": "n", "containers": [{"name": "c", "image": "i:1"}]}});
    let job =
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": {"template": template}});
    world.create("jobs.batch", "default", job).await;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let made = pods(&world, "default").await.len();
        if made > seen.len() {
            seen.push(world.seconds());
        }
    }
    // Each lives for 11 s; then 10 s pass, and 20.
    for (n, (pair, wait)) in seen.windows(2).zip([21.0, 31.0]).enumerate() {
        let took = pair[1] - pair[0];
        assert!((wait - 1.0..wait + 5.0).contains(&took), "{n}: {seen:?}");
    }
    stop.cancel();
    failing.abort();
}

#[tokio::test(start_paused = true)]
async fn each_of_thousands_of_failed_indexes_costs_the_same() {
    let (few, many) = (run(250).await.0, run(1_000).await.0);
    assert!(many < few * 8, "four times as many: {few:?}, {many:?}");
}

/// `cargo test --release --test fast thousands -- --ignored --nocapture`
#[tokio::test(start_paused = true)]
#[ignore = "takes minutes"]
async fn a_job_of_a_hundred_thousand_indexes_ends() {
    let (cpu, seconds) = run(100_000).await;
    println!("{cpu:?} of CPU, {seconds:.0} s");
}
