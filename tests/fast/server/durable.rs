//! The API server on the SQLite store: what it acknowledged is there after a restart, and reads never wait in vain.

use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright::api::request::EventKind;
use podwright::api::{Env, Object, Options, Request, User, Verb};
use podwright::server::{Config, Limits, Server};
use podwright::store::{Sqlite, Store};
use serde_json::json;

use super::{Api, config_map, service};

async fn open(dir: &std::path::Path) -> (Arc<Sqlite>, Api) {
    let store = Arc::new(Sqlite::open(&dir.join("store.db")).unwrap());
    let api = Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap());
    (store, api)
}

#[tokio::test]
async fn a_restarted_server_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (store, api) = open(dir.path()).await;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {}});
    let begun = Instant::now();
    for i in 0..20 {
        api.create("configmaps", config_map(&format!("c{i}"))).await.unwrap();
        if i == 0 {
            api.create("leases", lease.clone()).await.unwrap();
        }
        let spec = json!({"spec": {"holderIdentity": i.to_string()}});
        api.patch("leases", "l", spec).await.unwrap();
        assert_eq!(api.get("leases", "l").await.unwrap().0["spec"]["holderIdentity"], i.to_string());
        assert_eq!(api.list("configmaps", Options::default()).await.unwrap().items.len(), i + 1);
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "reads waited: {:?}", begun.elapsed());
    let made = api.create("services", service("s", json!({}))).await.unwrap();
    let token = {
        let answer = api.sub(podwright::api::Verb::Create, "serviceaccounts", "default", "token", json!({"spec": {}}));
        // There is no such account yet: a Pod brings it.
        assert!(answer.await.unwrap_err().is_not_found());
        api.create("pods", super::pod("p")).await.unwrap();
        let answer = api.sub(podwright::api::Verb::Create, "serviceaccounts", "default", "token", json!({"spec": {}}));
        super::object_of(answer.await.unwrap()).0["status"]["token"].as_str().unwrap().to_owned()
    };
    drop(api);
    store.close().await.unwrap();
    drop(store);

    let (_store, api) = open(dir.path()).await;
    let read = api.get("services", "s").await.unwrap();
    assert_eq!(read, made);
    assert!(api.list("configmaps", Options::default()).await.unwrap().items.len() == 20);
    let audience = podwright::server::ISSUER;
    assert!(api.0.verify_token(&token, audience).await.is_ok(), "the signing key is kept");
    let ip = made.0["spec"]["clusterIP"].clone();
    let taken = api.create("services", service("t", json!({"clusterIP": ip}))).await.unwrap_err();
    assert!(taken.message.contains("provided IP is already allocated"), "{taken}");
}

#[tokio::test]
async fn a_watch_goes_on_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (store, api) = open(dir.path()).await;
    let first = api.create("configmaps", config_map("c0")).await.unwrap();
    let from = Options { resource_version: Some(first.resource_version().into()), ..Options::default() };
    // More than the store hands over at once.
    for i in 1..1500 {
        api.patch("configmaps", "c0", json!({"data": {"n": i.to_string()}})).await.unwrap();
    }
    api.create("configmaps", config_map("c1")).await.unwrap();
    api.delete("configmaps", "c0", Options::default()).await.unwrap();
    drop(api);
    store.close().await.unwrap();
    drop(store);

    let (store, api) = open(dir.path()).await;
    let mut watch = api.watch("configmaps", from.clone()).await.unwrap();
    api.create("configmaps", config_map("c2")).await.unwrap();
    let mut told = Vec::new();
    while !told.ends_with(&["Added c2".to_owned()]) {
        let event = tokio::time::timeout(Duration::from_secs(10), watch.recv()).await;
        let event = event.unwrap_or_else(|_| panic!("no more came after {:?}", told.last())).expect("it goes on");
        let object = Object::from_slice(&event.object).unwrap();
        let number = object.0["data"]["n"].as_str().unwrap_or_default().to_owned();
        told.push(
            format!("{:?} {}", event.kind, object.name())
                + if event.kind == EventKind::Modified { &number } else { "" },
        );
    }
    let mut expected: Vec<String> = (1..1500).map(|i| format!("Modified c0{i}")).collect();
    expected.extend(["Added c1", "Deleted c0", "Added c2"].map(str::to_owned));
    assert_eq!(told, expected);
    let selected = Options { field_selector: Some("metadata.name=c1".into()), ..from.clone() };
    let event = api.watch("configmaps", selected).await.unwrap().recv().await.unwrap();
    assert_eq!(Object::from_slice(&event.object).unwrap().name(), "c1");

    // What is forgotten is forgotten.
    store.compact(store.revision().await.unwrap()).await.unwrap();
    let gone = api.watch("configmaps", from).await.unwrap_err();
    assert!(gone.is_gone() && gone.message.starts_with("too old resource version: "), "{gone}");
}

/// What a watch is told of the past is no other's copy: a user who does not take it has no room for the next.
#[tokio::test]
async fn the_past_that_is_watched_is_on_its_users_account() {
    let dir = tempfile::tempdir().unwrap();
    let (store, api) = open(dir.path()).await;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["watch"]}]);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "w"}, "rules": rules});
    let subject = json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "w"});
    let of = json!({"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "w"});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "w"},
        "subjects": [subject], "roleRef": of});
    api.create("clusterroles", role).await.unwrap();
    api.create("clusterrolebindings", binding).await.unwrap();
    let first = api.create("configmaps", config_map("c0")).await.unwrap();
    for i in 0..30 {
        api.patch("configmaps", "c0", json!({"data": {"n": format!("{i}{}", "x".repeat(100 << 10))}})).await.unwrap();
    }
    drop(api);
    store.close().await.unwrap();
    drop(store);

    let store = Arc::new(Sqlite::open(&dir.path().join("store.db")).unwrap());
    let limits = Limits { answers_of_one: 4 << 20, ..Limits::default() };
    let api = Api(Server::open(store, Env::system(), Config { limits, ..Config::default() }).await.unwrap());
    let from = Options { resource_version: Some(first.resource_version().into()), ..Options::default() };
    let watch = async || {
        let request = super::request(Verb::Watch, "configmaps", "", None, from.clone());
        api.0.watch(Request { user: User::new("w", Vec::<String>::new()), ..request }).await
    };
    let mut told = watch().await.unwrap();
    assert_eq!(watch().await.unwrap_err().code, 429, "3 MB of 4 wait for him");
    for _ in 0..30 {
        assert_eq!(told.recv().await.unwrap().kind, EventKind::Modified);
    }
    watch().await.unwrap();
    api.delete("configmaps", "c0", Options::default()).await.unwrap();
    assert_eq!(told.recv().await.unwrap().kind, EventKind::Deleted);
}
