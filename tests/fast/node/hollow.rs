//! A hollow node on a real control plane: Pods run and end through the API alone.

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use podwright::{
    api::{Env, Options, node_networks},
    client::{Client, local},
    node::{Agent, Config, Hollow, executor::Executor},
    server::{self, Server},
    store::Memory,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub struct Cluster {
    pub client: Client,
    pub store: Arc<Memory>,
    /// Of the server and of the first agent.
    pub env: Env,
    stop: CancellationToken,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub async fn cluster() -> Cluster {
    cluster_over(|env, ranges| Arc::new(Hollow::new(env, ranges))).await
}

/// A node with any executor.
pub async fn cluster_over(executor: impl FnOnce(Env, Vec<IpNet>) -> Arc<dyn Executor> + Send + 'static) -> Cluster {
    start(executor, |_| ()).await
}

/// A node whose agent is configured differently.
pub async fn cluster_with(change: impl FnOnce(&mut Config)) -> Cluster {
    start(|env, ranges| Arc::new(Hollow::new(env, ranges)), change).await
}

async fn start(
    executor: impl FnOnce(Env, Vec<IpNet>) -> Arc<dyn Executor> + Send + 'static,
    change: impl FnOnce(&mut Config),
) -> Cluster {
    let env = Env::simulated("2026-11-20T17:00:00Z".parse::<Timestamp>().unwrap(), 1);
    let store = Arc::new(Memory::new());
    let server = Server::open(store.clone(), env.clone(), server::Config::default()).await.unwrap();
    let client = local::client(server, "test");
    let stop = CancellationToken::new();
    let cluster = Cluster { client, store, env: env.clone(), stop };
    cluster.node(env, executor, change).await;
    cluster
}

impl Cluster {
    /// Replaces the node's agent by another one, with the same server.
    pub async fn restarted(
        self,
        executor: impl FnOnce(Env, Vec<IpNet>) -> Arc<dyn Executor> + Send + 'static,
    ) -> Cluster {
        self.again(executor, |_| ()).await
    }

    /// The same with an agent configured differently, which finds nothing of the Pods on its machine.
    pub async fn restarted_with(self, change: impl FnOnce(&mut Config)) -> Cluster {
        self.again(|env, ranges| Arc::new(Hollow::new(env, ranges)), change).await
    }

    async fn again(
        self,
        executor: impl FnOnce(Env, Vec<IpNet>) -> Arc<dyn Executor> + Send + 'static,
        change: impl FnOnce(&mut Config),
    ) -> Cluster {
        self.stop.cancel();
        let (client, store, stop) = (self.client.clone(), self.store.clone(), CancellationToken::new());
        let cluster = Cluster { client, store, env: self.env.clone(), stop };
        let env = Env::simulated("2026-11-20T18:00:00Z".parse::<Timestamp>().unwrap(), 2);
        cluster.node(env, executor, change).await;
        cluster
    }

    /// Starts the node's agent and waits until it is ready.
    async fn node(
        &self,
        env: Env,
        executor: impl FnOnce(Env, Vec<IpNet>) -> Arc<dyn Executor> + Send + 'static,
        change: impl FnOnce(&mut Config),
    ) {
        let folder = std::path::PathBuf::from("/nonexistent");
        let mut config = Config::new("n1", folder.clone(), folder);
        config.addresses = vec!["192.0.2.1".parse().unwrap()];
        change(&mut config);
        let (client, stop, clock) = (self.client.clone(), self.stop.clone(), env.clone());
        let executor = move |ranges| executor(clock, ranges);
        tokio::spawn(Agent::run_over(executor, config, client, env, stop));
        let cluster = self;
        let known = || async { cluster.client.get::<Node>(None, "n1").await.is_ok() };
        until("the node is registered", known).await;
        let range = json!({ "spec": { "podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"] } });
        cluster.client.merge::<Node>(None, "n1", None, range).await.unwrap();
        until("the node is ready", || async {
            let node: Node = cluster.client.get(None, "n1").await.unwrap();
            let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
            conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
        })
        .await;
    }
}

/// Waits for a condition; the clock is simulated, so nothing really sleeps.
pub async fn until<F: Future<Output = bool>>(what: &str, check: impl Fn() -> F) {
    for _ in 0..2000 {
        if check().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}

impl Cluster {
    pub async fn create(&self, name: &str, spec: Value) -> Pod {
        let account = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" },
            "spec": spec });
        let pod: Pod = serde_json::from_value(account).unwrap();
        self.client.create(&pod).await.unwrap()
    }
    pub async fn get(&self, name: &str) -> Option<Pod> {
        self.client.get(Some("default"), name).await.ok()
    }
    pub async fn status(&self, name: &str) -> Value {
        serde_json::to_value(self.get(name).await.and_then(|p| p.status)).unwrap_or_default()
    }
    pub async fn until_phase(&self, name: &str, phase: &str) {
        for _ in 0..2000 {
            if self.status(name).await["phase"] == phase {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{name} never became {phase}: {:#}", self.status(name).await);
    }
}

pub fn spec() -> Value {
    json!({ "nodeName": "n1", "automountServiceAccountToken": false,
        "containers": [{ "name": "a", "image": "example.com/a:1" }] })
}

#[tokio::test(start_paused = true)]
async fn a_pod_runs_and_is_deleted() {
    let cluster = cluster().await;
    cluster.create("web", spec()).await;
    cluster.until_phase("web", "Running").await;
    let status = cluster.status("web").await;
    assert_eq!(status["podIP"], "10.244.0.2");
    assert_eq!(status["hostIP"], "192.0.2.1");
    assert_eq!(status["qosClass"], "BestEffort");
    assert_eq!(status["containerStatuses"][0]["ready"], true);
    let ready = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap();
    assert_eq!(ready["status"], "True");
    cluster.client.delete::<Pod>(Some("default"), "web", None, Options::default()).await.unwrap();
    until("the Pod is gone", || async { cluster.get("web").await.is_none() }).await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_refused() {
    let cluster = cluster().await;
    let mut big = spec();
    big["containers"][0]["resources"] = json!({ "requests": { "cpu": "1000" } });
    cluster.create("big", big).await;
    cluster.until_phase("big", "Failed").await;
    let status = cluster.status("big").await;
    assert_eq!(status["reason"], "OutOfcpu");
    assert!(status["message"].as_str().unwrap().starts_with("Pod was rejected: Node didn't have enough resource: cpu"));
}

#[tokio::test(start_paused = true)]
async fn what_the_host_would_suffer_is_refused() {
    let cluster = cluster().await;
    for (name, sysctl) in [("dotted", "kernel.core_pattern"), ("slashed", "kernel/core_pattern")] {
        let mut bad = spec();
        bad["securityContext"] = json!({ "sysctls": [{ "name": sysctl, "value": "x" }] });
        cluster.create(name, bad).await;
        cluster.until_phase(name, "Failed").await;
        let status = cluster.status(name).await;
        assert_eq!(status["reason"], "SysctlForbidden");
        let why = "Pod was rejected: forbidden sysctl: \"kernel.core_pattern\" not allowlisted";
        assert_eq!(status["message"], why);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_declares_what_it_gives() {
    let cluster = cluster().await;
    let node: Node = cluster.client.get(None, "n1").await.unwrap();
    let status = serde_json::to_value(node.status).unwrap();
    assert_eq!(status["features"], json!({ "supplementalGroupsPolicy": true }));
    let features = json!({ "recursiveReadOnlyMounts": true, "userNamespaces": true });
    assert_eq!(status["runtimeHandlers"], json!([{ "name": "", "features": features }]));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_pod() {
    let cluster = cluster().await;
    let mut short = spec();
    short["activeDeadlineSeconds"] = json!(5);
    cluster.create("short", short).await;
    cluster.until_phase("short", "Running").await;
    cluster.until_phase("short", "Failed").await;
    assert_eq!(cluster.status("short").await["reason"], "DeadlineExceeded");
}

/// An hour ahead, or back: the Pod is ended when it has been active for the deadline, neither earlier nor later.
#[tokio::test(start_paused = true)]
async fn a_deadline_goes_by_time_that_passes_not_by_the_time_of_day() {
    for hours in [1, -1] {
        let cluster = cluster().await;
        let mut timed = spec();
        timed["activeDeadlineSeconds"] = json!(60);
        cluster.create("timed", timed).await;
        cluster.until_phase("timed", "Running").await;
        let begun = tokio::time::Instant::now();
        cluster.env.set_clock(jiff::SignedDuration::from_hours(hours));
        cluster
            .client
            .merge::<Pod>(Some("default"), "timed", None, json!({"metadata": {"labels": {"a": "b"}}}))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_secs(50)).await;
        assert_eq!(cluster.status("timed").await["phase"], "Running", "{hours} h");
        cluster.until_phase("timed", "Failed").await;
        assert_eq!(cluster.status("timed").await["reason"], "DeadlineExceeded", "{hours} h");
        assert!(begun.elapsed() < Duration::from_secs(70), "{hours} h: {:?}", begun.elapsed());
    }
}

async fn ready_of(cluster: &Cluster) -> Option<(String, Option<String>)> {
    let node: Node = cluster.client.get(None, "n1").await.ok()?;
    let ready = node.status?.conditions?.into_iter().find(|c| c.type_ == "Ready")?;
    Some((ready.status, node.metadata.uid))
}

/// Less than the interval of the periodic report.
const SOON: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn what_others_make_of_the_node_is_put_right_at_once() {
    let networks: Vec<IpNet> = ["192.168.50.1/24", "fd00:50::1/64"].map(|net| net.parse().unwrap()).to_vec();
    let cluster = cluster_with(|config| config.networks.clone_from(&networks)).await;
    let node = || async { cluster.client.get::<Node>(None, "n1").await.unwrap() };
    let was = node().await;
    let uid = was.metadata.uid.clone();
    // 1. As after a silence; and a status that was cleared.
    let silent = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown" }] } });
    let empty = json!({ "status": { "conditions": null, "addresses": null, "capacity": null } });
    for patch in [silent, empty] {
        cluster.client.merge::<Node>(None, "n1", Some("status"), patch.clone()).await.unwrap();
        let whole = || async {
            let status = node().await.status.unwrap_or_default();
            ready_of(&cluster).await == Some(("True".to_owned(), uid.clone()))
                && status.addresses == was.status.as_ref().unwrap().addresses
                && status.capacity == was.status.as_ref().unwrap().capacity
        };
        tokio::time::timeout(SOON, until("the node says how it is", whole)).await.unwrap();
    }
    // 2. Labels that were removed; the user's own stay.
    let taken = json!({ "metadata": { "labels": { "kubernetes.io/os": null, "mine": "a" } } });
    cluster.client.merge::<Node>(None, "n1", None, taken).await.unwrap();
    let labelled = || async {
        let labels = node().await.metadata.labels.unwrap_or_default();
        labels.get("kubernetes.io/os").is_some_and(|os| os == "linux") && labels.contains_key("mine")
    };
    tokio::time::timeout(SOON, until("the labels are back", labelled)).await.unwrap();
    // 3. Its networks, by which other nodes decide how they reach it.
    for said in [json!(null), json!("0.0.0.0/0")] {
        let patch = json!({ "metadata": { "annotations": { node_networks::ANNOTATION: said } } });
        cluster.client.merge::<Node>(None, "n1", None, patch).await.unwrap();
        let as_it_is = || async { node_networks::published(&node().await) == networks };
        tokio::time::timeout(SOON, until("it says where it is", as_it_is)).await.unwrap();
    }
    // 4. Another Node of the name.
    cluster.client.delete::<Node>(None, "n1", None, Options::default()).await.unwrap();
    let anew: Node = serde_json::from_value(json!({ "metadata": { "name": "n1" } })).unwrap();
    let made = cluster.client.create(&anew).await.unwrap();
    let whole = || async {
        ready_of(&cluster).await == Some(("True".to_owned(), made.metadata.uid.clone())) && {
            let labels = node().await.metadata.labels.unwrap_or_default();
            labels.contains_key("kubernetes.io/hostname")
        }
    };
    tokio::time::timeout(SOON, until("the new Node is this node's", whole)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nobody_is_fought_with_at_full_speed() {
    let cluster = cluster().await;
    let revisions = || async {
        let node: Node = cluster.client.get(None, "n1").await.unwrap();
        node.metadata.resource_version.unwrap().parse::<u64>().unwrap()
    };
    let before = revisions().await;
    // Another writer contradicts it each time.
    let mut said = 0u64;
    let rival = async {
        loop {
            if ready_of(&cluster).await.is_some_and(|(status, _)| status == "True") {
                let patch =
                    json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown", "reason": "X" }] } });
                cluster.client.merge::<Node>(None, "n1", Some("status"), patch).await.unwrap();
                said += 1;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), rival).await.unwrap_err();
    assert!((3..20).contains(&said), "{said}");
    assert!(revisions().await - before < 100);
}

#[tokio::test(start_paused = true)]
async fn what_others_make_of_a_pods_status_is_put_right_at_once() {
    let cluster = cluster().await;
    cluster.create("web", spec()).await;
    cluster.until_phase("web", "Running").await;
    let is_ready = |status: &Value| {
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        conditions.any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    until("it is ready", || async { is_ready(&cluster.status("web").await) }).await;
    for patch in [
        json!({ "status": { "conditions": null } }),
        json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
        json!({ "status": { "phase": "Pending", "containerStatuses": null, "podIP": null, "podIPs": null } }),
        json!({ "status": { "initContainerStatuses": [{ "name": "x", "image": "i", "imageID": "", "ready": false, "restartCount": 0 }] } }),
    ] {
        cluster.client.merge::<Pod>(Some("default"), "web", Some("status"), patch.clone()).await.unwrap();
        let right = || async {
            let status = cluster.status("web").await;
            is_ready(&status)
                && status["phase"] == "Running"
                && status["podIP"] == "10.244.0.2"
                && status["containerStatuses"][0]["ready"] == true
                && status["initContainerStatuses"].is_null()
        };
        tokio::time::timeout(SOON, until(&patch.to_string(), right)).await.unwrap();
    }
}
