//! Real client libraries drive a whole node through its kubeconfig: Rust's `kube`, and Python's `kubernetes`.

mod apply;
mod board;
mod controller;
mod discovery;
mod identity;
mod objects;
mod python;
mod restart;
mod sessions;
mod subresources;
mod watches;

use std::{fmt::Debug, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::support::{TestNode, eventually, slowness};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Total time limit of a test's work.
const LIMIT: Duration = Duration::from_secs(240);

/// A node, and a client using its kubeconfig. The client's background work ends before the node.
pub struct Cluster {
    runtime: tokio::runtime::Runtime,
    pub client: Client,
    pub node: TestNode,
}

impl Cluster {
    pub fn start() -> Cluster {
        let node = TestNode::start(&[]);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let kubeconfig = Kubeconfig::read_from(node.dir.path().join("admin.kubeconfig")).unwrap();
            let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
            Client::try_from(config).unwrap()
        });
        Cluster { runtime, client, node }
    }

    /// Runs work of the client. Fails on a timeout.
    #[track_caller]
    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let work = async { tokio::time::timeout(LIMIT * slowness(), work).await };
        self.runtime.block_on(work).unwrap_or_else(|_| panic!("not done within {LIMIT:?}\n{}", self.node.log()))
    }

    /// Work that runs until the cluster is dropped.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Waits for a condition checked through the client.
    #[track_caller]
    pub fn until<T>(&self, what: &str, mut check: impl AsyncFnMut() -> Result<T, String>) -> T {
        eventually(what, TIMEOUT, || self.run(check()))
    }

    /// SIGKILL, and a start on the same state folder: the port stays.
    pub fn restart(&mut self) {
        self.node.kill();
        self.node.spawn();
        self.node.wait_ready();
    }

    pub fn configmaps(&self) -> Api<ConfigMap> {
        Api::default_namespaced(self.client.clone())
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }
}

/// An object of `k8s-openapi` from its JSON, which need not name its kind.
pub fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

pub fn configmap(name: &str, labels: Value, data: Value) -> ConfigMap {
    object(json!({"metadata": {"name": name, "labels": labels}, "data": data}))
}

/// A Pod that is never run: its scheduler does not exist.
pub fn idle_pod(name: &str) -> Pod {
    let spec = json!({"schedulerName": "nobody", "containers": [{"name": "c", "image": "localhost/busybox:1"}]});
    object(json!({"metadata": {"name": name}, "spec": spec}))
}

/// The server's refusal: its code, its reason, and a part of its message.
#[track_caller]
pub fn refused<T: Debug>(outcome: kube::Result<T>, code: u16, reason: &str, part: &str) -> kube::core::Status {
    match outcome {
        Err(kube::Error::Api(status)) => {
            assert_eq!((status.code, status.reason.as_str()), (code, reason), "{status:?}");
            assert!(status.message.contains(part), "{part:?} is not in {status:?}");
            *status
        }
        other => panic!("not refused with {code} {reason}: {other:?}"),
    }
}
