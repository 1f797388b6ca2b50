//! What is open when its right is withdrawn.

use std::time::Duration;

use podwright::server::{Config, Limits};
use serde_json::json;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_watch_ends_with_the_right_to_it() {
    let limits = Limits { ask_again: Duration::from_millis(50), ..Limits::default() };
    let api = Api::with(Config { limits, ..Config::default() }).await;
    api.cluster_role("reader", rules(&["get,list,watch core configmaps"])).await;
    api.bind("reader", Some("default"), json!([{"kind": "User", "name": "ann"}])).await;
    let watch = request(Verb::Watch, "configmaps", "", None, Options::default());
    let mut anns =
        api.0.watch(Request { user: User::new("ann", ["system:authenticated"]), ..watch.clone() }).await.unwrap();
    let mut roots = api.0.watch(watch).await.unwrap();
    api.create("configmaps", config_map("a")).await.unwrap();
    assert!(tokio::time::timeout(TIMEOUT, anns.recv()).await.unwrap().is_some());
    assert!(tokio::time::timeout(Duration::from_millis(300), anns.recv()).await.is_err(), "it goes on while he may");

    api.delete("rolebindings", "reader-default", Options::default()).await.unwrap();
    assert!(tokio::time::timeout(TIMEOUT, anns.recv()).await.unwrap().is_none(), "he may no longer");
    api.create("configmaps", config_map("b")).await.unwrap();
    for _ in 0..2 {
        assert!(tokio::time::timeout(TIMEOUT, roots.recv()).await.unwrap().is_some(), "the superuser's goes on");
    }
}

/// A role for a part of objects is none for the whole of them.
#[tokio::test]
async fn nobody_watches_a_part_and_is_told_the_whole() {
    let api = Api::new().await;
    api.cluster_role("statuses", rules(&["get,list,watch,deletecollection * */status,*/scale"])).await;
    api.bind("statuses", None, json!([{"kind": "User", "name": "ann"}])).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "b"}});
    api.create("secrets", secret).await.unwrap();
    for (verb, resource, sub) in [
        (Verb::Watch, "secrets", "status"),
        (Verb::Watch, "deployments", "scale"),
        (Verb::List, "secrets", "status"),
        (Verb::DeleteCollection, "secrets", "scale"),
    ] {
        let asked = Request {
            user: User::new("ann", ["system:authenticated"]),
            subresource: Some(sub.to_owned()),
            ..request(verb, resource, "s", None, Options::default())
        };
        let refused = match verb {
            Verb::Watch => api.0.watch(asked).await.err(),
            _ => api.0.handle(asked).await.err(),
        };
        assert_eq!(refused.map(|why| why.code), Some(405), "{verb:?} {resource}/{sub}");
    }
}
