//! The whole control plane in one thread, on a paused clock: server, store, controllers, and hollow nodes.
//!
//! Each round does a few random things to the cluster, then waits until it is at rest again. While it moves, limits are
//! checked at every change of a Pod; at rest, everything is. A failure names the seed; `SIMULATION_SEED=n` runs it again.

mod budgets;
mod claims;
mod cluster;
mod history;
mod jobs;
mod leaders;
mod rough;
mod seeds;
mod sets;

use std::time::Duration;

use cluster::{Cluster, Wish};
use podwright::{
    client::{Informers, Key},
    controllers::meta,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// How long a cluster may take to come to rest: an eviction takes its 300 s of tolerance after 40 s of silence.
const REST: Duration = Duration::from_secs(1800);

fn run(test: impl Future<Output = ()>) {
    // `RUST_LOG=podwright=debug` tells what is refused and why.
    let levels = std::env::var("RUST_LOG").unwrap_or_default().parse::<Targets>().unwrap_or_default();
    let log = tracing_subscriber::fmt::layer().with_test_writer();
    tracing_subscriber::registry().with(levels).with(log).try_init().ok();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(test);
}

#[test]
fn a_deployment_comes_up_rolls_over_and_goes() {
    run(async {
        let mut cluster = Cluster::new(1).await;
        cluster.add_node("n1").await;
        cluster.add_namespace("a").await;
        let key = Key::new("a", "web");
        cluster.deploy(&key, Wish::new(5, "v1")).await;
        cluster.rest(REST).await;
        cluster.change(&key, |wish| wish.image = "v2".into()).await;
        cluster.rest(REST).await;
        let events = cluster.events("a").await;
        for expected in [
            "ScalingReplicaSet: Scaled up replica set web-",
            "SuccessfulCreate: Created pod: web-",
            "SuccessfulDelete: Deleted pod: web-",
        ] {
            assert!(events.iter().any(|event| event.starts_with(expected)), "no event {expected:?} in {events:#?}");
        }
        cluster.undeploy(&key, "Foreground").await;
        cluster.rest(REST).await;
    });
}

#[test]
fn nothing_is_written_at_rest() {
    run(async {
        let mut cluster = Cluster::new(2).await;
        cluster.add_node("n1").await;
        cluster.add_namespace("a").await;
        cluster.deploy(&Key::new("a", "web"), Wish::new(3, "v1")).await;
        cluster.rest(REST).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        cluster.stop_heartbeats();
        let before = cluster.revision();
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(cluster.revision(), before);
    });
}

#[test]
fn pods_come_up_at_once() {
    run(async {
        let mut cluster = Cluster::new(3).await;
        cluster.add_node("n1").await;
        cluster.add_namespace("a").await;
        cluster.rest(REST).await;
        let start = tokio::time::Instant::now();
        cluster.deploy(&Key::new("a", "web"), Wish::new(30, "v1")).await;
        cluster.until("30 Pods exist", |cluster| cluster.seen.pods.len() == 30).await;
        // The clock moves only when everybody waits: nobody on this way waits for time to pass.
        assert_eq!(start.elapsed(), Duration::ZERO);
    });
}

#[test]
fn a_full_namespace_is_emptied() {
    run(async {
        let mut cluster = Cluster::new(4).await;
        cluster.add_node("n1").await;
        cluster.add_namespace("a").await;
        for name in ["x", "y", "z"] {
            cluster.deploy(&Key::new("a", name), Wish::new(4, "v1")).await;
        }
        cluster.rest(REST).await;
        cluster.delete_namespace("a").await;
        cluster.rest(REST).await;
    });
}

#[test]
fn a_lost_node_is_tainted_and_its_pods_move() {
    run(async {
        let mut cluster = Cluster::new(5).await;
        cluster.add_node("n1").await;
        cluster.add_node("n2").await;
        cluster.add_namespace("a").await;
        cluster.deploy(&Key::new("a", "web"), Wish::new(6, "v1")).await;
        cluster.rest(REST).await;
        let start = tokio::time::Instant::now();
        cluster.lose_node("n2");
        cluster.until("n2 is tainted", |cluster| cluster.taints("n2").len() == 2).await;
        let passed = start.elapsed().as_secs();
        assert!((30..=45).contains(&passed), "tainted after {passed} s");
        cluster.rest(REST).await;
        assert!(start.elapsed().as_secs() > 300, "Pods tolerate that for 300 s");
        let events = cluster.events("a").await;
        assert!(events.iter().any(|e| e.starts_with("TaintManagerEviction: Marking for deletion Pod a/web-")));
        cluster.find_node("n2").await;
        cluster.rest(REST).await;
        assert_eq!(cluster.taints("n2"), [""; 0]);
    });
}

#[test]
fn an_orphaned_replica_set_is_adopted() {
    run(async {
        let mut cluster = Cluster::new(6).await;
        cluster.add_node("n1").await;
        cluster.add_namespace("a").await;
        let key = Key::new("a", "web");
        cluster.deploy(&key, Wish::new(3, "v1")).await;
        cluster.rest(REST).await;
        let before: Vec<_> = cluster.seen.pods.list().iter().map(|pod| pod.metadata.uid.clone()).collect();
        cluster.undeploy(&key, "Orphan").await;
        cluster.until("the Deployment is gone", |cluster| cluster.seen.deployments.is_empty()).await;
        let orphan = cluster.seen.replica_sets.list();
        assert_eq!(orphan[0].metadata.owner_references.as_deref().unwrap_or_default(), []);
        cluster.deploy(&key, Wish::new(3, "v1")).await;
        cluster.rest(REST).await;
        let after: Vec<_> = cluster.seen.pods.list().iter().map(|pod| pod.metadata.uid.clone()).collect();
        assert_eq!(before, after, "the Pods have not noticed");
    });
}

#[test]
fn anything_may_happen_at_any_time() {
    let first: u64 = match std::env::var("SIMULATION_SEED") {
        Ok(seed) => return drop(random(seed.parse().expect("SIMULATION_SEED is a number"), 30)),
        Err(_) => rand::rng().random(),
    };
    for seed in (0..4).map(|n| first.wrapping_add(n) % 1_000_000) {
        random(seed, 12);
    }
}

fn random(seed: u64, rounds: usize) -> Vec<history::Line> {
    println!("SIMULATION_SEED={seed}");
    let mut lines = Vec::new();
    run(async {
        let mut cluster = Cluster::rough(seed).await;
        let mut rng = StdRng::seed_from_u64(seed);
        for node in ["n1", "n2", "n3"] {
            cluster.add_node(node).await;
        }
        for round in 0..rounds {
            println!("round {round}");
            for _ in 0..rng.random_range(1..4) {
                disturb(&mut cluster, &mut rng).await;
                tokio::time::sleep(Duration::from_millis(rng.random_range(0..3000))).await;
            }
            cluster.rest(REST).await;
        }
        lines = cluster.store.lines().clone();
    });
    lines
}

/// One random event.
async fn disturb(cluster: &mut Cluster, rng: &mut StdRng) {
    let namespaces = cluster.namespaces();
    let namespace = format!("ns{}", rng.random_range(0..2));
    if !namespaces.contains(&namespace) {
        return cluster.add_namespace(&namespace).await;
    }
    let key = Key::new(namespace.clone(), format!("d{}", rng.random_range(0..3)));
    if cluster.wish(&key).is_none() {
        let mut wish = Wish::new(rng.random_range(0..8), "v0");
        (wish.surge, wish.unavailable) = [(1, 0), (0, 1), (2, 1), (3, 3)][rng.random_range(0..4)];
        wish.recreate = rng.random_bool(0.15);
        return cluster.deploy(&key, wish).await;
    }
    match rng.random_range(0..20) {
        0..6 => cluster.change(&key, |wish| wish.image = format!("v{}", rng.random_range(0..4))).await,
        6..9 => cluster.change(&key, |wish| wish.replicas = rng.random_range(0..8)).await,
        9 => {
            cluster.change(&key, |wish| wish.image = "broken".into()).await;
            tokio::time::sleep(Duration::from_secs(rng.random_range(0..30))).await;
            cluster.change(&key, |now| now.image = "v9".into()).await;
        }
        10 => {
            cluster.change(&key, |wish| (wish.paused, wish.image) = (true, "v5".into())).await;
            tokio::time::sleep(Duration::from_secs(rng.random_range(0..10))).await;
            cluster.change(&key, |wish| wish.paused = false).await;
        }
        11..13 => {
            let policy = ["Foreground", "Background"][rng.random_range(0..2)];
            cluster.undeploy(&key, policy).await;
        }
        13 => cluster.delete_namespace(&namespace).await,
        14 => cluster.delete_pod(rng).await,
        15..17 => {
            cluster.stop_controllers().await;
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..2000))).await;
            cluster.start_controllers();
        }
        17 => {
            cluster.lose_node("n3");
            tokio::time::sleep(Duration::from_secs(rng.random_range(0..600))).await;
            cluster.find_node("n3").await;
        }
        18 => {
            cluster.delete_node("n2").await;
            tokio::time::sleep(Duration::from_secs(rng.random_range(0..100))).await;
            cluster.add_node("n2").await;
        }
        _ => {
            cluster.stop_controllers().await;
            cluster.change(&key, |wish| wish.image = format!("v{}", rng.random_range(0..4))).await;
            cluster.start_controllers();
            for _ in 0..rng.random_range(0..200) {
                tokio::task::yield_now().await;
            }
            cluster.stop_controllers().await;
            cluster.start_controllers();
        }
    }
}

#[test]
fn nodes_that_are_lost_together_lose_their_pods_one_by_one_and_all_lost_keep_them() {
    run(async {
        let mut cluster = Cluster::new(9).await;
        for name in ["n1", "n2", "n3", "n4", "n5"] {
            cluster.add_node(name).await;
        }
        cluster.lose_node("n1");
        cluster.lose_node("n2");
        let evicts = |cluster: &Cluster, name: &str| {
            cluster.taints(name).iter().any(|taint| taint == "node.kubernetes.io/unreachable:NoExecute")
        };
        let closed = |cluster: &Cluster, name: &str| !cluster.taints(name).is_empty();
        cluster.until("both are closed", |cluster| closed(cluster, "n1") && closed(cluster, "n2")).await;
        cluster.until("one loses its Pods", |cluster| evicts(cluster, "n1") || evicts(cluster, "n2")).await;
        assert!(!(evicts(&cluster, "n1") && evicts(&cluster, "n2")), "one at a time");
        let start = tokio::time::Instant::now();
        cluster.until("both lose them", |cluster| evicts(cluster, "n1") && evicts(cluster, "n2")).await;
        assert!((8..=11).contains(&start.elapsed().as_secs()), "after {:?}", start.elapsed());
        for name in ["n3", "n4", "n5"] {
            cluster.lose_node(name);
        }
        cluster.until("nobody is left to go to", |cluster| ["n1", "n2"].iter().all(|n| !evicts(cluster, n))).await;
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(["n1", "n2", "n3", "n4", "n5"].iter().all(|name| closed(&cluster, name) && !evicts(&cluster, name)));
        cluster.find_node("n5").await;
        // Four of five are lost: more than a small zone is trusted with.
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(["n1", "n2", "n3", "n4"].iter().all(|name| !evicts(&cluster, name)));
        cluster.find_node("n4").await;
        cluster.find_node("n3").await;
        cluster.until("it goes on", |cluster| evicts(cluster, "n1") && evicts(cluster, "n2")).await;
        assert_eq!(cluster.taints("n5"), [""; 0]);
    });
}

#[test]
fn a_replication_controller_keeps_its_pods() {
    run(async {
        let mut cluster = Cluster::new(10).await;
        cluster.add_node("n1").await;
        cluster.add_namespace("a").await;
        let template = json!({ "metadata": { "labels": { "app": "old" } }, "spec": { "containers": [{ "name": "c", "image": "c:1" }] } });
        let controller = json!({ "metadata": { "name": "old" }, "spec": { "replicas": 3, "template": template } });
        cluster.create("replicationcontrollers", "a", controller).await;
        let ready = |number: i32| {
            move |cluster: &Cluster| {
                let known = cluster.seen.replication_controllers.get(&Key::new("a", "old"));
                let status = known.and_then(|known| known.status.clone()).unwrap_or_default();
                (status.replicas, status.ready_replicas) == (number, Some(number))
                    && cluster.seen.pods.list().iter().filter(|pod| meta::is_active(pod)).count() == number as usize
            }
        };
        cluster.until("three are ready", ready(3)).await;
        let victim = Key::of(&*cluster.seen.pods.list()[0]);
        cluster.evict(&victim).await.expect("no budget forbids it");
        cluster.until("it is going", |cluster| !ready(3)(cluster)).await;
        cluster.until("another one takes its place", ready(3)).await;
        let patch = json!({ "spec": { "replicas": 1 } });
        cluster.patch("replicationcontrollers", &Key::new("a", "old"), patch).await;
        cluster.until("one is left", ready(1)).await;
        let events = cluster.events("a").await;
        assert!(events.iter().any(|event| event.starts_with("SuccessfulDelete: Deleted pod: old-")), "{events:#?}");
    });
}

#[test]
fn the_endpoints_of_a_service_come_and_go_with_it_and_a_users_are_mirrored() {
    run(async {
        let mut cluster = Cluster::new(11).await;
        cluster.add_namespace("a").await;
        let ports = json!([{ "name": "web", "port": 80 }]);
        let service = |name: &str, selector: serde_json::Value| json!({ "metadata": { "name": name }, "spec": { "selector": selector, "ports": ports } });
        cluster.create("services", "a", service("own", json!({ "app": "x" }))).await;
        cluster.create("services", "a", service("foreign", serde_json::Value::Null)).await;
        let subsets = json!([{ "addresses": [{ "ip": "192.0.2.1" }], "ports": [{ "name": "web", "port": 8080 }] }]);
        cluster.create("endpoints", "a", json!({ "metadata": { "name": "foreign" }, "subsets": subsets })).await;
        let mirrored = |cluster: &Cluster| {
            let slices = cluster.seen.endpoint_slices.indexed(Informers::BY_SERVICE, "a/foreign");
            slices.iter().flat_map(|slice| &slice.endpoints).flat_map(|e| e.addresses.clone()).collect::<Vec<_>>()
        };
        cluster.until("it is mirrored", |cluster| mirrored(cluster) == ["192.0.2.1"]).await;
        let own = Key::new("a", "own");
        cluster.until("the Service has Endpoints", |cluster| cluster.seen.endpoints.get(&own).is_some()).await;
        let changed = json!({ "subsets": [{ "addresses": [{ "ip": "192.0.2.2" }] }] });
        cluster.patch("endpoints", &Key::new("a", "foreign"), changed).await;
        cluster.until("so is a change", |cluster| mirrored(cluster) == ["192.0.2.2"]).await;
        cluster.delete("endpoints", &own).await;
        cluster.until("they are made anew", |cluster| cluster.seen.endpoints.get(&own).is_some()).await;
        cluster.delete("services", &own).await;
        cluster.until("they go with it", |cluster| cluster.seen.endpoints.get(&own).is_none()).await;
        cluster.delete("services", &Key::new("a", "foreign")).await;
        cluster.until("the mirror is empty", |cluster| mirrored(cluster).is_empty()).await;
        let users = cluster.seen.endpoints.get(&Key::new("a", "foreign"));
        assert!(users.is_some(), "what a user has written stays");
    });
}
