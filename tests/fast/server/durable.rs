//! The API server on the SQLite store: what it acknowledged is there after a restart, and reads never wait in vain.

use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright::api::{Env, Options};
use podwright::server::{Config, Server};
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
    let old = Options { resource_version: Some("1".into()), ..Options::default() };
    assert!(
        api.watch("configmaps", old).await.unwrap_err().is_gone(),
        "history before the restart is not in the window"
    );
}
