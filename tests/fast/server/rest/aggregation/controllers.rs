//! The garbage collector and the namespace controller over what an extension server serves.

use std::time::Duration;

use podwright::api::{Env, Object, Options, Request, Status, User, Verb};
use podwright::client::{Informers, local};
use podwright::controllers;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::super::object_of;
use super::things::{thing, world};
use super::world::{NAME, World};

const THINGS: &str = "things.ext.example.com/v1";

fn start(world: &World) {
    let client = local::client(world.rest.api.0.clone(), "controllers");
    tokio::spawn(async move {
        let informers = Informers::start(client.clone());
        let config = controllers::Config::default();
        controllers::run(client, Env::system(), informers, config, CancellationToken::new()).await;
    });
}

async fn ask(
    world: &World,
    verb: Verb,
    resource: &str,
    at: (&str, &str),
    body: Option<Value>,
) -> Result<Object, Status> {
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let request = Request {
        verb,
        resource: resource.into(),
        namespace: given(at.0),
        name: given(at.1),
        body,
        options: Options::default(),
        user: User::system("test"),
        ..Request::default()
    };
    world.rest.api.0.handle(request).await.map(|response| match response.body {
        podwright::api::request::Body::Object { .. } => object_of(response),
        _ => Object(Value::Null),
    })
}

async fn until_gone(world: &World, resource: &str, at: (&str, &str)) {
    let mut last = None;
    for _ in 0..2000 {
        match ask(world, Verb::Get, resource, at, None).await {
            Err(why) if why.is_not_found() => return,
            other => last = Some(other),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{resource} {at:?} stays: {last:?}");
}

fn owned(mut object: Value, owner: &Object) -> Value {
    let (version, kind) = (owner.api_version(), owner.kind());
    object["metadata"]["ownerReferences"] =
        json!([{"apiVersion": version, "kind": kind, "name": owner.name(), "uid": owner.uid()}]);
    object
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_and_dependents_of_others_are_collected() {
    let world = world(&["create", "delete", "get", "list", "patch", "watch"]).await;
    start(&world);
    let at = |name| ("default", name);
    let owner = ask(&world, Verb::Create, THINGS, at(""), Some(thing("owner"))).await.unwrap();
    let below = ask(&world, Verb::Create, "configmaps", at(""), Some(owned(map("below"), &owner))).await.unwrap();
    // Of the next one no owner is left, however its group is served.
    ask(&world, Verb::Create, THINGS, at(""), Some(owned(thing("last"), &below))).await.unwrap();
    let stays = ask(&world, Verb::Create, THINGS, at(""), Some(thing("stays"))).await.unwrap();
    ask(&world, Verb::Create, "configmaps", at(""), Some(owned(map("kept"), &stays))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    for (resource, name) in [(THINGS, "last"), ("configmaps", "below"), ("configmaps", "kept")] {
        assert!(ask(&world, Verb::Get, resource, at(name), None).await.is_ok(), "{name} has its owner");
    }
    ask(&world, Verb::Delete, THINGS, at("owner"), None).await.unwrap();
    until_gone(&world, "configmaps", at("below")).await;
    until_gone(&world, THINGS, at("last")).await;
    assert!(ask(&world, Verb::Get, "configmaps", at("kept"), None).await.is_ok());
    // That nobody serves its owner any more does not mean that this is gone.
    ask(&world, Verb::Delete, "apiservices", ("", NAME), None).await.unwrap();
    let late = ask(&world, Verb::Create, "configmaps", at(""), Some(owned(map("late"), &stays))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    for name in ["kept", late.name()] {
        assert!(ask(&world, Verb::Get, "configmaps", at(name), None).await.is_ok(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_takes_what_others_serve_with_it_and_waits_until_that_is_known() {
    // One by one, and unseen: it can neither be watched nor deleted as a collection.
    let world = world(&["create", "delete", "get", "list"]).await;
    start(&world);
    let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    ask(&world, Verb::Create, "namespaces", ("", ""), Some(namespace("one"))).await.unwrap();
    ask(&world, Verb::Create, "namespaces", ("", ""), Some(namespace("two"))).await.unwrap();
    for at in ["one", "two", "default"] {
        ask(&world, Verb::Create, THINGS, (at, ""), Some(thing("a"))).await.unwrap();
    }
    ask(&world, Verb::Delete, "namespaces", ("", "one"), None).await.unwrap();
    until_gone(&world, "namespaces", ("", "one")).await;
    assert!(ask(&world, Verb::Get, THINGS, ("one", "a"), None).await.unwrap_err().is_not_found());
    assert!(ask(&world, Verb::Get, THINGS, ("default", "a"), None).await.is_ok());
    *world.broken.lock().unwrap() = true;
    let touch = async |label: &str| {
        world.rest.api.patch("services", "hook", json!({"metadata": {"labels": {"a": label}}})).await.unwrap();
    };
    touch("b").await;
    world.until(NAME, "FailedDiscoveryCheck").await;
    ask(&world, Verb::Delete, "namespaces", ("", "two"), None).await.unwrap();
    let mut told = Value::Null;
    for _ in 0..1000 {
        let found = ask(&world, Verb::Get, "namespaces", ("", "two"), None).await.unwrap();
        told = found.0["status"]["conditions"].clone();
        if told[0]["status"] == "True" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        (told[0]["type"].as_str(), told[0]["reason"].as_str()),
        (Some("NamespaceDeletionDiscoveryFailure"), Some("DiscoveryFailed"))
    );
    let message = "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: \
                   ext.example.com/v1: stale GroupVersion discovery: ext.example.com/v1";
    assert_eq!(told[0]["message"], message);
    *world.broken.lock().unwrap() = false;
    touch("c").await;
    until_gone(&world, "namespaces", ("", "two")).await;
    assert!(ask(&world, Verb::Get, THINGS, ("two", "a"), None).await.unwrap_err().is_not_found());
}
