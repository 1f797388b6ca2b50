//! StatefulSets keep their order and DaemonSets one Pod a node, whatever is wished and whoever restarts in between.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use podwright::{
    client::{Informers, Key},
    controllers::meta,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use super::{cluster::Cluster, first_seed, run};

fn seeds() -> [u64; 2] {
    let first = first_seed();
    [first, first + 1]
}

fn template(app: &str, image: &str) -> Value {
    let containers = json!([{ "name": "c", "image": image }]);
    json!({ "metadata": { "labels": { "app": app } }, "spec": { "containers": containers } })
}

fn image(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.containers[0].image.as_deref()
}

fn well(pod: &Pod) -> bool {
    meta::is_active(pod) && meta::is_ready(pod)
}

async fn restart(cluster: &mut Cluster, rng: &mut StdRng) {
    cluster.stop_controllers().await;
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..2000))).await;
    cluster.start_controllers();
}

/// What is wished of the StatefulSet `db`, and the fewest replicas that it may still go by.
struct Wish {
    replicas: i32,
    fewest: i32,
    image: String,
}

fn ordinal(pod: &Pod) -> i32 {
    let name = meta::name(&pod.metadata);
    name.strip_prefix("db-").and_then(|digits| digits.parse().ok()).expect("a name of the StatefulSet's")
}

/// Checks every change of a Pod: none is made, or deleted, before all those below it that there shall be are well.
async fn watch_order(seen: Informers, wish: Arc<Mutex<Wish>>, violations: Arc<Mutex<Vec<String>>>) {
    let mut changes = seen.pods.subscribe();
    let mut pods: BTreeMap<i32, Arc<Pod>> = BTreeMap::new();
    while let Some(change) = changes.recv().await {
        let Some(any) = change.new.as_ref().or(change.old.as_ref()) else { continue };
        let at = ordinal(any);
        let goes = |pod: &Option<Arc<Pod>>| pod.as_ref().is_some_and(|pod| meta::is_terminating(&pod.metadata));
        let (is_made, is_deleted) = (change.old.is_none(), !goes(&change.old) && goes(&change.new));
        let fewest = wish.lock().expect("nobody panics with it").fewest;
        let below = if is_made { at } else { at.min(fewest) };
        if is_made || is_deleted {
            let unwell = (0..below).filter(|lower| !pods.get(lower).is_some_and(|pod| well(pod)));
            let unwell: Vec<i32> = unwell.collect();
            if !unwell.is_empty() {
                let what = if is_made { "made" } else { "deleted" };
                violations
                    .lock()
                    .expect("nobody panics with it")
                    .push(format!("db-{at} is {what} before {unwell:?} are well"));
            }
        }
        match change.new {
            Some(pod) => drop(pods.insert(at, pod)),
            None => drop(pods.remove(&at)),
        }
    }
}

#[test]
fn a_stateful_set_keeps_its_order() {
    for seed in seeds() {
        println!("SIMULATION_SEED={seed}");
        run(async {
            let mut cluster = Cluster::rough(seed).await;
            let mut rng = StdRng::seed_from_u64(seed);
            cluster.add_node("n1").await;
            cluster.add_namespace("a").await;
            let wish = Arc::new(Mutex::new(Wish { replicas: 3, fewest: 3, image: "v0".into() }));
            let violations = Arc::new(Mutex::new(Vec::new()));
            tokio::spawn(watch_order(cluster.seen.clone(), wish.clone(), violations.clone()));
            let set = json!({ "metadata": { "name": "db" }, "spec": {
                "replicas": 3, "serviceName": "db", "selector": { "matchLabels": { "app": "db" } },
                "revisionHistoryLimit": 2, "template": template("db", "v0"),
            }});
            cluster.create("statefulsets.apps", "a", set).await;
            for round in 0..15 {
                println!("round {round}");
                for _ in 0..rng.random_range(1..4) {
                    let spec = {
                        let mut wish = wish.lock().expect("nobody panics with it");
                        match rng.random_bool(0.5) {
                            true => wish.replicas = rng.random_range(0..6),
                            false => wish.image = format!("v{}", rng.random_range(0..4)),
                        }
                        wish.fewest = wish.fewest.min(wish.replicas);
                        json!({ "replicas": wish.replicas, "template": template("db", &wish.image) })
                    };
                    cluster.patch("statefulsets.apps", &Key::new("a", "db"), json!({ "spec": spec })).await;
                    tokio::time::sleep(Duration::from_millis(rng.random_range(0..3000))).await;
                    if rng.random_bool(0.2) {
                        restart(&mut cluster, &mut rng).await;
                    }
                }
                cluster.until("the StatefulSet is as wished", |cluster| is_as_wished(cluster, &wish)).await;
                let violations = std::mem::take(&mut *violations.lock().expect("nobody panics with it"));
                assert!(violations.is_empty(), "{violations:#?}");
                let mut wish = wish.lock().expect("nobody panics with it");
                wish.fewest = wish.replicas;
            }
            let events = cluster.events("a").await;
            let made = "SuccessfulCreate: create Pod db-0 in StatefulSet db successful";
            assert!(events.iter().any(|event| event == made), "{events:#?}");
        });
    }
}

fn is_as_wished(cluster: &Cluster, wish: &Mutex<Wish>) -> bool {
    let wish = wish.lock().expect("nobody panics with it");
    let Some(set) = cluster.seen.stateful_sets.get(&Key::new("a", "db")) else { return false };
    let status = set.status.clone().unwrap_or_default();
    let pods = cluster.seen.pods.list();
    let names: BTreeSet<i32> = pods.iter().map(|pod| ordinal(pod)).collect();
    let revisions = cluster.seen.controller_revisions.list();
    let right = |pod: &Arc<Pod>| {
        let labels = pod.metadata.labels.as_ref();
        well(pod)
            && image(pod) == Some(&wish.image)
            && labels.and_then(|labels| labels.get("controller-revision-hash")) == status.update_revision.as_ref()
    };
    names == (0..wish.replicas).collect()
        && pods.iter().all(right)
        && status.observed_generation == set.metadata.generation
        && (status.replicas, status.updated_replicas) == (wish.replicas, Some(wish.replicas))
        && status.available_replicas == Some(wish.replicas)
        && status.current_revision == status.update_revision
        && revisions.len() <= 3
}

/// The nodes' Pods of the DaemonSet `logs`, and whether each is well and of this image.
fn on_nodes(cluster: &Cluster, wanted: &str) -> BTreeMap<String, bool> {
    let pods = cluster.seen.pods.list();
    let place = |pod: &Arc<Pod>| {
        (meta::node_name(pod).unwrap_or("nowhere").to_owned(), well(pod) && image(pod) == Some(wanted))
    };
    let places: BTreeMap<String, bool> = pods.iter().map(place).collect();
    if places.len() == pods.len() { places } else { BTreeMap::new() }
}

/// Checks at every change that no node has two Pods that stay.
async fn watch_nodes(seen: Informers, violations: Arc<Mutex<Vec<String>>>) {
    let mut changes = seen.pods.subscribe();
    let mut stay: BTreeMap<Key, String> = BTreeMap::new();
    while let Some(change) = changes.recv().await {
        let node = change
            .new
            .as_ref()
            .filter(|pod| meta::is_active(pod))
            .and_then(|pod| podwright::controllers::daemon_set::nodes::target(pod).map(str::to_owned));
        match node {
            Some(node) => drop(stay.insert(change.key, node)),
            None => drop(stay.remove(&change.key)),
        }
        let nodes: BTreeSet<&String> = stay.values().collect();
        if nodes.len() < stay.len() {
            violations.lock().expect("nobody panics with it").push(format!("two on a node: {stay:?}"));
        }
    }
}

#[test]
fn a_daemon_set_follows_the_nodes() {
    for seed in seeds() {
        println!("SIMULATION_SEED={seed}");
        run(async {
            let mut cluster = Cluster::rough(seed).await;
            let mut rng = StdRng::seed_from_u64(seed);
            let mut nodes = BTreeSet::from(["n1".to_owned(), "n2".to_owned()]);
            for node in &nodes {
                cluster.add_node(node).await;
            }
            cluster.add_namespace("a").await;
            let violations = Arc::new(Mutex::new(Vec::new()));
            tokio::spawn(watch_nodes(cluster.seen.clone(), violations.clone()));
            let mut wanted = "v0".to_owned();
            let set = json!({ "metadata": { "name": "logs" }, "spec": {
                "selector": { "matchLabels": { "app": "logs" } }, "template": template("logs", "v0"),
            }});
            cluster.create("daemonsets.apps", "a", set).await;
            for round in 0..12 {
                println!("round {round}");
                for _ in 0..rng.random_range(1..4) {
                    let node = format!("n{}", rng.random_range(0..5));
                    match rng.random_range(0..5) {
                        0..3 if !nodes.contains(&node) => {
                            cluster.add_node(&node).await;
                            nodes.insert(node);
                        }
                        0 if nodes.len() > 1 => {
                            cluster.delete_node(&node).await;
                            nodes.remove(&node);
                        }
                        1..4 => {
                            wanted = format!("v{}", rng.random_range(0..4));
                            let patch = json!({ "spec": { "template": template("logs", &wanted) } });
                            cluster.patch("daemonsets.apps", &Key::new("a", "logs"), patch).await;
                        }
                        _ => restart(&mut cluster, &mut rng).await,
                    }
                    tokio::time::sleep(Duration::from_millis(rng.random_range(0..3000))).await;
                }
                let number = nodes.len() as i32;
                let goal: BTreeMap<String, bool> = nodes.iter().map(|node| (node.clone(), true)).collect();
                let done = |cluster: &Cluster| {
                    let Some(set) = cluster.seen.daemon_sets.get(&Key::new("a", "logs")) else { return false };
                    let status = set.status.clone().unwrap_or_default();
                    on_nodes(cluster, &wanted) == goal
                        && status.observed_generation == set.metadata.generation
                        && (status.desired_number_scheduled, status.current_number_scheduled) == (number, number)
                        && (status.updated_number_scheduled, status.number_available) == (Some(number), Some(number))
                };
                cluster.until("a Pod on every node", done).await;
                let violations = std::mem::take(&mut *violations.lock().expect("nobody panics with it"));
                assert!(violations.is_empty(), "{violations:#?}");
            }
        });
    }
}
