//! Watches with `kube`: raw ones, its watcher in every strategy, its reflector, and waiting for conditions.

use std::collections::BTreeMap;

use futures::{Stream, StreamExt, stream::BoxStream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, reflector, wait::await_condition, watcher},
};
use serde_json::json;

use super::{Cluster, TIMEOUT, configmap};
use crate::support::slowness;

/// The next item, which is required.
async fn next<T>(stream: &mut (impl Stream<Item = T> + Unpin)) -> T {
    let item = tokio::time::timeout(TIMEOUT * slowness(), stream.next()).await;
    item.expect("something comes in time").expect("the stream goes on")
}

/// A raw event as text: type and object.
fn told(event: &WatchEvent<ConfigMap>) -> String {
    match event {
        WatchEvent::Added(map) => format!("+{}", map.name_any()),
        WatchEvent::Modified(map) => format!("~{}", map.name_any()),
        WatchEvent::Deleted(map) => format!("-{}", map.name_any()),
        WatchEvent::Bookmark(mark) if mark.metadata.annotations.contains_key("k8s.io/initial-events-end") => "|".into(),
        WatchEvent::Bookmark(_) => "bookmark".into(),
        WatchEvent::Error(status) => format!("{} {}", status.code, status.reason),
    }
}

/// The watcher's event as text.
fn heard<K: kube::Resource>(event: watcher::Result<watcher::Event<K>>) -> String {
    match event.unwrap() {
        watcher::Event::Init => "init".into(),
        watcher::Event::InitApply(object) => format!("={}", object.name_any()),
        watcher::Event::InitDone => "done".into(),
        watcher::Event::Apply(object) => format!("~{}", object.name_any()),
        watcher::Event::Delete(object) => format!("-{}", object.name_any()),
    }
}

async fn label(configmaps: &Api<ConfigMap>, name: &str, tier: &str) {
    let labels = Patch::Merge(json!({"metadata": {"labels": {"tier": tier}}}));
    configmaps.patch(name, &PatchParams::default(), &labels).await.unwrap();
}

#[test]
fn a_raw_watch_begins_anywhere_and_ends_in_time() {
    let cluster = Cluster::start();
    let (post, configmaps) = (PostParams::default(), cluster.configmaps());
    let selected = WatchParams::default().labels("tier in (a, b)");
    let make = async |name: &str, tier: &str| {
        configmaps.create(&post, &configmap(name, json!({"tier": tier}), json!({}))).await.unwrap();
    };
    cluster.run(async {
        make("one", "a").await;
        make("two", "b").await;
        let begin = configmaps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
        make("three", "c").await;
        label(&configmaps, "one", "b").await;
        label(&configmaps, "two", "c").await;
        label(&configmaps, "three", "a").await;
        configmaps.delete("three", &DeleteParams::default()).await.unwrap();
        // An object entering the selection is added, one leaving it is deleted.
        let history = ["~one", "-two", "+three", "-three"];
        let mut events = configmaps.watch(&selected, &begin).await.unwrap().boxed();
        let mut last = begin.clone();
        for wanted in history {
            let event = next(&mut events).await.unwrap();
            assert_eq!(told(&event), wanted);
            if let WatchEvent::Modified(map) = event {
                last = map.resource_version().unwrap();
            }
        }
        // From another one's last version.
        let mut resumed = configmaps.watch(&selected, &last).await.unwrap().boxed();
        for wanted in &history[1..] {
            assert_eq!(told(&next(&mut resumed).await.unwrap()), *wanted);
        }
        // The current state first, then changes.
        let params = WatchParams::default().labels("tier in (a, b)").initial_events();
        let mut initial = configmaps.watch(&params, "0").await.unwrap().boxed();
        assert_eq!(told(&next(&mut initial).await.unwrap()), "+one");
        assert_eq!(told(&next(&mut initial).await.unwrap()), "|");
        make("four", "a").await;
        for stream in [&mut events, &mut resumed, &mut initial] {
            assert_eq!(told(&next(stream).await.unwrap()), "+four");
        }
        let named = WatchParams::default().fields("metadata.name=four").timeout(1);
        let rest: Vec<String> = configmaps
            .watch(&named, &begin)
            .await
            .unwrap()
            .map(|event| told(&event.unwrap()))
            .filter(|event| std::future::ready(event != "bookmark"))
            .collect()
            .await;
        assert_eq!(rest, ["+four"], "it ends by itself");
    });
}

#[test]
fn the_watcher_hears_of_what_its_selectors_select() {
    let cluster = Cluster::start();
    let (post, configmaps) = (PostParams::default(), cluster.configmaps());
    let make = async |name: &str, tier: &str| {
        configmaps.create(&post, &configmap(name, json!({"tier": tier}), json!({}))).await.unwrap();
    };
    cluster.run(async {
        for name in ["a1", "a2", "a3"] {
            make(name, "a").await;
        }
        make("b1", "b").await;
        let labels = watcher::Config::default().labels("tier=a");
        let metadata: Api<PartialObjectMeta<ConfigMap>> = Api::default_namespaced(cluster.client.clone());
        let mut streams: Vec<(&str, BoxStream<'_, String>)> = vec![
            ("list and watch", watcher(configmaps.clone(), labels.clone()).map(heard).boxed()),
            ("by pages", watcher(configmaps.clone(), labels.clone().page_size(2)).map(heard).boxed()),
            ("from the cache", watcher(configmaps.clone(), labels.clone().any_semantic()).map(heard).boxed()),
            ("a streamed list", watcher(configmaps.clone(), labels.clone().streaming_lists()).map(heard).boxed()),
            ("metadata", watcher(metadata.clone(), labels.clone()).map(heard).boxed()),
            ("metadata, streamed", watcher(metadata.clone(), labels.streaming_lists()).map(heard).boxed()),
        ];
        for (what, stream) in &mut streams {
            for wanted in ["init", "=a1", "=a2", "=a3", "done"] {
                assert_eq!(next(stream).await, wanted, "{what}");
            }
        }
        make("b2", "b").await;
        label(&configmaps, "a1", "b").await;
        label(&configmaps, "b1", "a").await;
        label(&configmaps, "b1", "a").await;
        configmaps.delete("a2", &DeleteParams::default()).await.unwrap();
        make("a4", "a").await;
        for (what, stream) in &mut streams {
            for wanted in ["-a1", "~b1", "-a2", "~a4"] {
                assert_eq!(next(stream).await, wanted, "{what}");
            }
        }
        let named = watcher::Config::default().fields("metadata.name=a3");
        let mut events = watcher(configmaps.clone(), named).map(heard).boxed();
        for wanted in ["init", "=a3", "done"] {
            assert_eq!(next(&mut events).await, wanted);
        }
        label(&configmaps, "a4", "b").await;
        configmaps.delete("a3", &DeleteParams::default()).await.unwrap();
        assert_eq!(next(&mut events).await, "-a3");
    });
}

#[test]
fn a_reflector_holds_what_a_list_tells() {
    let cluster = Cluster::start();
    let (post, configmaps) = (PostParams::default(), cluster.configmaps());
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let (store, writer) = reflector::store();
        let events = reflector(writer, watcher(configmaps.clone(), config.labels("kept=yes"))).default_backoff();
        cluster.spawn(events.for_each(|_| std::future::ready(())));
        cluster.run(async {
            store.wait_until_ready().await.unwrap();
            for number in 0..20 {
                let kept = if number % 4 == 0 { "no" } else { "yes" };
                let name = format!("r{number}");
                configmaps.create(&post, &configmap(&name, json!({"kept": kept}), json!({}))).await.unwrap();
                if number % 3 == 0 {
                    configmaps.delete(&name, &DeleteParams::default()).await.unwrap();
                }
            }
        });
        let versions = |maps: &mut dyn Iterator<Item = &ConfigMap>| -> BTreeMap<String, Option<String>> {
            maps.map(|map| (map.name_any(), map.resource_version())).collect()
        };
        cluster.until("the store is as the list", async || {
            let list = configmaps.list(&ListParams::default().labels("kept=yes")).await.unwrap();
            let (listed, held) = (versions(&mut list.items.iter()), store.state());
            let held = versions(&mut held.iter().map(AsRef::as_ref));
            if listed.len() == 10 && held == listed { Ok(()) } else { Err(format!("{held:?}\n{listed:?}")) }
        });
        cluster.run(async {
            configmaps
                .delete_collection(&DeleteParams::default(), &ListParams::default().labels("kept"))
                .await
                .unwrap();
        });
        cluster.until("the store is empty", async || {
            if store.is_empty() { Ok(()) } else { Err(format!("{:?}", store.state())) }
        });
    }
}

#[test]
fn a_condition_is_waited_for() {
    let cluster = Cluster::start();
    let configmaps = cluster.configmaps();
    let ready = |map: Option<&ConfigMap>| map.is_some_and(|map| map.labels().contains_key("tier"));
    cluster.run(async {
        let waiting = await_condition(configmaps.clone(), "w", ready);
        let making = async {
            configmaps.create(&PostParams::default(), &configmap("w", json!({}), json!({}))).await.unwrap();
            label(&configmaps, "w", "a").await;
        };
        let (found, ()) = tokio::join!(waiting, making);
        assert_eq!(found.unwrap().unwrap().labels()["tier"], "a");
    });
}
