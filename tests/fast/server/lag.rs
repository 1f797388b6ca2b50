//! Who is too slow for the store's changes, for a moment: the watch cache, and watchers. Nobody starts over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use podwright::api::request::EventKind;
use podwright::api::{Env, Object, Options};
use podwright::server::{Config, Server};
use podwright::store::{Batch, Error, Memory, Revision, Store, Watch};
use serde_json::json;

use super::{Api, config_map};
use crate::twisted::{Twist, Twisted};

/// Loses the next batch of changes when it is told to, and cuts the watch off that should have had it.
#[derive(Default)]
struct Hasty {
    cut: Arc<AtomicBool>,
    /// How often it was asked for its history.
    asked: AtomicUsize,
}

#[async_trait]
impl Twist for Hasty {
    async fn watch(&self, memory: &Memory, prefix: &str, after: Revision) -> Result<Watch, Error> {
        let mut all = memory.watch(prefix, after).await?;
        let (sender, watch) = tokio::sync::mpsc::channel(16);
        let cut = self.cut.clone();
        tokio::spawn(async move {
            while let Some(batch) = all.recv().await {
                let lost = cut.swap(false, Ordering::SeqCst);
                if sender.send(if lost { Err(Error::Lagged) } else { batch }).await.is_err() || lost {
                    return;
                }
            }
        });
        Ok(watch)
    }
    async fn history(&self, memory: &Memory, prefix: &str, after: Revision) -> Result<Batch, Error> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        memory.history(prefix, after).await
    }
}

#[tokio::test]
async fn what_the_cache_missed_is_told_all_the_same() {
    let store = Arc::new(Twisted::<Hasty>::default());
    let api = Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap());
    let mut watch = api.watch("configmaps", Options::default()).await.unwrap();
    for n in 0..6 {
        store.cut.store(n % 2 == 1, Ordering::SeqCst);
        api.create("configmaps", config_map(&format!("m{n}"))).await.unwrap();
        let event = watch.recv().await.expect("the watch goes on");
        assert_eq!(event.kind, EventKind::Added);
        assert_eq!(Object::from_slice(&event.object).unwrap().name(), format!("m{n}"));
        assert!(!store.cut.load(Ordering::SeqCst), "it was cut off");
    }
}

/// As much as a watcher's whole backlog of Pods.
#[tokio::test]
async fn who_comes_back_from_a_backlog_finds_what_followed_in_memory() {
    const CHANGES: usize = 28;
    let store = Arc::new(Twisted::<Hasty>::default());
    let api = Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap());
    let first = api.create("configmaps", config_map("a")).await.unwrap();
    let filler = "x".repeat(1_000_000);
    for n in 0..CHANGES {
        api.patch("configmaps", "a", json!({"data": {"n": n.to_string(), "filler": filler}})).await.unwrap();
    }
    let from = Options { resource_version: Some(first.resource_version().into()), ..Options::default() };
    let mut watch = api.watch("configmaps", from).await.unwrap();
    for n in 0..CHANGES {
        let event = watch.recv().await.expect("the watch goes on");
        assert_eq!(Object::from_slice(&event.object).unwrap().0["data"]["n"], n.to_string());
    }
    assert_eq!(store.asked.load(Ordering::SeqCst), 0, "the store was asked for its history");
}

/// By bytes, not by events: few large ones fill the memory as well.
#[tokio::test]
async fn a_watcher_that_is_many_bytes_behind_is_cut_off_and_resumes() {
    const CHANGES: usize = 24;
    let api = Api::new().await;
    let first = api.create("configmaps", config_map("a")).await.unwrap();
    let mut watch = api.watch("configmaps", Options::default()).await.unwrap();
    let filler = "x".repeat(1_000_000);
    for n in 0..CHANGES {
        api.patch("configmaps", "a", json!({"data": {"n": n.to_string(), "filler": filler}})).await.unwrap();
    }
    let mut last = first.resource_version().to_owned();
    let mut told = 0;
    let patience = std::time::Duration::from_secs(20);
    while let Some(event) = tokio::time::timeout(patience, watch.recv()).await.expect("the watch ends") {
        last = Object::from_slice(&event.object).unwrap().resource_version().to_owned();
        told += 1;
    }
    assert!((15..=18).contains(&told), "{told} events");
    let mut rest =
        api.watch("configmaps", Options { resource_version: Some(last), ..Options::default() }).await.unwrap();
    // The first watch began with the object as it was.
    for n in told - 1..CHANGES {
        let event = rest.recv().await.expect("the watch goes on");
        assert_eq!(Object::from_slice(&event.object).unwrap().0["data"]["n"], n.to_string());
    }
}

#[tokio::test]
async fn a_watcher_that_reads_is_not_behind_however_much_it_is_told() {
    let api = Api::new().await;
    api.create("configmaps", config_map("a")).await.unwrap();
    let mut watch = api.watch("configmaps", Options::default()).await.unwrap();
    watch.recv().await.unwrap();
    let filler = "x".repeat(1_000_000);
    for n in 0..40 {
        api.patch("configmaps", "a", json!({"data": {"n": n.to_string(), "filler": filler}})).await.unwrap();
        assert!(watch.recv().await.is_some(), "event {n}");
    }
}
