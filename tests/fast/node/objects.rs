//! Objects that a Pod refers to: as new as the Pod, not fetched again and again, and in turns by namespace.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use podwright::{
    api::{Env, Request, Response, Status, Verb, WatchEvent, rpc::Session},
    client::{Client, Informer, Stream, Transport, local},
    node::objects::Objects,
    server::{Config, Server},
    store::Memory,
};
use serde_json::json;
use tokio::{sync::mpsc, time::Instant};

/// A server that has no objects, and is slow to say so.
#[derive(Default)]
struct Slow {
    /// By namespace: the requests in flight, and their maximum.
    asked: Mutex<BTreeMap<String, (usize, usize)>>,
}

#[async_trait]
impl Transport for Slow {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        let missing = Status::not_found("configmaps", "", "a");
        if request.verb != Verb::Get {
            return Err(missing);
        }
        let namespace = request.namespace.clone().unwrap_or_default();
        {
            let mut asked = self.asked.lock().unwrap();
            let (now, most) = asked.entry(namespace.clone()).or_default();
            *now += 1;
            *most = *now.max(most);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.asked.lock().unwrap().entry(namespace).or_default().0 -= 1;
        Err(missing)
    }
    async fn watch(&self, _: Request) -> Result<mpsc::Receiver<WatchEvent>, Status> {
        Err(Status::internal("no watches"))
    }
    async fn dial(&self, _: &str) -> Result<Stream, Status> {
        Err(Status::internal("no streams"))
    }
    async fn sessions(&self, _: &str) -> Result<mpsc::Receiver<Session>, Status> {
        Err(Status::internal("no sessions"))
    }
}

/// A namespace's Pods may name thousands of missing objects: one is fetched at a time, followed by a pause as long as the request.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_all_that_another_namespaces_pods_refer_to() {
    let slow = Arc::new(Slow::default());
    let client = Client::new(slow.clone(), "test");
    let objects = Objects::new(client.clone(), Informer::builder(client).start(), true);
    let pod = |namespace: &str, uid: &str| -> Pod {
        serde_json::from_value(
            json!({ "metadata": { "name": uid, "namespace": namespace, "uid": uid }, "spec": { "containers": [] } }),
        )
        .unwrap()
    };
    let many: Vec<Pod> = (0..20).map(|n| pod("many", &format!("u{n}"))).collect();
    let names: BTreeSet<String> = (0..10).map(|n| format!("m{n}")).collect();
    let (one, own) = (BTreeSet::from(["a".to_owned()]), BTreeSet::new());
    let begin = Instant::now();
    let others = join_all(many.iter().map(|pod| objects.sources(pod, &names, &own)));
    let other = pod("other", "o");
    let waits = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        objects.sources(&other, &one, &own).await.unwrap();
        begin.elapsed()
    };
    let (all, waited) = tokio::join!(others, waits);
    assert!(all.iter().all(Result::is_ok));
    assert!(waited < Duration::from_millis(100), "{waited:?}");
    assert_eq!(slow.asked.lock().unwrap()["many"], (0, 1));
    assert!(begin.elapsed() > Duration::from_millis(100) * 150, "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_object_that_does_not_exist_is_asked_for_now_and_then_and_by_each_pod() {
    let env = Env::simulated("2026-11-20T17:00:00Z".parse().unwrap(), 1);
    let server = Server::open(Arc::new(Memory::new()), env, Config::default()).await.unwrap();
    let client = local::client(server, "kubelet");
    let pod = async |name: &str| {
        let pod = json!({ "metadata": { "name": name, "namespace": "default" },
            "spec": { "automountServiceAccountToken": false, "containers": [{ "name": "c", "image": "i:1" }] } });
        client.create(&serde_json::from_value::<Pod>(pod).unwrap()).await.unwrap()
    };
    let (early, names) = (pod("early").await, BTreeSet::from(["late".to_owned()]));
    let objects = Objects::new(client.clone(), Informer::builder(client.clone()).start(), true);
    let count = async |pod: &Pod| objects.sources(pod, &names, &BTreeSet::new()).await.unwrap().config_maps.len();
    assert_eq!(count(&early).await, 0);
    let map = json!({ "metadata": { "name": "late", "namespace": "default" } });
    client.create(&serde_json::from_value::<ConfigMap>(map).unwrap()).await.unwrap();
    assert_eq!(count(&early).await, 0, "it was asked for a moment ago");
    assert_eq!(count(&pod("later").await).await, 1, "it is older than this Pod");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(count(&early).await, 1);
}
