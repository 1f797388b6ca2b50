//! `kube`'s watchers survive their server's kill and restart without missing or keeping anything.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, reflector, reflector::Store, watcher},
};
use serde_json::json;

use super::{Cluster, configmap};

type Versions = BTreeMap<String, String>;

fn version<K: Resource>(object: &K) -> (String, String) {
    (object.name_any(), object.resource_version().unwrap())
}

/// The objects that each of several clients believes to exist.
struct Believers {
    beliefs: Vec<(&'static str, Box<dyn Fn() -> Versions>)>,
    /// Errors that the watchers encountered.
    troubles: Arc<Mutex<Vec<String>>>,
}

impl Believers {
    fn start(cluster: &Cluster) -> Believers {
        let mut all = Believers { beliefs: Vec::new(), troubles: Arc::default() };
        let selected = watcher::Config::default().labels("kept=yes");
        for (what, config) in [
            ("list and watch", selected.clone()),
            ("by pages", selected.clone().page_size(3)),
            ("from the cache", selected.clone().any_semantic()),
            ("streamed", selected.clone().streaming_lists()),
            ("without bookmarks", selected.clone().disable_bookmarks()),
        ] {
            let (store, writer) = reflector::store::<ConfigMap>();
            let troubles = all.troubles.clone();
            let events = reflector(writer, watcher(cluster.configmaps(), config)).default_backoff();
            cluster.spawn(events.for_each(move |event| note(&troubles, event.err())));
            all.beliefs.push((what, Box::new(move || held(&store))));
        }
        // One that maintains its state from events by itself.
        let books: Arc<Mutex<(Versions, Versions)>> = Arc::default();
        let (written, troubles) = (books.clone(), all.troubles.clone());
        let metadata: Api<PartialObjectMeta<ConfigMap>> = Api::default_namespaced(cluster.client.clone());
        let events = watcher(metadata, selected).default_backoff();
        cluster.spawn(events.for_each(move |event| {
            let mut books = written.lock().unwrap();
            match event {
                Ok(watcher::Event::Init) => books.1.clear(),
                Ok(watcher::Event::InitApply(object)) => books.1.extend([version(&object)]),
                Ok(watcher::Event::InitDone) => books.0 = std::mem::take(&mut books.1),
                Ok(watcher::Event::Apply(object)) => books.0.extend([version(&object)]),
                Ok(watcher::Event::Delete(object)) => drop(books.0.remove(&object.name_any())),
                Err(why) => troubles.lock().unwrap().push(why.to_string()),
            }
            std::future::ready(())
        }));
        all.beliefs.push(("books of metadata", Box::new(move || books.lock().unwrap().0.clone())));
        all
    }

    /// Waits until all of them agree with a list.
    #[track_caller]
    fn agree(&self, cluster: &Cluster) {
        let configmaps = cluster.configmaps();
        cluster.until("all know what there is", async || {
            let list = configmaps.list(&ListParams::default().labels("kept=yes")).await;
            let listed: Versions = list.map_err(|why| why.to_string())?.items.iter().map(version).collect();
            for (what, belief) in &self.beliefs {
                let believed = belief();
                if believed != listed {
                    let troubles = self.troubles.lock().unwrap();
                    return Err(format!("{what}: {believed:?}\nlisted: {listed:?}\n{troubles:?}"));
                }
            }
            Ok(())
        });
    }
}

fn note(troubles: &Mutex<Vec<String>>, why: Option<watcher::Error>) -> std::future::Ready<()> {
    troubles.lock().unwrap().extend(why.map(|why| why.to_string()));
    std::future::ready(())
}

fn held(store: &Store<ConfigMap>) -> Versions {
    store.state().iter().map(|object| version(object.as_ref())).collect()
}

/// Creates, changes and deletes; the last kind of change differs in each round.
async fn change(configmaps: &Api<ConfigMap>, round: usize) {
    let post = PostParams::default();
    for number in 0..6 {
        let name = format!("r{round}-{number}");
        configmaps.create(&post, &configmap(&name, json!({"kept": "yes"}), json!({}))).await.unwrap();
    }
    let patch = async |name: &str, labels| {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        configmaps.patch(name, &PatchParams::default(), &patch).await.unwrap();
    };
    patch(&format!("r{round}-1"), json!({"round": round.to_string()})).await;
    patch(&format!("r{round}-2"), json!({"kept": "no"})).await;
    configmaps.delete(&format!("r{round}-3"), &DeleteParams::default()).await.unwrap();
    if round > 0 {
        let before = round - 1;
        patch(&format!("r{before}-0"), json!({"round": round.to_string()})).await;
        patch(&format!("r{before}-2"), json!({"kept": "yes"})).await;
        configmaps.delete(&format!("r{before}-4"), &DeleteParams::default()).await.unwrap();
    }
}

#[test]
fn watchers_and_reflectors_know_all_after_the_servers_death() {
    let mut cluster = Cluster::start();
    let configmaps = cluster.configmaps();
    let believers = Believers::start(&cluster);
    cluster.run(change(&configmaps, 0));
    believers.agree(&cluster);
    for round in [1, 3, 5] {
        // The last changes before the kill: possibly not delivered yet.
        cluster.run(change(&configmaps, round));
        cluster.node.kill();
        cluster.node.spawn();
        cluster.node.wait_answering();
        // The first ones afterwards, possibly before the watchers reconnect.
        cluster.run(change(&configmaps, round + 1));
        believers.agree(&cluster);
        cluster.run(change_once_more(&configmaps, round));
        believers.agree(&cluster);
    }
    assert!(!believers.troubles.lock().unwrap().is_empty(), "they noticed");
}

/// By now every watch has reconnected: changes arrive as events.
async fn change_once_more(configmaps: &Api<ConfigMap>, round: usize) {
    let patch = Patch::Merge(json!({"data": {"again": round.to_string()}}));
    configmaps.patch(&format!("r{round}-1"), &PatchParams::default(), &patch).await.unwrap();
    configmaps.delete(&format!("r{round}-5"), &DeleteParams::default()).await.unwrap();
}

/// A client that resumes sees each change once, in order, including those that the server persisted while the client was away.
#[test]
fn a_watch_resumed_after_the_servers_death_skips_and_repeats_nothing() {
    let mut cluster = Cluster::start();
    let configmaps = cluster.configmaps();
    let count = async |number: u32| {
        let patch = Patch::Merge(json!({"data": {"number": number.to_string()}}));
        configmaps.patch("counter", &PatchParams::default(), &patch).await.unwrap();
    };
    let mut last = cluster.run(async {
        let made =
            configmaps.create(&PostParams::default(), &configmap("counter", json!({}), json!({}))).await.unwrap();
        made.resource_version().unwrap()
    });
    let mut seen = Vec::new();
    for round in 0..3_u32 {
        cluster.run(async {
            count(round * 10 + 1).await;
            count(round * 10 + 2).await;
        });
        cluster.restart();
        cluster.run(async {
            count(round * 10 + 3).await;
            let params = WatchParams::default().fields("metadata.name=counter");
            let mut events = configmaps.watch(&params, &last).await.unwrap().boxed();
            count(round * 10 + 4).await;
            while seen.last() != Some(&(round * 10 + 4)) {
                match events.next().await.expect("it goes on").unwrap() {
                    WatchEvent::Modified(map) => {
                        last = map.resource_version().unwrap();
                        seen.push(map.data.unwrap()["number"].parse().unwrap());
                    }
                    WatchEvent::Bookmark(_) => {}
                    other => panic!("{other:?}"),
                }
            }
        });
    }
    assert_eq!(seen, (0..3).flat_map(|round| (1..=4).map(move |n| round * 10 + n)).collect::<Vec<u32>>());
}
