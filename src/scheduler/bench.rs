//! How fast the scheduler decides, and how fast Pods get their nodes: what `./dev bench` measures.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    cluster::Cluster,
    config::Config,
    decide::{Decision, decide},
    pod::{PodInfo, node_name},
    profile::Profile,
};
use crate::{
    api::{Env, Status},
    client::{Client, Informers},
};

/// A node as the benches have it: 32 CPUs, 256 GiB, 110 Pods.
fn node(n: usize) -> Value {
    let name = format!("node-{n:05}");
    let capacity = json!({ "cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110" });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name, "zone": format!("z{}", n % 3) } },
        "status": { "capacity": capacity, "allocatable": capacity },
    })
}

/// A Pod that requests a little of everything. With `affinity` it must go to one of two zones and prefers one.
fn pod(n: usize, affinity: bool) -> Value {
    let zone = |values: Value| json!([{ "key": "zone", "operator": "In", "values": values }]);
    let affinity = affinity.then(|| {
        json!({ "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution":
                { "nodeSelectorTerms": [{ "matchExpressions": zone(json!(["z0", "z1"])) }] },
            "preferredDuringSchedulingIgnoredDuringExecution":
                [{ "weight": 10, "preference": { "matchExpressions": zone(json!(["z0"])) } }],
        }})
    });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("pod-{n}"), "namespace": "default", "uid": format!("uid-{n}") },
        "spec": {
            "affinity": affinity,
            "containers": [{
                "name": "c", "image": "i", "resources": { "requests": { "cpu": "100m", "memory": "128Mi" } },
            }],
        },
    })
}

/// Decisions per second, without any I/O: each Pod is taken in, decided, and counted on its node.
pub fn decisions(nodes: usize, pods: usize, affinity: bool) -> Result<f64, Status> {
    let (env, profile) = (Env::system(), Profile::default());
    let mut cluster = Cluster::default();
    for n in 0..nodes {
        cluster.set_node(Arc::new(serde_json::from_value::<Node>(node(n)).map_err(Status::internal)?));
    }
    let pods = (0..pods).map(|n| serde_json::from_value::<Pod>(pod(n, affinity)).map(Arc::new));
    let pods: Vec<Arc<Pod>> = pods.collect::<Result<_, _>>().map_err(Status::internal)?;
    let start = Instant::now();
    for pod in &pods {
        let pod = PodInfo::of(pod.clone());
        match decide(&pod, &mut cluster, &profile, &env) {
            Decision::Bind(choice) => cluster.assume(pod, &choice.node),
            Decision::Unschedulable { message, .. } => return Err(Status::internal(message)),
        }
    }
    Ok(pods.len() as f64 / start.elapsed().as_secs_f64())
}

/// Pods bound per second in the control plane behind `client`, whose scheduler is started here when nodes and Pods exist.
pub async fn bindings(client: Client, env: Env, nodes: usize, pods: usize) -> Result<f64, Status> {
    for n in 0..nodes {
        let node: Node = serde_json::from_value(node(n)).map_err(Status::internal)?;
        client.create(&node).await?;
        client.update_status(&node).await.map(drop)?;
    }
    for n in 0..pods {
        let mut pod: Pod = serde_json::from_value(pod(n, false)).map_err(Status::internal)?;
        pod.metadata.uid = None;
        client.create(&pod).await?;
    }
    let informers = Informers::start(client.clone());
    informers.synced().await;
    let mut changes = informers.pods.subscribe();
    let shutdown = CancellationToken::new();
    let start = Instant::now();
    let scheduler = tokio::spawn(super::run(client, env, informers, Arc::new(Config::default()), shutdown.clone()));
    let mut bound = 0;
    while bound < pods {
        let change = tokio::time::timeout(Duration::from_secs(60), changes.recv()).await;
        let Ok(Some(change)) = change else {
            return Err(Status::internal(format!("{bound} of {pods} Pods are bound, and no more")));
        };
        let is_bound = |pod: &Option<Arc<Pod>>| pod.as_deref().is_some_and(|pod| node_name(pod).is_some());
        bound += usize::from(is_bound(&change.new) && !is_bound(&change.old));
    }
    let elapsed = start.elapsed();
    shutdown.cancel();
    scheduler.await.map_err(Status::internal)?;
    Ok(pods as f64 / elapsed.as_secs_f64())
}
