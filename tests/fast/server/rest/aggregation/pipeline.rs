//! What an extension server serves, by the pipeline that JSON-RPC and this process' own components go through.

use std::sync::atomic::Ordering;
use std::time::Duration;

use podwright::api::patch::apply::LAST_APPLIED;
use podwright::api::request::{Body, EventKind, PatchType};
use podwright::api::{Object, Options, Request, Status, User, Verb};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::super::super::{object_of, request};
use super::things::{thing, world};
use super::world::{NAME, World};

const THINGS: &str = "things.ext.example.com/v1";
const ALL: &[&str] = &["create", "delete", "get", "list", "patch", "watch"];

async fn ask(world: &World, verb: Verb, name: &str, body: Option<Value>, options: Options) -> Result<Object, Status> {
    world.rest.api.0.handle(request(verb, THINGS, name, body, options)).await.map(object_of)
}

fn patch_type(of: PatchType) -> Options {
    Options { patch_type: Some(of), ..Options::default() }
}

#[tokio::test]
async fn objects_of_others_are_made_read_changed_and_deleted() {
    let world = world(ALL).await;
    let made = ask(&world, Verb::Create, "", Some(thing("a")), Options::default()).await.unwrap();
    assert_eq!((made.name(), made.namespace()), ("a", Some("default")));
    let again = ask(&world, Verb::Create, "", Some(thing("a")), Options::default()).await.unwrap_err();
    assert!(again.is_already_exists(), "{again:?}");
    let read = ask(&world, Verb::Get, "a", None, Options::default()).await.unwrap();
    assert_eq!(read.0["spec"]["size"], 1);
    for name in ["things.ext.example.com", "things.ext.example.com/", "things.v1.ext.example.com"] {
        assert_eq!(world.rest.api.list(name, Options::default()).await.unwrap().items.len(), 1, "{name}");
    }
    let mut watch = world.rest.api.watch(THINGS, Options::default()).await.unwrap();
    let event = watch.recv().await.unwrap();
    assert_eq!((event.kind, Object::from_slice(&event.object).unwrap().name()), (EventKind::Added, "a"));
    let patch = Some(json!({"spec": {"size": 2}}));
    let patched = ask(&world, Verb::Patch, "a", patch, patch_type(PatchType::Merge)).await.unwrap();
    assert_eq!(patched.0["spec"]["size"], 2);
    // Who asks is told to it.
    let (headers, _) = world.heard("PATCH /apis/ext.example.com/v1/namespaces/default/things/a");
    assert!(headers.contains(&"x-remote-user: test".to_owned()), "{headers:?}");
    assert!(headers.contains(&"content-type: application/merge-patch+json".to_owned()), "{headers:?}");
    ask(&world, Verb::Delete, "a", None, Options::default()).await.unwrap();
    let gone = ask(&world, Verb::Get, "a", None, Options::default()).await.unwrap_err();
    assert!(gone.is_not_found() && gone.details.unwrap().name == "a");
    assert_eq!(world.rest.api.list("things.ext.example.com/v2", Options::default()).await.unwrap_err().code, 404);
}

/// Whoever writes for our own components waits for an extension server, and keeps none of their few places meanwhile.
#[tokio::test]
async fn nobody_waits_behind_who_waits_for_an_extension_server() {
    let world = world(ALL).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    world.port.store(silent.local_addr().unwrap().port(), Ordering::Relaxed);
    let server = &world.rest.api.0;
    let write = |resource: &str, namespace: &str| {
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "b"}});
        let request = request(Verb::Create, resource, "", Some(body), Options::default());
        let (namespace, user) = (Some(namespace.to_owned()), User::system("us"));
        tokio::spawn(server.clone().handle_behind(Request { namespace, user, ..request }))
    };
    let slow: Vec<_> = (0..80).map(|n| write(THINGS, if n % 2 == 0 { "a" } else { "b" })).collect();
    // Each of them has been dialled.
    let mut dialled = Vec::new();
    for _ in 0..80 {
        let next = tokio::time::timeout(Duration::from_secs(8), silent.accept()).await;
        dialled.push(next.unwrap_or_else(|_| panic!("{} are under way", dialled.len())).unwrap());
    }
    let other = tokio::time::timeout(Duration::from_secs(5), write("configmaps", "default")).await;
    other.expect("it is done at once").unwrap().unwrap();
    slow.iter().for_each(|slow| slow.abort());
}

#[tokio::test]
async fn an_apply_is_made_of_what_the_other_server_knows() {
    let world = world(ALL).await;
    let apply =
        async |manifest: Value| ask(&world, Verb::Patch, "a", Some(manifest), patch_type(PatchType::ThreeWay)).await;
    let mut manifest = thing("a");
    manifest["spec"]["tags"] = json!({"x": "1", "y": "2"});
    let made = apply(manifest.clone()).await.unwrap();
    assert!(made.annotation(LAST_APPLIED).is_some(), "{made:?}");
    // What somebody else has set stays, what the manifest had and has no more goes.
    ask(&world, Verb::Patch, "a", Some(json!({"spec": {"other": 7}})), patch_type(PatchType::Merge)).await.unwrap();
    manifest["spec"]["tags"] = json!({"y": "3"});
    let changed = apply(manifest.clone()).await.unwrap();
    assert_eq!(changed.0["spec"], json!({"size": 1, "tags": {"y": "3"}, "other": 7}));
    let same = apply(manifest).await.unwrap();
    assert_eq!(same.resource_version(), changed.resource_version(), "nothing is written");
}

#[tokio::test]
async fn a_collection_is_deleted_one_by_one_where_it_has_to_be() {
    let world = world(ALL).await;
    for name in ["a", "b"] {
        ask(&world, Verb::Create, "", Some(thing(name)), Options::default()).await.unwrap();
    }
    let all = request(Verb::DeleteCollection, THINGS, "", None, Options::default());
    world.rest.api.0.handle(all).await.unwrap();
    assert!(world.rest.api.list(THINGS, Options::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn the_same_rights_count_as_by_rest_and_what_cannot_be_had_is_said() {
    let world = world(ALL).await;
    let as_ann = |verb: Verb, name: &str| {
        let user = User::new("ann", ["system:authenticated"]);
        Request { user, ..request(verb, THINGS, name, None, Options::default()) }
    };
    let why = world.rest.api.0.handle(as_ann(Verb::Get, "a")).await.unwrap_err();
    let told = "things.ext.example.com \"a\" is forbidden: User \"ann\" cannot get resource \"things\" in API group \
                \"ext.example.com\" in the namespace \"default\"";
    assert_eq!((why.code, why.message.as_str()), (403, told));
    assert_eq!(world.rest.api.0.watch(as_ann(Verb::Watch, "")).await.unwrap_err().code, 403);
    world.let_ann().await;
    assert_eq!(world.rest.api.0.handle(as_ann(Verb::Get, "a")).await.unwrap_err().code, 404);
    let odd = world.rest.api.0.handle(as_ann(Verb::Get, "..")).await.unwrap_err();
    assert_eq!(odd.code, 400);
    *world.broken.lock().unwrap() = true;
    world.rest.api.patch("services", "hook", json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    world.until(NAME, "FailedDiscoveryCheck").await;
    let why = world.rest.api.0.handle(as_ann(Verb::Get, "a")).await.unwrap_err();
    assert_eq!((why.code, why.reason.as_str()), (503, "ServiceUnavailable"));
}

#[tokio::test]
async fn metrics_are_somebody_elses_where_an_api_service_says_so() {
    let world = world(ALL).await;
    let of_metrics = json!({"metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": {"group": "metrics.k8s.io", "version": "v1beta1"}});
    let ours = request(Verb::List, "pods.metrics.k8s.io", "", None, Options::default());
    let Body::List(list) = world.rest.api.0.handle(ours.clone()).await.unwrap().body else { panic!("no list") };
    assert!(list.items.is_empty());
    world.register(of_metrics).await;
    // Before it is known to be there: what our own nodes report is not the answer any more.
    assert_eq!(world.rest.api.0.handle(ours).await.unwrap_err().code, 503);
}
