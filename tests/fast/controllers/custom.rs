//! The garbage collector and the namespace controller over kinds that are defined at runtime.

use std::sync::Arc;
use std::time::Duration;

use podwright::api::{Env, Object, Options, Request, Status, User, Verb, request::Body};
use podwright::client::{Informers, local};
use podwright::controllers;
use podwright::server::{Config, Server};
use podwright::store::Memory;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

struct World(Arc<Server>);

impl World {
    async fn start() -> World {
        let server = Server::open(Arc::new(Memory::new()), Env::system(), Config::default()).await.unwrap();
        let client = local::client(server.clone(), "controllers");
        tokio::spawn(async move {
            let informers = Informers::start(client.clone());
            let config = controllers::Config::default();
            controllers::run(client, Env::system(), informers, config, CancellationToken::new()).await;
        });
        World(server)
    }

    async fn ask(
        &self,
        verb: Verb,
        resource: &str,
        namespace: &str,
        name: &str,
        body: Option<Value>,
        options: Options,
    ) -> Result<Object, Status> {
        let given = |s: &str| Some(s.to_owned()).filter(|s| !s.is_empty());
        let request = Request {
            verb,
            resource: resource.into(),
            namespace: given(namespace),
            name: given(name),
            body,
            options,
            user: User::system("test"),
            ..Request::default()
        };
        match self.0.handle(request).await?.body {
            Body::Object { bytes, .. } => Object::from_slice(&bytes),
            _ => Ok(Object(Value::Null)),
        }
    }

    async fn create(&self, resource: &str, namespace: &str, body: Value) -> Object {
        self.ask(Verb::Create, resource, namespace, "", Some(body), Options::default()).await.unwrap()
    }

    async fn until_gone(&self, resource: &str, namespace: &str, name: &str) {
        for _ in 0..1000 {
            if self
                .ask(Verb::Get, resource, namespace, name, None, Options::default())
                .await
                .is_err_and(|e| e.is_not_found())
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let left = self.ask(Verb::Get, resource, namespace, name, None, Options::default()).await;
        panic!("{resource} {namespace}/{name} stays: {left:?}");
    }

    async fn define(&self) {
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "owners.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "owners", "kind": "Owner"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        self.create("customresourcedefinitions", "", definition).await;
        for _ in 0..500 {
            if self.ask(Verb::List, "owners", "", "", None, Options::default()).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it is not served");
    }

    async fn owner(&self, namespace: &str, name: &str) -> Value {
        let made = self
            .create(
                "owners",
                namespace,
                json!({"apiVersion": "example.com/v1", "kind": "Owner", "metadata": {"name": name}}),
            )
            .await;
        json!([{"apiVersion": "example.com/v1", "kind": "Owner", "name": name, "uid": made.uid(), "blockOwnerDeletion": true}])
    }
}

fn config_map(name: &str, owners: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_custom_resource_owns_ends_with_it() {
    let world = World::start().await;
    world.define().await;
    let owners = world.owner("default", "a").await;
    let owned = world.create("configmaps", "default", config_map("owned", owners.clone())).await;
    let of_map = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owned", "uid": owned.uid()}]);
    let mut second = json!({"apiVersion": "example.com/v1", "kind": "Owner", "metadata": {"name": "b"}});
    second["metadata"]["ownerReferences"] = of_map;
    world.create("owners", "default", second).await;
    world.ask(Verb::Delete, "owners", "default", "a", None, Options::default()).await.unwrap();
    world.until_gone("configmaps", "default", "owned").await;
    world.until_gone("owners", "default", "b").await;

    // In the foreground the owner goes last.
    let owners = world.owner("default", "c").await;
    let mut held = config_map("held", owners);
    held["metadata"]["finalizers"] = json!(["example.com/wait"]);
    world.create("configmaps", "default", held).await;
    let foreground = Options { propagation_policy: Some("Foreground".into()), ..Options::default() };
    world.ask(Verb::Delete, "owners", "default", "c", None, foreground).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(world.ask(Verb::Get, "owners", "default", "c", None, Options::default()).await.unwrap().is_terminating());
    let options = Options { patch_type: Some(podwright::api::request::PatchType::Merge), ..Options::default() };
    let release = json!({"metadata": {"finalizers": null}});
    world.ask(Verb::Patch, "configmaps", "default", "held", Some(release), options).await.unwrap();
    world.until_gone("owners", "default", "c").await;
}

/// Each kind has a watch of its own: an owner's deletion is often seen before the dependent created just before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_waits_for_dependents_that_were_made_just_before_its_end() {
    let world = World::start().await;
    world.define().await;
    let names: Vec<String> = (0..40).map(|i| format!("o{i}")).collect();
    let map = |name: &str, owners| {
        let mut map = config_map(name, owners);
        map["metadata"]["finalizers"] = json!(["example.com/wait"]);
        map
    };
    let policy = |policy: &str| Options { propagation_policy: Some(policy.into()), ..Options::default() };
    for name in &names {
        let owners = world.owner("default", name).await;
        world.create("configmaps", "default", map(name, owners)).await;
        world.ask(Verb::Delete, "owners", "default", name, None, policy("Foreground")).await.unwrap();
    }
    let get = |resource: &'static str, name: String| {
        world.ask(Verb::Get, resource, "default", name.leak(), None, Options::default())
    };
    for name in &names {
        while !get("configmaps", name.clone()).await.unwrap().is_terminating() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    // All dependents are being deleted, held by their finalizers: so must their owners be.
    for name in &names {
        assert!(get("owners", name.clone()).await.unwrap_or_else(|why| panic!("{why}")).is_terminating());
    }
    let merge = Options { patch_type: Some(podwright::api::request::PatchType::Merge), ..Options::default() };
    for name in &names {
        let release = json!({"metadata": {"finalizers": null}});
        world.ask(Verb::Patch, "configmaps", "default", name, Some(release), merge.clone()).await.unwrap();
        world.until_gone("owners", "default", name).await;
    }

    // Dependents must be orphaned before their owner goes, else they are collected.
    for name in &names {
        let owners = world.owner("default", name).await;
        world.create("configmaps", "default", map(name, owners)).await;
        world.ask(Verb::Delete, "owners", "default", name, None, policy("Orphan")).await.unwrap();
    }
    for name in &names {
        world.until_gone("owners", "default", name).await;
        let left = get("configmaps", name.clone()).await.unwrap();
        let owners = left.0["metadata"]["ownerReferences"].as_array();
        assert!(!left.is_terminating() && owners.is_none_or(Vec::is_empty), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_takes_custom_resources_with_it() {
    let world = World::start().await;
    world.create("namespaces", "", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}})).await;
    world.define().await;
    world.owner("lab", "a").await;
    world.owner("default", "stays").await;
    world.ask(Verb::Delete, "namespaces", "", "lab", None, Options::default()).await.unwrap();
    world.until_gone("namespaces", "", "lab").await;
    world.until_gone("owners", "lab", "a").await;
    world.ask(Verb::Get, "owners", "default", "stays", None, Options::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_loses_its_pods_first() {
    let world = World::start().await;
    world.create("namespaces", "", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}})).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "finalizers": ["example.com/wait"]},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    world.create("pods", "lab", pod).await;
    world.create("configmaps", "lab", config_map("m", json!([]))).await;
    world.ask(Verb::Delete, "namespaces", "", "lab", None, Options::default()).await.unwrap();
    let get = |resource, namespace, name| world.ask(Verb::Get, resource, namespace, name, None, Options::default());
    let mut told = Value::Null;
    for _ in 0..1000 {
        told = get("namespaces", "", "lab").await.unwrap().0["status"]["conditions"].take();
        if told.as_array().is_some_and(|all| !all.is_empty()) && get("pods", "lab", "p").await.unwrap().is_terminating()
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let messages: Vec<&str> = told.as_array().into_iter().flatten().filter_map(|c| c["message"].as_str()).collect();
    assert!(messages.contains(&"Some resources are remaining: pods. has 1 resource instances"), "{messages:?}");
    assert!(get("pods", "lab", "p").await.unwrap().is_terminating());
    assert!(!get("configmaps", "lab", "m").await.unwrap().is_terminating(), "it can still be read");
    let merge = Options { patch_type: Some(podwright::api::request::PatchType::Merge), ..Options::default() };
    let release = json!({"metadata": {"finalizers": null}});
    world.ask(Verb::Patch, "pods", "lab", "p", Some(release), merge).await.unwrap();
    world.until_gone("namespaces", "", "lab").await;
    world.until_gone("configmaps", "lab", "m").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_are_checked_against_what_is_defined_even_after_them() {
    let world = World::start().await;
    let rules = json!([{"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["owners"]}]);
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"},
        "spec": {"matchConstraints": {"resourceRules": rules}, "validations": [{"expression": "object.nothing == 1"}]}});
    let policies = "validatingadmissionpolicies";
    world.create(policies, "", policy).await;
    world.define().await;
    let mut status = Value::Null;
    for _ in 0..1000 {
        status = world.ask(Verb::Get, policies, "", "p", None, Options::default()).await.unwrap().0["status"].take();
        let warning = &status["typeChecking"]["expressionWarnings"][0]["warning"];
        if warning.as_str().is_some_and(|warning| warning.contains("undefined field 'nothing'")) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing is said of it: {status}");
}
