//! The scheduler: how fast it decides, and how fast Pods get their nodes through the API.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Node, Pod};
use podwright::{
    api::{Env, Status},
    client::{Client, Informers, local},
    scheduler::{
        self, Config,
        cluster::Cluster,
        decide::{Decision, decide},
        framework::Nomination,
        pod::PodInfo,
        profile::Profile,
    },
    server,
    store::Sqlite,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::report;

const PODS: usize = 5_000;

/// Decisions without I/O for each workload, then Pods bound through the API server on a durable store.
pub fn speed() {
    for workload in Workload::ALL {
        // Ten times upstream's floors at 5,000 nodes, and the design's own figure for basic Pods.
        let budget = match workload {
            Workload::Basic => 5_000.0,
            Workload::PreferredNodeAffinity => 2_200.0,
            Workload::RequiredPodAntiAffinity => 600.0,
            Workload::TopologySpread => 850.0,
            Workload::Preemption => 200.0,
        };
        for nodes in [100, 1_000, 5_000] {
            let speed = decisions(nodes, workload).expect("every Pod fits");
            let what = format!("scheduling {} {nodes} nodes:", workload.name());
            report(&what, format!("{speed:.0} Pods/s"), &format!(">= {budget} Pods/s"), speed >= budget);
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for nodes in [100, 1_000, 5_000] {
        let bound = runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let (store, env) = (Sqlite::open(&dir.path().join("scheduler.db")).unwrap(), Env::system());
            let server = server::Server::open(Arc::new(store), env.clone(), server::Config::default()).await.unwrap();
            bindings(local::client(server, "kube-scheduler"), env, nodes, PODS).await.expect("every Pod is bound")
        });
        let what = format!("bound through the API, durably, {nodes} nodes:");
        report(&what, format!("{bound:.0} Pods/s"), ">= 5000 Pods/s", bound >= 5_000.0);
    }
}

/// A node of the benchmarks: 32 CPUs, 256 GiB, 110 Pods.
fn node(n: usize) -> Value {
    let name = format!("node-{n:05}");
    let capacity = json!({ "cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110" });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name, "zone": format!("z{}", n % 3) } },
        "status": { "capacity": capacity, "allocatable": capacity },
    })
}

/// The Pods of a benchmark; the names are those of upstream's scheduler_perf.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Workload {
    Basic,
    /// Requires one of two zones and prefers one.
    PreferredNodeAffinity,
    /// Never two of them on a node.
    RequiredPodAntiAffinity,
    /// Spread evenly over zones.
    TopologySpread,
    /// All nodes are full of lower-priority Pods.
    Preemption,
}

impl Workload {
    const ALL: [Workload; 5] = [
        Workload::Basic,
        Workload::PreferredNodeAffinity,
        Workload::RequiredPodAntiAffinity,
        Workload::TopologySpread,
        Workload::Preemption,
    ];

    fn name(self) -> &'static str {
        match self {
            Workload::Basic => "basic",
            Workload::PreferredNodeAffinity => "preferred node affinity",
            Workload::RequiredPodAntiAffinity => "required Pod anti-affinity",
            Workload::TopologySpread => "topology spread",
            Workload::Preemption => "preemption",
        }
    }

    /// How many Pods are placed, at least one per node.
    fn pods(self, nodes: usize) -> usize {
        match self {
            Workload::RequiredPodAntiAffinity => nodes,
            Workload::Preemption => nodes.min(1_000),
            _ => 5_000.min(nodes * 50),
        }
    }

    /// What it adds to a Pod's spec.
    fn spec(self) -> Value {
        let zone = |values: Value| json!([{ "key": "zone", "operator": "In", "values": values }]);
        let selector = json!({ "matchLabels": { "color": "green" } });
        match self {
            Workload::Basic => json!({}),
            Workload::PreferredNodeAffinity => json!({ "affinity": { "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution":
                    { "nodeSelectorTerms": [{ "matchExpressions": zone(json!(["z0", "z1"])) }] },
                "preferredDuringSchedulingIgnoredDuringExecution":
                    [{ "weight": 10, "preference": { "matchExpressions": zone(json!(["z0"])) } }],
            } } }),
            Workload::RequiredPodAntiAffinity => json!({ "affinity": { "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution":
                    [{ "labelSelector": selector, "topologyKey": "kubernetes.io/hostname" }],
            } } }),
            Workload::TopologySpread => json!({ "topologySpreadConstraints": [{
                "maxSkew": 5, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector,
            }] }),
            Workload::Preemption => json!({ "priority": 10 }),
        }
    }
}

/// A Pod with small requests, or with this CPU request.
fn pod(name: &str, cpu: &str, spec: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata":
            { "name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": { "color": "green" } },
        "spec": spec,
    });
    let requests = json!({ "cpu": cpu, "memory": "128Mi" });
    pod["spec"]["containers"] = json!([{ "name": "c", "image": "i", "resources": { "requests": requests } }]);
    pod
}

/// Pods per second, without any I/O: each Pod is added, decided, and counted on its node. Its victims are gone at once.
fn decisions(nodes: usize, workload: Workload) -> Result<f64, Status> {
    let (env, profile) = (Env::system(), Profile::default());
    let mut cluster = Cluster::default();
    let read = |pod: Value| serde_json::from_value::<Pod>(pod).map(Arc::new).map_err(Status::internal);
    for n in 0..nodes {
        cluster.set_node(Arc::new(serde_json::from_value::<Node>(node(n)).map_err(Status::internal)?));
        // Four of them fill a node.
        for m in 0..if workload == Workload::Preemption { 4 } else { 0 } {
            let filler = read(pod(&format!("filler-{n}-{m}"), "8", json!({})))?;
            cluster.set_pod(PodInfo::of(filler), &format!("node-{n:05}"));
        }
    }
    let cpu = if workload == Workload::Preemption { "12" } else { "100m" };
    let pods = (0..workload.pods(nodes)).map(|n| read(pod(&format!("pod-{n}"), cpu, workload.spec())));
    let pods: Vec<Arc<Pod>> = pods.collect::<Result<_, _>>()?;
    let start = Instant::now();
    for pod in &pods {
        let pod = PodInfo::of(pod.clone());
        loop {
            match decide(&pod, &mut cluster, &profile, &env) {
                Decision::Bind(choice) => break cluster.assume(pod, &choice.node),
                Decision::Unschedulable { nomination: Nomination::Preempt { node, victims }, .. } => {
                    cluster.nominations.set(pod.clone(), &node);
                    victims.iter().for_each(|(_, uid)| drop(cluster.remove_pod(uid)));
                }
                Decision::Unschedulable { message, .. } => return Err(Status::internal(message)),
            }
        }
    }
    Ok(pods.len() as f64 / start.elapsed().as_secs_f64())
}

/// Pods bound per second in the control plane behind `client`; the scheduler starts here once nodes and Pods exist.
async fn bindings(client: Client, env: Env, nodes: usize, pods: usize) -> Result<f64, Status> {
    for n in 0..nodes {
        let node: Node = serde_json::from_value(node(n)).map_err(Status::internal)?;
        client.create(&node).await?;
        client.update_status(&node).await.map(drop)?;
    }
    for n in 0..pods {
        let mut pod: Pod =
            serde_json::from_value(pod(&format!("pod-{n}"), "100m", json!({}))).map_err(Status::internal)?;
        pod.metadata.uid = None;
        client.create(&pod).await?;
    }
    let informers = Informers::start(client.clone());
    informers.synced().await;
    let mut changes = informers.pods.subscribe();
    let shutdown = CancellationToken::new();
    let start = Instant::now();
    let scheduler = tokio::spawn(scheduler::run(client, env, informers, Arc::new(Config::default()), shutdown.clone()));
    let mut bound = 0;
    while bound < pods {
        let change = tokio::time::timeout(Duration::from_secs(60), changes.recv()).await;
        let Ok(Some(change)) = change else {
            return Err(Status::internal(format!("{bound} of {pods} Pods are bound, and no more")));
        };
        let is_bound =
            |pod: &Option<Arc<Pod>>| pod.as_ref().and_then(|pod| pod.spec.as_ref()?.node_name.as_ref()).is_some();
        bound += usize::from(is_bound(&change.new) && !is_bound(&change.old));
    }
    let elapsed = start.elapsed();
    shutdown.cancel();
    scheduler.await.map_err(Status::internal)?;
    Ok(pods as f64 / elapsed.as_secs_f64())
}
