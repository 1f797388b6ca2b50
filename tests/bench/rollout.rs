//! A Deployment of 5,000 replicas on hollow nodes: how long it takes to be there, to be rolled and to be gone, and what memory
//! that takes of the control plane.
//!
//! The control plane is a process by itself, so that its memory is its own; this one runs the nodes and shares the CPUs with it.

use std::time::{Duration, Instant};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod},
};
use podwright::{
    api::{Env, Options},
    client::{Client, Informer, Key, rpc},
    node::{Agent, Config},
};
use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use crate::{
    beside,
    idle::{cpu_ticks, peak_rss_mib, rss_mib},
    support::TestNode,
};

const NODES: usize = 100;
const REPLICAS: i32 = 5_000;
/// What takes longer is not worth waiting for.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The figures, a line each.
pub fn deployment() {
    let server = TestNode::server(&[]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = rpc::client(rpc::Address(server.socket()), "bench");
        let stop = CancellationToken::new();
        let started = start_nodes(&server, &client, &stop).await;
        beside(&format!("{NODES} hollow nodes ready:"), format!("{:.1} s", started.as_secs_f64()));
        beside("control plane with its nodes:", format!("{:.0} MiB", rss_mib(server.pid())));
        let deployments = Informer::<Deployment>::builder(client.clone()).start();
        deployments.synced().await;
        let mut world = World { server: &server, client, deployments };
        world.step("created", create).await;
        world.step("rolled", roll).await;
        world.step("deleted", delete).await;
        beside("peak memory of the control plane:", format!("{:.0} MiB", peak_rss_mib(server.pid())));
        stop.cancel();
    });
    runtime.shutdown_background();
}

struct World<'a> {
    server: &'a TestNode,
    client: Client,
    deployments: Informer<Deployment>,
}

impl World<'_> {
    /// Times one thing that is done to the Deployment.
    async fn step(&mut self, what: &str, act: impl AsyncFn(&Client, &Informer<Deployment>)) {
        let (start, cpu) = (Instant::now(), cpu_ticks(self.server.pid()));
        if tokio::time::timeout(TIMEOUT, act(&self.client, &self.deployments)).await.is_err() {
            let known = self.deployments.get(&key()).and_then(|deployment| deployment.status.clone());
            return println!("deployment of {REPLICAS} replicas {what}: not within {TIMEOUT:?}: {known:?}");
        }
        let cpu = (cpu_ticks(self.server.pid()) - cpu) as f64 / 100.0;
        let (took, rss) = (start.elapsed().as_secs_f64(), rss_mib(self.server.pid()));
        println!(
            "deployment of {REPLICAS} replicas {what}: {took:.1} s, {cpu:.1} s of CPU and then {rss:.0} MiB of the control plane"
        );
    }
}

/// Each over a connection of its own, as agents have.
async fn start_nodes(server: &TestNode, client: &Client, stop: &CancellationToken) -> Duration {
    let (start, folder) = (Instant::now(), server.dir.path().join("nodes"));
    for n in 0..NODES {
        let name = format!("hollow-{n:03}");
        let mut config = Config::new(&name, folder.join(&name), folder.join(&name));
        config.addresses = vec![std::net::IpAddr::from([192, 0, 2, n as u8])];
        let agent = rpc::client(rpc::Address(server.socket()), "kubelet");
        tokio::spawn(Agent::run_hollow(config, agent, Env::system(), stop.clone()));
    }
    let nodes = Informer::<Node>::builder(client.clone()).start();
    let is_ready = |node: &Node| {
        let conditions = node.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
        { conditions }.any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let mut changes = nodes.subscribe();
    while nodes.list().iter().filter(|node| is_ready(node)).count() < NODES {
        next(&mut changes).await;
    }
    start.elapsed()
}

fn key() -> Key {
    Key::new("default", "big")
}

async fn create(client: &Client, deployments: &Informer<Deployment>) {
    let container = json!({ "name": "c", "image": "example.org/app:1", "ports": [{ "containerPort": 80 }],
        "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } } });
    let service = json!({ "metadata": { "name": "big", "namespace": "default" },
        "spec": { "selector": { "app": "big" }, "ports": [{ "port": 80 }] } });
    let deployment = json!({ "metadata": { "name": "big", "namespace": "default" }, "spec": {
        "replicas": REPLICAS, "selector": { "matchLabels": { "app": "big" } },
        "template": { "metadata": { "labels": { "app": "big" } }, "spec": { "containers": [container] } },
    } });
    client.create::<k8s_openapi::api::core::v1::Service>(&serde_json::from_value(service).unwrap()).await.unwrap();
    client.create::<Deployment>(&serde_json::from_value(deployment).unwrap()).await.unwrap();
    until_all_run(deployments, 1).await;
}

/// A new template, by the default strategy: a quarter more at most, a quarter less.
async fn roll(client: &Client, deployments: &Informer<Deployment>) {
    let template = json!({ "spec": { "template": { "metadata": { "annotations": { "example.org/roll": "1" } } } } });
    client.merge::<Deployment>(Some("default"), "big", None, template).await.unwrap();
    until_all_run(deployments, 2).await;
}

/// Until the last of its Pods is gone.
async fn delete(client: &Client, _: &Informer<Deployment>) {
    let pods = Informer::<Pod>::builder(client.clone()).namespace("default").start();
    pods.synced().await;
    let mut changes = pods.subscribe();
    client.delete::<Deployment>(Some("default"), "big", None, Options::default()).await.unwrap();
    while !pods.is_empty() {
        next(&mut changes).await;
    }
}

/// Until all replicas are of this generation and available, and there are no others.
async fn until_all_run(deployments: &Informer<Deployment>, generation: i64) {
    let mut changes = deployments.subscribe();
    loop {
        let known = deployments.get(&key()).and_then(|deployment| deployment.status.clone()).unwrap_or_default();
        let all = [known.replicas, known.updated_replicas, known.available_replicas];
        if known.observed_generation >= Some(generation) && all.iter().all(|count| *count == Some(REPLICAS)) {
            return;
        }
        next(&mut changes).await;
    }
}

/// The informer lives as long as its changes are asked for.
async fn next<K>(changes: &mut UnboundedReceiver<podwright::client::Delta<K>>) {
    changes.recv().await.unwrap();
}
