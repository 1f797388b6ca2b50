//! Anything may happen at any time: random operations on a cluster with two control planes.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Mutex,
    time::{Duration, Instant},
};

use jiff::SignedDuration;
use podwright::{
    api::{Status, Verb},
    client::Key,
};
use serde_json::{Value, json};

use super::{
    REST, SECONDS,
    cluster::{Cluster, request},
    first_seed,
    history::Line,
    number,
    operations::{self, Operation},
    planes::Setup,
    run,
    world::Step,
};

#[test]
fn anything_may_happen_at_any_time() {
    let (first, begun) = (first_seed(), Instant::now());
    let wanted = number("SIMULATION_RUNS").or(number("SIMULATION_SEED").map(|_| 1));
    let (mut writes, mut told) = (0, BTreeMap::new());
    for n in 0.. {
        if wanted.map_or(n > 0 && begun.elapsed() > SECONDS, |wanted| n >= wanted) {
            println!("{n} runs, {writes} writes in {:?}; events: {told:?}", begun.elapsed());
            return;
        }
        let history = history_of(first.wrapping_add(n));
        writes += history.len();
        let events = history.iter().filter(|line| line.key.starts_with("/registry/events/"));
        for text in events.filter_map(|line| line.text.as_deref()) {
            let reason = NOTABLE.iter().find(|reason| text.contains(&format!("\"reason\":\"{reason}\"")));
            reason.into_iter().for_each(|reason| *told.entry(*reason).or_insert(0) += 1);
        }
    }
}

/// Runs that hold what few others do:
/// - 533034: a StatefulSet's Pod that has no node is evicted while one before it is not well.
const RARE: &[u64] = &[533_034];

#[test]
fn what_is_rare_is_no_fault() {
    RARE.iter().for_each(|seed| drop(history_of(*seed)));
}

/// The reasons of events by which one sees what the runs were about.
const NOTABLE: &[&str] =
    &["FailedScheduling", "Preempted", "SuccessfulRescale", "ScalingReplicaSet", "SuccessfulCreate", "NodeNotReady"];

/// All that is written in the run of a seed. Where it fails, seed and operations are told.
pub fn history_of(seed: u64) -> Vec<Line> {
    let done = Mutex::new(Vec::new());
    let mut lines = Vec::new();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        run(async {
            let mut cluster = Cluster::with(seed, Setup::Elected).await;
            for operation in operations::draw(seed) {
                done.lock().expect("nobody panics with it").push(format!("{}: {operation:?}", cluster.env.now()));
                carry_out(&mut cluster, operation).await;
            }
            lines = std::mem::take(&mut cluster.store.seen().lines);
        });
    }));
    if let Err(panic) = outcome {
        println!("SIMULATION_SEED={seed} fails. What was done:");
        done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).iter().for_each(|told| println!("  {told}"));
        resume_unwind(panic);
    }
    lines
}

async fn carry_out(cluster: &mut Cluster, operation: Operation) {
    if !matches!(operation, Operation::Wait(_)) {
        cluster.store.step(Step::Stirs);
    }
    match operation {
        Operation::SetZone(seconds) => cluster.set_zone(seconds).await,
        Operation::Load(app, millis) => cluster.set_load(&app, millis),
        Operation::Scale(key, replicas) => {
            let scale = Some(json!({ "spec": { "replicas": replicas } }));
            let mut request = request(Verb::Patch, "deployments.apps", &key, scale);
            request.subresource = Some("scale".into());
            cluster.client.call(request).await.map(drop).unwrap_or_else(|status| allow(&status));
        }
        Operation::AddClass((name, value, policy)) => {
            let class = json!({ "metadata": { "name": name }, "value": value, "preemptionPolicy": policy });
            cluster.create("priorityclasses.scheduling.k8s.io", "", class).await;
        }
        Operation::SetRoom(room) => cluster.set_room(room),
        Operation::AddNamespace(name) => cluster.add_namespace(&name).await,
        Operation::DeleteNamespace(name) if cluster.namespaces().contains(&name) => {
            cluster.delete_namespace(&name).await;
        }
        Operation::DeleteNamespace(_) => {}
        Operation::Apply { resource, key, spec } => apply(cluster, resource, &key, spec).await,
        Operation::Delete { resource, key, policy } => {
            let mut delete = request(Verb::Delete, resource, &key, None);
            delete.options.propagation_policy = Some(policy.into());
            // What there is of it goes; a budget's Pods do not depend on it.
            cluster.client.call(delete).await.ok();
        }
        Operation::DeletePod(n) => {
            if let Some(pod) = pod(cluster, n) {
                cluster.relax();
                cluster.client.call(request(Verb::Delete, "pods", &pod, None)).await.ok();
            }
        }
        Operation::Evict(n) => {
            if let Some(pod) = pod(cluster, n) {
                // It may be refused.
                cluster.evict(&pod).await.ok();
            }
        }
        Operation::Sicken(n, millis) => {
            let pods = cluster.seen.pods.list();
            if let Some(uid) = (!pods.is_empty()).then(|| pods[n % pods.len()].metadata.uid.clone()).flatten() {
                cluster.sicken(uid, Duration::from_millis(millis));
            }
        }
        Operation::Lose(node) if cluster.node(node) == Some(true) => cluster.lose_node(node),
        Operation::Find(node) if cluster.node(node) == Some(false) => cluster.find_node(node).await,
        Operation::RemoveNode(node) if cluster.node(node).is_some() => cluster.delete_node(node).await,
        Operation::AddNode(node) if cluster.node(node).is_none() => cluster.add_node(node).await,
        Operation::Lose(_) | Operation::Find(_) | Operation::RemoveNode(_) | Operation::AddNode(_) => {}
        Operation::Stop(plane) => cluster.planes[plane].stop().await,
        Operation::Crash(plane) => cluster.planes[plane].crash(),
        Operation::Start(plane) => cluster.planes[plane].start(),
        Operation::Cut(plane) => cluster.planes[plane].cut(true),
        Operation::Mend(plane) => cluster.planes[plane].cut(false),
        Operation::SetClock(seconds) => {
            cluster.store.step(Step::Disturbance);
            cluster.env.set_clock(SignedDuration::from_secs(seconds));
            // Told at either time.
            cluster.store.step(Step::Disturbance);
        }
        Operation::Wait(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
        Operation::Rest => {
            cluster.start_controllers();
            cluster.planes.iter().for_each(|plane| plane.cut(false));
            for node in ["n1", "n2", "n3"] {
                match cluster.node(node) {
                    None => cluster.add_node(node).await,
                    Some(false) => cluster.find_node(node).await,
                    Some(true) => {}
                }
            }
            cluster.rest(REST).await;
        }
    }
}

fn pod(cluster: &Cluster, n: usize) -> Option<Key> {
    let pods = cluster.seen.pods.list();
    (!pods.is_empty()).then(|| Key::of(&*pods[n % pods.len()]))
}

/// Has an object be there, and be so; a workload with its Service.
async fn apply(cluster: &mut Cluster, resource: &str, key: &Key, spec: Value) {
    if !cluster.namespaces().contains(&key.namespace) {
        return;
    }
    let within = Key::new(key.namespace.clone(), "");
    let object = json!({ "metadata": { "name": key.name }, "spec": spec });
    let made = cluster.client.call(request(Verb::Create, resource, &within, Some(object))).await;
    match made {
        Ok(_) => {}
        Err(status) if status.is_already_exists() => {
            // A Job keeps what it has begun with.
            let patch = match resource {
                "jobs.batch" => json!({ "parallelism": spec["parallelism"], "suspend": spec["suspend"] }),
                _ => spec,
            };
            let patch = request(Verb::Patch, resource, key, Some(json!({ "spec": patch })));
            cluster.client.call(patch).await.map(drop).unwrap_or_else(|status| allow(&status));
        }
        Err(status) => allow(&status),
    }
    if !matches!(resource, "deployments.apps" | "statefulsets.apps") {
        return;
    }
    let spec = json!({ "selector": { "app": key.name }, "ports": [{ "port": 80, "targetPort": 8080 }] });
    let service = json!({ "metadata": { "name": key.name }, "spec": spec });
    let made = cluster.client.call(request(Verb::Create, "services", &within, Some(service))).await;
    made.map(drop).unwrap_or_else(|status| allow(&status));
}

/// What is asked for may be there, be gone, or be going.
fn allow(status: &Status) {
    let expected = matches!(status.code, 404 | 409) || status.message.contains("being terminated");
    assert!(expected, "{status}");
}
