//! Two API servers on one real etcd: what one is told to be done the other one shows, and what must not happen twice does not.

use std::{collections::HashSet, net::IpAddr, sync::Arc, time::Duration};

use podwright::{
    api::{Env, Object, Options, Verb, request::EventKind},
    server::{Config, Server},
    store::{Etcd, EtcdConfig},
};
use serde_json::json;

use super::{Api, config_map, object_of, request, service};
use crate::etcd::EtcdServer;

async fn server(etcd: &EtcdServer) -> Arc<Api> {
    let servers = vec![etcd.url().to_owned()];
    let config = EtcdConfig { servers, root: "/registry".into(), prefix: "/registry".into(), ..EtcdConfig::default() };
    let store = Etcd::open(config).await.unwrap();
    let config = Config { service_cidrs: vec!["10.96.0.0/27".parse().unwrap()], ..Config::default() };
    Arc::new(Api(Server::open(Arc::new(store), Env::system(), config).await.unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_server_has_done_the_other_one_shows_at_once() {
    let etcd = EtcdServer::start();
    let (one, two) = (server(&etcd).await, server(&etcd).await);
    let mut watch = two.watch("configmaps", Options::default()).await.unwrap();
    for n in 0..20 {
        let name = format!("m{n}");
        let made = one.create("configmaps", config_map(&name)).await.unwrap();
        assert_eq!(two.get("configmaps", &name).await.unwrap(), made);
        let event = tokio::time::timeout(Duration::from_secs(30), watch.recv()).await.unwrap().unwrap();
        assert_eq!((event.kind, Object::from_slice(&event.object).unwrap()), (EventKind::Added, made.clone()));
        // Who writes on what the other one has changed meanwhile is told so.
        two.patch("configmaps", &name, json!({"data": {"a": "2"}})).await.unwrap();
        assert!(one.update("configmaps", &made).await.unwrap_err().is_conflict());
        two.delete("configmaps", &name, Options::default()).await.unwrap();
        let event = tokio::time::timeout(Duration::from_secs(30), async {
            loop {
                let event = watch.recv().await.unwrap();
                if event.kind == EventKind::Deleted {
                    return event;
                }
            }
        });
        assert_eq!(Object::from_slice(&event.await.unwrap().object).unwrap().name(), name);
        assert!(one.get("configmaps", &name).await.unwrap_err().is_not_found());
        assert!(one.list("configmaps", Options::default()).await.unwrap().items.is_empty());
    }
}

/// The objects that both servers can make at once, each name its own.
async fn race(
    servers: &[Arc<Api>; 2],
    resource: &'static str,
    number: usize,
    object: fn(&str) -> serde_json::Value,
) -> Vec<Object> {
    let tasks: Vec<_> = (0..number)
        .map(|n| {
            let api = servers[n % 2].clone();
            tokio::spawn(async move { api.create(resource, object(&format!("r{n}"))).await })
        })
        .collect();
    let mut made = Vec::new();
    for task in tasks {
        made.extend(task.await.unwrap());
    }
    made
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_and_quotas_are_of_both() {
    let etcd = EtcdServer::start();
    let servers = [server(&etcd).await, server(&etcd).await];
    let services = race(&servers, "services", 16, |name| service(name, json!({}))).await;
    let addresses: HashSet<IpAddr> =
        services.iter().map(|made| made.0["spec"]["clusterIP"].as_str().unwrap().parse().unwrap()).collect();
    assert_eq!((services.len(), addresses.len()), (16, 16), "no address is given twice");
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"count/configmaps": "5"}}});
    servers[0].create("resourcequotas", quota).await.unwrap();
    let status = json!({"status": {"hard": {"count/configmaps": "5"}, "used": {"count/configmaps": "0"}}});
    servers[0].sub(Verb::Patch, "resourcequotas", "q", "status", status).await.unwrap();
    servers[1].get("resourcequotas", "q").await.unwrap();
    assert_eq!(race(&servers, "configmaps", 20, config_map).await.len(), 5, "the quota is never exceeded");
    assert_eq!(servers[1].get("resourcequotas", "q").await.unwrap().0["status"]["used"]["count/configmaps"], "5");
}

/// The keys of ServiceAccount tokens are in the store: one that the one issues the other one verifies.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_the_one_is_good_at_the_other() {
    let etcd = EtcdServer::start();
    let (one, two) = (server(&etcd).await, server(&etcd).await);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    one.create("serviceaccounts", account).await.unwrap();
    let issued = one.sub(Verb::Create, "serviceaccounts", "robot", "token", json!({"spec": {}})).await.unwrap();
    let token = object_of(issued).0["status"]["token"].as_str().unwrap().to_owned();
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let asked = request(Verb::Create, "tokenreviews", "", Some(review), Options::default());
    let told = object_of(two.0.handle(asked).await.unwrap());
    assert_eq!(told.0["status"]["user"]["username"], "system:serviceaccount:default:robot", "{}", told.0["status"]);
}

/// etcd takes 128 operations in a transaction, and a Service has more ports.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_hundreds_of_node_ports_is_made_and_changed_and_deleted() {
    let etcd = EtcdServer::start();
    let api = server(&etcd).await;
    let ports = |count: u64| (1..=count).map(|n| json!({"name": format!("p{n}"), "port": n})).collect::<Vec<_>>();
    let node_ports = |object: &Object| -> HashSet<u64> {
        let ports = object.0["spec"]["ports"].as_array().unwrap().iter();
        ports.filter_map(|port| port["nodePort"].as_u64()).collect()
    };
    for _ in 0..2 {
        let spec = json!({"type": "NodePort", "ports": ports(300)});
        let made = api.create("services", service("s", spec)).await.unwrap();
        assert_eq!(node_ports(&made).len(), 300);
        // Somebody else names one of them, and gets none of his.
        let mut theirs = ports(200);
        theirs[199]["nodePort"] = json!(node_ports(&made).iter().next());
        let refused =
            api.create("services", service("t", json!({"type": "NodePort", "ports": theirs}))).await.unwrap_err();
        assert!(refused.message.contains("provided port is already allocated"), "{}", refused.message);
        let fewer = api.patch("services", "s", json!({"spec": {"ports": null}})).await;
        assert_eq!(fewer.unwrap_err().code, 422, "a Service has ports");
        let grown = api.patch("services", "s", json!({"spec": {"ports": ports(700)}})).await.unwrap();
        assert!(node_ports(&grown).len() == 700 && node_ports(&grown).is_superset(&node_ports(&made)));
        let plain = api.patch("services", "s", json!({"spec": {"type": "ClusterIP"}})).await.unwrap();
        assert!(node_ports(&plain).is_empty());
        let again = api.patch("services", "s", json!({"spec": {"type": "NodePort"}})).await.unwrap();
        assert_eq!(node_ports(&again).len(), 700);
        api.delete("services", "s", Options::default()).await.unwrap();
        // All are free: there are 2,768.
        let all =
            api.create("services", service("all", json!({"type": "NodePort", "ports": ports(2768)}))).await.unwrap();
        assert_eq!(node_ports(&all).len(), 2768);
        api.delete("services", "all", Options::default()).await.unwrap();
    }
    // What no transaction could take back is not taken.
    let refused =
        api.create("services", service("s", json!({"type": "NodePort", "ports": ports(4001)}))).await.unwrap_err();
    assert_eq!(refused.code, 422);
    assert!(
        refused.message.contains("spec.ports: Too many: 4001: must have at most 4000 items"),
        "{}",
        refused.message
    );
}
