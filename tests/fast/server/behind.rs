//! Writes of our own components, which have as much to do as manifests ask for, and others' reads.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use podwright::api::{Env, Options, Verb};
use podwright::client::local;
use podwright::server::{Config, Server};
use podwright::store::{Error, Memory, Revision, Store, Watch};
use tokio::sync::Semaphore;

use super::{Api, config_map, request};
use crate::twisted::{Twist, Twisted};

/// Changes are told only as fast as the test lets them through.
struct Slow {
    told: Arc<Semaphore>,
}

#[async_trait]
impl Twist for Slow {
    async fn watch(&self, memory: &Memory, prefix: &str, after: Revision) -> Result<Watch, Error> {
        let mut all = memory.watch(prefix, after).await?;
        let (sender, watch) = tokio::sync::mpsc::channel(16);
        let told = self.told.clone();
        tokio::spawn(async move {
            while let Some(batch) = all.recv().await {
                told.acquire().await.unwrap().forget();
                if sender.send(batch).await.is_err() {
                    return;
                }
            }
        });
        Ok(watch)
    }
}

/// A controller has a thousand objects to write, and the cache does not follow: it waits until that does, and a reader waits
/// for few of its writes.
#[tokio::test]
async fn a_controller_writes_no_faster_than_reads_can_follow() {
    let told = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
    let store = Arc::new(Twisted::new(Slow { told: told.clone() }));
    let api = Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap());
    api.list("configmaps", Options::default()).await.unwrap();
    told.forget_permits(Semaphore::MAX_PERMITS);
    let controller = local::worker(api.0.clone(), "kube-controller-manager");
    let begun = store.revision().await.unwrap();
    let writes = tokio::spawn(async move {
        let write = |n: usize| {
            controller.call(request(
                Verb::Create,
                "configmaps",
                "",
                Some(config_map(&format!("m{n}"))),
                Options::default(),
            ))
        };
        futures::future::join_all((0..1_000).map(write)).await
    });
    // It goes on as long as it does not know better, and no longer.
    let mut last = begun;
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = store.revision().await.unwrap();
        if now == last && last > begun {
            break;
        }
        last = now;
    }
    let ahead = last - begun;
    assert!((100..=200).contains(&ahead), "{ahead} revisions that no reader can see");
    // Whoever else writes does not wait for it.
    api.create("configmaps", config_map("mine")).await.unwrap();
    // One that is told more and more reads, and then sees what was there.
    let reader = tokio::spawn({
        let api = Api(api.0.clone());
        async move { api.list("configmaps", Options::default()).await }
    });
    told.add_permits(1_000_000);
    let found = tokio::time::timeout(Duration::from_secs(20), reader).await.unwrap().unwrap().unwrap();
    assert!(found.items.len() as u64 >= ahead);
    for written in tokio::time::timeout(Duration::from_secs(60), writes).await.unwrap().unwrap() {
        written.unwrap();
    }
}

/// Of many namespaces each has its turn: what is done for one with much to do does not keep the others waiting.
#[tokio::test]
async fn the_writes_for_a_namespace_wait_for_few_of_anothers() {
    let api = Api::new().await;
    for name in ["greedy", "polite"] {
        let namespace = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        api.create("namespaces", namespace).await.unwrap();
    }
    let controller = local::worker(api.0.clone(), "kube-controller-manager");
    let create = |namespace: &'static str, n: usize| {
        let mut map = config_map(&format!("m{n}"));
        map["metadata"]["namespace"] = namespace.into();
        let (controller, request) =
            (controller.clone(), request(Verb::Create, "configmaps", "", Some(map), Options::default()));
        tokio::spawn(async move { controller.call(request).await })
    };
    let greedy: Vec<_> = (0..3_000).map(|n| create("greedy", n)).collect();
    tokio::task::yield_now().await;
    create("polite", 0).await.unwrap().unwrap();
    let done = greedy.iter().filter(|task| task.is_finished()).count();
    assert!(done < 1_000, "{done} of the other's were done before");
    futures::future::join_all(greedy).await;
}

#[tokio::test]
async fn a_large_write_of_a_controller_takes_part_in_the_cpus_of_large_requests() {
    let api = Api::new().await;
    let controller = local::worker(api.0.clone(), "kube-controller-manager");
    let before = api.0.large_turns();
    for (name, bytes, large) in [("small", 10, false), ("large", 100_000, true)] {
        let mut map = config_map(name);
        map["data"]["a"] = "x".repeat(bytes).into();
        controller.call(request(Verb::Create, "configmaps", "", Some(map), Options::default())).await.unwrap();
        assert_eq!(api.0.large_turns() > before, large, "{name}");
    }
}
