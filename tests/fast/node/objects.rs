//! What a Pod refers to: as new as the Pod, and not asked for again and again.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use podwright::{
    api::Env,
    client::{Informer, local},
    node::objects::Objects,
    server::{Config, Server},
    store::Memory,
};
use serde_json::json;

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
