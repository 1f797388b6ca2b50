//! The API server on the memory store, through its in-process door.

mod admission;
mod apply;
mod audit;
mod behind;
mod burdens;
mod certificates;
mod cron_jobs;
mod custom;
mod details;
mod discovery;
mod durable;
mod encryption;
mod endpoints;
mod evictions;
mod https;
mod join;
mod lag;
mod local_volumes;
mod long_lists;
mod mirrors;
mod modes;
mod node_restriction;
mod nodes;
mod nulls;
mod oidc;
mod orders;
mod pod_identities;
mod pod_status;
mod pods;
mod rbac;
mod reads;
mod resize;
mod rest;
mod rpc;
mod secret_tokens;
mod services;
mod together;
mod two_servers;
mod unread;
mod usage;
mod versions;
mod who;

use std::sync::Arc;

use podwright::api::request::{Body, EventKind, PatchType, Preconditions};
use podwright::api::{Env, Object, Options, Request, Response, Status, User, Verb, kinds};
use podwright::server::{Config, Server, Watch};
use podwright::store::Memory;
use serde_json::{Value, json};

/// A server and short words for what is asked of it.
pub struct Api(pub Arc<Server>);

impl Api {
    pub async fn new() -> Api {
        Api::with(Config::default()).await
    }
    pub async fn with(config: Config) -> Api {
        Api(Server::open(Arc::new(Memory::new()), Env::system(), config).await.unwrap())
    }
    pub async fn ask(&self, verb: Verb, resource: &str, name: &str, options: Options) -> Result<Response, Status> {
        self.0.handle(request(verb, resource, name, None, options)).await
    }
    pub async fn create(&self, resource: &str, object: Value) -> Result<Object, Status> {
        let request = request(Verb::Create, resource, "", Some(object), Options::default());
        self.0.handle(request).await.map(object_of)
    }
    pub async fn get(&self, resource: &str, name: &str) -> Result<Object, Status> {
        self.ask(Verb::Get, resource, name, Options::default()).await.map(object_of)
    }
    pub async fn update(&self, resource: &str, object: &Object) -> Result<Object, Status> {
        let request = request(Verb::Update, resource, "", Some(object.0.clone()), Options::default());
        self.0.handle(request).await.map(object_of)
    }
    pub async fn patch(&self, resource: &str, name: &str, patch: Value) -> Result<Object, Status> {
        let options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
        self.0.handle(request(Verb::Patch, resource, name, Some(patch), options)).await.map(object_of)
    }
    pub async fn delete(&self, resource: &str, name: &str, options: Options) -> Result<Response, Status> {
        self.ask(Verb::Delete, resource, name, options).await
    }
    pub async fn list(&self, resource: &str, options: Options) -> Result<podwright::api::request::List, Status> {
        match self.ask(Verb::List, resource, "", options).await?.body {
            Body::List(list) => Ok(list),
            other => panic!("not a list: {other:?}"),
        }
    }
    pub async fn watch(&self, resource: &str, options: Options) -> Result<Watch, Status> {
        self.0.watch(request(Verb::Watch, resource, "", None, options)).await
    }
    /// Sees to it that there is a bootstrap token `ID.0123456789abcdef`, by which its holder may authenticate.
    pub async fn bootstrap_token(&self, id: &str) {
        match self.create("secrets", bootstrap_token(id, json!({}))).await {
            Err(why) if !why.is_already_exists() => panic!("{why}"),
            _ => {}
        }
    }
    pub async fn sub(
        &self,
        verb: Verb,
        resource: &str,
        name: &str,
        sub: &str,
        body: Value,
    ) -> Result<Response, Status> {
        let subresource = Some(sub.to_owned());
        let options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
        self.0.handle(Request { subresource, ..request(verb, resource, name, Some(body), options) }).await
    }
}

/// The Secret of a bootstrap token; `more`: further data, and other.
pub fn bootstrap_token(id: &str, more: Value) -> Value {
    let mut data = json!({
        "token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
    });
    data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token", "stringData": data,
        "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
    })
}

/// A request of an administrator, in the namespace `default` where its kind is in one.
pub fn request(verb: Verb, resource: &str, name: &str, body: Option<Value>, options: Options) -> Request {
    let given = body.as_ref().and_then(|b| b["metadata"]["namespace"].as_str());
    let of_cluster = kinds::lookup(resource).is_some_and(|kind| !kind.namespaced);
    Request {
        verb,
        resource: resource.into(),
        namespace: (!of_cluster).then(|| given.unwrap_or("default").to_owned()),
        name: Some(name.to_owned()).filter(|n| !n.is_empty()),
        body,
        options,
        user: User::system("test"),
        ..Request::default()
    }
}

pub fn object_of(response: Response) -> Object {
    match response.body {
        Body::Object { bytes, .. } => Object::from_slice(&bytes).unwrap(),
        other => panic!("not an object: {other:?}"),
    }
}

pub fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

pub fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}})
}

/// The mirror of a static Pod on a node, as its agent makes it.
pub fn mirror(name: &str, node: &Object) -> Value {
    let mut mirror = pod(name);
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    mirror["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": node.name(), "uid": node.uid(), "controller": true}]);
    mirror["spec"]["nodeName"] = node.name().into();
    mirror
}

pub fn service(name: &str, spec: Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
    if object["spec"]["ports"].is_null() {
        object["spec"]["ports"] = json!([{"port": 80}]);
    }
    object
}

#[tokio::test]
async fn what_is_created_has_its_system_metadata_and_can_be_read() {
    let api = Api::new().await;
    let made = api.create("configmaps", config_map("a")).await.unwrap();
    assert_eq!(made.namespace(), Some("default"));
    assert_eq!(made.uid().len(), 36);
    assert!(made.0["metadata"]["creationTimestamp"].as_str().unwrap().ends_with('Z'));
    assert!(made.resource_version().parse::<u64>().unwrap() > 0);
    assert_eq!(api.get("configmaps", "a").await.unwrap(), made);
    assert!(api.create("configmaps", config_map("a")).await.unwrap_err().is_already_exists());
    assert!(api.get("configmaps", "b").await.unwrap_err().is_not_found());
    let status = api
        .create("configmaps", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}, "date": {}}))
        .await;
    assert!(status.unwrap_err().message.contains("date"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_those_who_create_one_name_at_once_one_wins() {
    let api = Arc::new(Api::new().await);
    for round in 0..20 {
        let writers = (0..8).map(|n| {
            let api = api.clone();
            let mut object = config_map(&format!("a{round}"));
            object["data"]["writer"] = n.to_string().into();
            tokio::spawn(async move { api.create("configmaps", object).await })
        });
        let (mut made, mut refused) = (Vec::new(), 0);
        for writer in writers.collect::<Vec<_>>() {
            match writer.await.unwrap() {
                Ok(object) => made.push(object),
                Err(status) => {
                    let message = format!("configmaps \"a{round}\" already exists");
                    assert_eq!((status.code, status.reason.as_str(), status.message), (409, "AlreadyExists", message));
                    refused += 1;
                }
            }
        }
        assert_eq!((made.len(), refused), (1, 7));
        assert_eq!(api.get("configmaps", &format!("a{round}")).await.unwrap(), made[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_generated_name_that_is_taken_is_generated_anew_eight_times() {
    let store = Arc::new(Memory::new());
    let start = "2026-11-20T17:00:00Z".parse().unwrap();
    Server::open(store.clone(), Env::simulated(start, 1), Config::default()).await.unwrap();
    let mut taken = std::collections::BTreeSet::new();
    let wanted = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "x-"}});
    // Each server draws the same numbers as the one before: its first names are those that are taken.
    for attempt in 0..9 {
        let api = Api(Server::open(store.clone(), Env::simulated(start, 7), Config::default()).await.unwrap());
        match api.create("configmaps", wanted.clone()).await {
            Ok(made) => assert!(attempt < 8 && taken.insert(made.name().to_owned()), "{attempt}: {}", made.name()),
            Err(status) => {
                assert_eq!((attempt, status.code, status.reason.as_str()), (8, 409, "AlreadyExists"));
                let said = taken.iter().map(|name| {
                    format!(
                        "configmaps \"{name}\" already exists, the server was not able to generate a unique name for the object"
                    )
                });
                assert!(said.clone().any(|said| said == status.message), "{status}");
            }
        }
    }
    assert_eq!(taken.len(), 8);
}

#[tokio::test]
async fn the_initial_objects_exist_and_keep_their_addresses() {
    let store = Arc::new(Memory::new());
    for _ in 0..2 {
        let api = Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap());
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            assert_eq!(api.get("namespaces", name).await.unwrap().0["status"]["phase"], "Active");
        }
        assert_eq!(api.get("services", "kubernetes").await.unwrap().0["spec"]["clusterIP"], "10.96.0.1");
        let dns = Request {
            namespace: Some("kube-system".into()),
            ..request(Verb::Get, "services", "kube-dns", None, Options::default())
        };
        assert_eq!(object_of(api.0.handle(dns).await.unwrap()).0["spec"]["clusterIPs"], json!(["10.96.0.10"]));
    }
}

#[tokio::test]
async fn an_update_compares_the_version_that_it_names() {
    let api = Api::new().await;
    let first = api.create("configmaps", config_map("a")).await.unwrap();
    let mut second = first.clone();
    second.0["data"]["a"] = "2".into();
    let second = api.update("configmaps", &second).await.unwrap();
    assert_ne!(second.resource_version(), first.resource_version());
    let stale = api.update("configmaps", &first).await.unwrap_err();
    assert!(stale.is_conflict() && stale.message.contains("the object has been modified"), "{stale}");
    let same = api.update("configmaps", &second).await.unwrap();
    assert_eq!(same.resource_version(), second.resource_version(), "nothing changed, nothing was written");
    let mut blind = first.clone();
    blind.set_meta("resourceVersion", None);
    assert_eq!(api.update("configmaps", &blind).await.unwrap().0["data"]["a"], "1");
}

#[tokio::test]
async fn a_hundred_writers_lose_no_change() {
    let api = Arc::new(Api::new().await);
    api.create("configmaps", config_map("a")).await.unwrap();
    let writers = (0..100).map(|i| {
        let api = api.clone();
        tokio::spawn(async move { api.patch("configmaps", "a", json!({"data": {format!("k{i}"): "x"}})).await })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap().unwrap();
    }
    assert_eq!(api.get("configmaps", "a").await.unwrap().0["data"].as_object().unwrap().len(), 101);
}

#[tokio::test]
async fn a_watch_tells_what_enters_changes_and_leaves_a_selection() {
    let api = Api::new().await;
    let options = Options { label_selector: Some("app=x".into()), ..Options::default() };
    let mut watch = api.watch("configmaps", options).await.unwrap();
    let made = api.create("configmaps", config_map("a")).await.unwrap();
    api.patch("configmaps", "a", json!({"metadata": {"labels": {"app": "x"}}})).await.unwrap();
    api.patch("configmaps", "a", json!({"data": {"a": "2"}})).await.unwrap();
    let left = api.patch("configmaps", "a", json!({"metadata": {"labels": {"app": "y"}}})).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let event = watch.recv().await.unwrap();
        seen.push((event.kind, Object::from_slice(&event.object).unwrap()));
    }
    let kinds: Vec<_> = seen.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [EventKind::Added, EventKind::Modified, EventKind::Deleted]);
    assert_eq!(seen[2].1.label("app"), Some("x"), "what left is told as it was");
    assert_eq!(seen[2].1.resource_version(), left.resource_version());

    let options = Options { resource_version: Some(made.resource_version().into()), ..Options::default() };
    let mut resumed = api.watch("configmaps", options).await.unwrap();
    let first = resumed.recv().await.unwrap();
    assert_eq!((first.kind, first.object), (EventKind::Modified, Object::to_vec(&seen[0].1).into()));
}

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_gone() {
    let api = Api::new().await;
    let mut object = config_map("a");
    object["metadata"]["finalizers"] = json!(["example.com/a"]);
    api.create("configmaps", object).await.unwrap();
    let held = object_of(api.delete("configmaps", "a", Options::default()).await.unwrap());
    assert!(held.is_terminating());
    assert_eq!(held.0["metadata"]["deletionGracePeriodSeconds"], 0);
    api.patch("configmaps", "a", json!({"metadata": {"finalizers": null}})).await.unwrap();
    assert!(api.get("configmaps", "a").await.unwrap_err().is_not_found());

    api.create("configmaps", config_map("b")).await.unwrap();
    let wrong = Preconditions { uid: Some("other".into()), ..Preconditions::default() };
    let refused = api.delete("configmaps", "b", Options { preconditions: Some(wrong), ..Options::default() }).await;
    assert!(refused.unwrap_err().is_conflict());
    let gone = api.delete("configmaps", "b", Options::default()).await.unwrap();
    assert!(matches!(gone.body, Body::Status(status) if status.status == "Success"));
}
