//! The scheduler: its rules as tables, its queue as properties, its loop on the memory store and a paused clock.

mod decide;
mod queue;
mod run;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use podwright::{
    api::{Env, patch},
    scheduler::{cluster::Cluster, pod::PodInfo},
};
use serde_json::{Value, json};

/// A node of 4 CPUs, 8 GiB and 10 Pods, with `changes` merged in.
fn node(name: &str, changes: Value) -> Arc<Node> {
    let base = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        "status": { "allocatable": { "cpu": "4", "memory": "8Gi", "ephemeral-storage": "100Gi", "pods": "10" } },
    });
    Arc::new(serde_json::from_value(patch::merge(&base, &changes)).expect("a Node"))
}

/// A Pod of one container without requests, with `spec` merged in.
fn pod(name: &str, spec: Value) -> Arc<PodInfo> {
    let base = json!({ "containers": [{ "name": "c", "image": "i" }] });
    let meta = json!({ "name": name, "namespace": "default", "uid": format!("uid-{name}") });
    let pod: Pod =
        serde_json::from_value(json!({ "metadata": meta, "spec": patch::merge(&base, &spec) })).expect("a Pod");
    PodInfo::of(Arc::new(pod))
}

fn requesting(requests: Value) -> Value {
    json!({ "containers": [{ "name": "c", "image": "i", "resources": { "requests": requests } }] })
}

fn cluster(nodes: impl IntoIterator<Item = Arc<Node>>) -> Cluster {
    let mut cluster = Cluster::default();
    nodes.into_iter().for_each(|node| cluster.set_node(node));
    cluster
}

/// Not a test: prints what `./dev bench` shows. `cargo test --release --test fast scheduler::bench -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a benchmark"]
async fn bench() {
    use podwright::{client::local, scheduler::bench, server, store::Memory};
    for nodes in [100, 1000, 5000] {
        for (name, affinity) in [("basic", false), ("node affinity", true)] {
            let speed = bench::decisions(nodes, 5000, affinity).expect("every Pod fits");
            println!("scheduling {name} {nodes} nodes: {speed:.0} decisions/s");
        }
    }
    for nodes in [100, 1000, 5000] {
        let (store, env) = (Arc::new(Memory::new()), Env::system());
        let server = server::Server::open(store, env.clone(), server::Config::default()).await.expect("a server");
        let client = local::client(server, "kube-scheduler");
        let speed = bench::bindings(client, env, nodes, 5000).await.expect("every Pod is bound");
        println!("scheduling basic {nodes} nodes: {speed:.0} Pods/s");
    }
}
