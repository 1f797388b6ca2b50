//! Lists and watches: selectors, pages of one revision, resuming, bookmarks, being cut off.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use podwright::api::request::EventKind;
use podwright::api::{Env, Object, Options, Verb};
use podwright::server::{Config, Server, Watch};
use podwright::store::{Memory, Store};
use proptest::prelude::*;
use serde_json::json;

use super::{Api, config_map, request};

fn labelled(name: &str, label: &str) -> serde_json::Value {
    let mut object = config_map(name);
    object["metadata"]["labels"] = json!({"app": label});
    object
}

fn names(list: &podwright::api::request::List) -> Vec<String> {
    list.items.iter().map(|item| Object::from_slice(item).unwrap().name().to_owned()).collect()
}

#[tokio::test]
async fn pages_show_one_revision_whatever_happens_between() {
    let store = Arc::new(Memory::new());
    let api = Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap());
    for i in 0..7 {
        api.create("configmaps", labelled(&format!("c{i}"), if i % 2 == 0 { "even" } else { "odd" })).await.unwrap();
    }
    let page = |limit, token: &str| Options {
        limit: Some(limit),
        continue_token: Some(token.to_owned()).filter(|t| !t.is_empty()),
        ..Options::default()
    };
    let first = api.list("configmaps", page(3, "")).await.unwrap();
    assert_eq!((names(&first), first.remaining_item_count), (vec!["c0".into(), "c1".into(), "c2".into()], Some(4)));
    api.delete("configmaps", "c4", Options::default()).await.unwrap();
    api.create("configmaps", labelled("c9", "odd")).await.unwrap();
    let second = api.list("configmaps", page(3, &first.continue_token)).await.unwrap();
    assert_eq!((names(&second), second.remaining_item_count), (vec!["c3".into(), "c4".into(), "c5".into()], Some(1)));
    assert_eq!(second.resource_version, first.resource_version);
    let last = api.list("configmaps", page(3, &second.continue_token)).await.unwrap();
    assert_eq!((names(&last), last.continue_token.as_str()), (vec!["c6".into()], ""));

    let odd = Options { label_selector: Some("app=odd".into()), ..page(2, "") };
    let first = api.list("configmaps", odd.clone()).await.unwrap();
    assert_eq!((names(&first), first.remaining_item_count), (vec!["c1".into(), "c3".into()], None));
    let next = Options { continue_token: Some(first.continue_token), ..odd };
    assert_eq!(names(&api.list("configmaps", next.clone()).await.unwrap()), ["c5", "c9"]);

    let exact = Options {
        resource_version: Some(second.resource_version.clone()),
        resource_version_match: Some("Exact".into()),
        ..Options::default()
    };
    assert_eq!(api.list("configmaps", exact).await.unwrap().items.len(), 7);
    api.create("configmaps", config_map("later")).await.unwrap();
    store.compact(store.revision().await.unwrap()).await.unwrap();
    let expired = api.list("configmaps", next).await.unwrap_err();
    assert_eq!((expired.code, expired.reason.as_str()), (410, "Expired"));
    assert!(expired.message.contains("The provided continue parameter is too old"), "{expired}");
}

#[tokio::test]
async fn fields_select_and_reads_see_own_writes() {
    let api = Api::new().await;
    for i in 0..20 {
        let name = format!("c{i}");
        api.create("configmaps", config_map(&name)).await.unwrap();
        let options = Options { field_selector: Some(format!("metadata.name={name}")), ..Options::default() };
        assert_eq!(names(&api.list("configmaps", options).await.unwrap()), [name.as_str()]);
        api.patch("configmaps", &name, json!({"data": {"a": name}})).await.unwrap();
        assert_eq!(api.get("configmaps", &name).await.unwrap().0["data"]["a"], name.as_str());
    }
    let all = request(Verb::DeleteCollection, "configmaps", "", None, Options::default());
    api.0.handle(all).await.unwrap();
    assert!(api.list("configmaps", Options::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn initial_events_end_with_a_bookmark() {
    let api = Api::new().await;
    api.create("configmaps", config_map("a")).await.unwrap();
    let options = Options { send_initial_events: true, allow_watch_bookmarks: true, ..Options::default() };
    let mut watch = api.watch("configmaps", options).await.unwrap();
    assert_eq!(watch.recv().await.unwrap().kind, EventKind::Added);
    let end = watch.recv().await.unwrap();
    let object = Object::from_slice(&end.object).unwrap();
    assert_eq!(end.kind, EventKind::Bookmark);
    assert_eq!(object.annotation("k8s.io/initial-events-end"), Some("true"));
    let made = api.create("configmaps", config_map("b")).await.unwrap();
    assert!(object.resource_version().parse::<u64>().unwrap() < made.resource_version().parse().unwrap());
    assert_eq!(watch.recv().await.unwrap().kind, EventKind::Added);
}

#[tokio::test(start_paused = true)]
async fn idle_watchers_get_bookmarks_and_time_runs_out() {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let api = Api(Server::open(Arc::new(Memory::new()), env, Config::default()).await.unwrap());
    let options = Options { allow_watch_bookmarks: true, timeout_seconds: Some(90), ..Options::default() };
    let mut watch = api.watch("secrets", options).await.unwrap();
    let made = api.create("configmaps", config_map("a")).await.unwrap();
    let event = watch.recv().await.unwrap();
    assert_eq!(event.kind, EventKind::Bookmark);
    assert_eq!(Object::from_slice(&event.object).unwrap().resource_version(), made.resource_version());
    assert!(watch.recv().await.is_none(), "after 90 seconds");
}

#[tokio::test(start_paused = true)]
async fn history_is_kept_for_minutes_and_then_forgotten() {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let api = Api(Server::open(Arc::new(Memory::new()), env, Config::default()).await.unwrap());
    let made = api.create("configmaps", config_map("a")).await.unwrap();
    // Two changes: the one at the oldest revision that is kept can still be told.
    api.patch("configmaps", "a", json!({"data": {"a": "2"}})).await.unwrap();
    api.patch("configmaps", "a", json!({"data": {"a": "3"}})).await.unwrap();
    let from = Options { resource_version: Some(made.resource_version().into()), ..Options::default() };
    tokio::time::sleep(Duration::from_secs(240)).await;
    assert_eq!(api.watch("configmaps", from.clone()).await.unwrap().recv().await.unwrap().kind, EventKind::Modified);
    tokio::time::sleep(Duration::from_secs(240)).await;
    assert!(api.watch("configmaps", from).await.unwrap_err().is_gone());
}

#[tokio::test(start_paused = true)]
async fn old_events_expire_and_seen_ones_stay() {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let api = Api(Server::open(Arc::new(Memory::new()), env, Config::default()).await.unwrap());
    let event = |name: &str, last: &str| {
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"}, "type": "Normal",
            "reason": "Tested", "message": "x", "lastTimestamp": last, "source": {"component": "test"},
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p", "apiVersion": "v1"}})
    };
    api.create("events", event("old", "2026-01-01T00:00:00Z")).await.unwrap();
    api.create("events", event("new", "2026-01-01T01:00:00Z")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600 + 400)).await;
    assert_eq!(names(&api.list("events", Options::default()).await.unwrap()), ["new"]);
}

#[tokio::test]
async fn a_watcher_that_does_not_read_is_cut_off_and_a_late_one_told_to_list() {
    let api = Api::new().await;
    let first = api.create("configmaps", config_map("a")).await.unwrap();
    let mut slow = api.watch("configmaps", Options::default()).await.unwrap();
    let filler = "x".repeat(600);
    let mut writes = 0u64;
    for i in 0..20_000 {
        api.patch("configmaps", "a", json!({"data": {"n": i.to_string(), "filler": filler}})).await.unwrap();
        writes += 1;
    }
    let mut told = 0u64;
    while slow.recv().await.is_some() {
        told += 1;
    }
    assert!(told < writes, "{told} events were buffered");
    let late = Options { resource_version: Some(first.resource_version().into()), ..Options::default() };
    let gone = api.watch("configmaps", late).await.unwrap_err();
    assert!(gone.is_gone() && gone.message.starts_with("too old resource version: "), "{gone}");
}

/// What a client makes of events.
#[derive(Default)]
struct View {
    objects: BTreeMap<String, Object>,
    revision: String,
}

impl View {
    fn see(&mut self, event: podwright::api::WatchEvent) {
        let object = Object::from_slice(&event.object).unwrap();
        self.revision = object.resource_version().to_owned();
        let name = object.name().to_owned();
        match event.kind {
            EventKind::Added => assert!(self.objects.insert(name, object).is_none(), "added twice"),
            EventKind::Modified => assert!(self.objects.insert(name, object).is_some(), "modified before it was added"),
            EventKind::Deleted => assert!(self.objects.remove(&name).is_some(), "deleted before it was added"),
            other => panic!("{other:?}"),
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Put(u8, u8),
    Delete(u8),
    /// The watcher reads so many events, then loses its connection and resumes.
    Reconnect(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u8..6, 0u8..2).prop_map(|(name, label)| Op::Put(name, label)),
        2 => (0u8..6).prop_map(Op::Delete),
        1 => (0u8..8).prop_map(Op::Reconnect),
    ]
}

async fn resume(api: &Api, view: &View) -> Watch {
    let options = Options {
        label_selector: Some("app=l1".into()),
        resource_version: Some(view.revision.clone()),
        ..Options::default()
    };
    api.watch("configmaps", options).await.unwrap()
}

async fn run(ops: Vec<Op>) {
    let api = Api::new().await;
    let selected = Options { label_selector: Some("app=l1".into()), ..Options::default() };
    let start = api.list("configmaps", selected.clone()).await.unwrap();
    let mut view = View { revision: start.resource_version, ..View::default() };
    let mut watch = resume(&api, &view).await;
    for (turn, op) in ops.into_iter().enumerate() {
        match op {
            Op::Put(name, label) => {
                let (name, label) = (format!("c{name}"), format!("l{label}"));
                let patch = json!({"metadata": {"labels": {"app": label}}, "data": {"turn": turn.to_string()}});
                if api.patch("configmaps", &name, patch).await.is_err() {
                    api.create("configmaps", labelled(&name, &label)).await.unwrap();
                }
            }
            Op::Delete(name) => drop(api.delete("configmaps", &format!("c{name}"), Options::default()).await),
            Op::Reconnect(reads) => {
                for _ in 0..reads {
                    let Ok(event) = watch.try_recv() else { break };
                    view.see(event);
                }
                watch = resume(&api, &view).await;
            }
        }
    }
    let list = api.list("configmaps", selected).await.unwrap();
    let wanted: Vec<Object> = list.items.iter().map(|item| Object::from_slice(item).unwrap()).collect();
    loop {
        let seen: Vec<Object> = view.objects.values().cloned().collect();
        if seen == wanted {
            break;
        }
        let event = tokio::time::timeout(Duration::from_secs(5), watch.recv()).await;
        match event {
            Ok(Some(event)) => view.see(event),
            _ => panic!("the view never became the list: {seen:?} is not {wanted:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn a_watchers_view_becomes_the_list(ops in prop::collection::vec(op(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(ops));
    }
}

#[tokio::test]
async fn a_selector_asks_for_each_label_once() {
    let api = Api::new().await;
    let mut object = config_map("labelled");
    object["metadata"]["labels"] = json!({"z": "1", "b": "2", "m": "3", "a": "4"});
    api.create("configmaps", object).await.unwrap();
    let often = vec!["z"; 5000].join(",");
    let many = |count: usize| (0..count).map(|i| format!("!no{i}")).collect::<Vec<_>>().join(",");
    let most = format!("{},z", many(999));
    for (selector, found) in
        [("z=1", 1), ("b=2,m=3", 1), ("a in (4),!c", 1), ("m=2", 0), (often.as_str(), 1), (most.as_str(), 1)]
    {
        let options = Options { label_selector: Some(selector.into()), ..Options::default() };
        assert_eq!(api.list("configmaps", options).await.unwrap().items.len(), found, "{selector}");
    }
    let options = Options { label_selector: Some(many(1001)), ..Options::default() };
    let refused = api.list("configmaps", options).await.unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (400, "a selector has at most 1000 requirements"));
}
