//! Writes of every kind in the table of informers are waited for, if it is followed.

use std::sync::Mutex;

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::*;
use crate::CONTROLLERS;
use podwright_api::{
    Response, Status, WatchEvent,
    request::{Body, List, Preconditions},
    rpc::Session,
};
use podwright_client::{Client, Stream, Transport};

/// A client whose server is empty, at revision 7, and where nothing happens.
#[derive(Default)]
struct Empty(Mutex<Vec<Sender<WatchEvent>>>);

#[async_trait]
impl Transport for Empty {
    async fn call(&self, _: Request) -> Result<Response, Status> {
        let list = List {
            kind: "List".into(),
            api_version: "v1".into(),
            resource_version: "7".into(),
            continue_token: String::new(),
            remaining_item_count: None,
            items: Vec::new(),
        };
        Ok(Body::List(list).into())
    }
    async fn watch(&self, _: Request) -> Result<Receiver<WatchEvent>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        self.0.lock().expect("nobody has panicked").push(sender);
        Ok(receiver)
    }
    async fn dial(&self, _: &str) -> Result<Stream, Status> {
        Err(Status::internal("no"))
    }
    async fn sessions(&self, _: &str) -> Result<Receiver<Session>, Status> {
        Err(Status::internal("no"))
    }
}

async fn informers() -> Informers {
    let informers = Informers::start(Client::new(Arc::new(Empty::default()), "test"));
    informers.synced().await;
    informers
}

/// Whether a change of an object to this revision is shown; `None`: it is not waited for.
fn shown(informers: &Informers, resource: &str, key: (&str, &str), revision: u64) -> Option<bool> {
    let request = Request { verb: Verb::Patch, resource: resource.to_owned(), ..Request::default() };
    let meta = json!({ "namespace": key.0, "name": key.1, "resourceVersion": revision.to_string() });
    let answer = Object(json!({ "metadata": meta }));
    Awaited::after(informers, &request, Some(answer)).map(|awaited| awaited.is_shown())
}

#[tokio::test]
async fn whatever_an_informer_follows_is_awaited() {
    let informers = informers().await;
    let all = Informers::resources();
    assert_eq!(all.len(), 27, "{all:?}");
    for resource in &all {
        let rows = if resource == "configmaps" { 2 } else { 1 };
        assert_eq!(all.iter().filter(|it| *it == resource).count(), rows, "so many rows follow {resource}");
        let key = match resource.as_str() {
            // By their type alone, which no key tells.
            "secrets" => continue,
            "configmaps" => ("any", "kube-root-ca.crt"),
            "leases.coordination.k8s.io" => ("kube-node-lease", "any"),
            _ => ("any", "any"),
        };
        assert_eq!(shown(&informers, resource, key, 7), Some(true), "{resource} at 7");
        assert_eq!(shown(&informers, resource, key, 8), Some(false), "{resource} at 8 is not there yet");
    }
}

/// Each of two rows of a kind has its own objects.
#[tokio::test]
async fn of_two_informers_of_a_kind_the_one_that_follows_the_object_is_awaited() {
    let informers = informers().await;
    for key in [("any", "kube-root-ca.crt"), ("kube-public", "cluster-info")] {
        assert_eq!(shown(&informers, "configmaps", key, 8), Some(false), "{key:?}");
    }
    for key in [("any", "cluster-info"), ("kube-public", "any")] {
        assert_eq!(shown(&informers, "configmaps", key, 8), None, "{key:?}");
    }
    assert_eq!(shown(&informers, "secrets", ("kube-system", "any"), 8), None, "it may be of another type");
}

/// Waiting for it would never end: no event of it ever comes.
#[tokio::test]
async fn what_an_informer_leaves_out_is_not_awaited() {
    let informers = informers().await;
    assert_eq!(shown(&informers, "configmaps", ("any", "other"), 8), None);
    assert_eq!(shown(&informers, "leases.coordination.k8s.io", ("kube-system", "any"), 8), None);
    assert_eq!(shown(&informers, "secrets", ("any", "any"), 8), None);
}

#[tokio::test]
async fn what_is_deleted_is_awaited_until_it_is_not_shown() {
    let informers = informers().await;
    let mut request =
        Request { verb: Verb::Delete, resource: "storageclasses.storage.k8s.io".into(), ..Request::default() };
    assert!(Awaited::after(&informers, &request, None).is_none(), "who has no uid may be back by now");
    request.options.preconditions = Some(Preconditions { uid: Some("u".into()), resource_version: None });
    let awaited = Awaited::after(&informers, &request, None);
    assert!(awaited.is_some_and(|awaited| awaited.is_shown()));
}

/// Kinds without a shared informer too, but with a time limit.
#[tokio::test(start_paused = true)]
async fn who_sees_the_metadata_alone_waits_for_that() {
    let metadata = MetadataInformers::start(&Client::new(Arc::new(Empty::default()), "test"));
    metadata.synced().await;
    let awaited = |verb: Verb, resource: &str, revision: u64| {
        let request = Request { verb, resource: resource.to_owned(), ..Request::default() };
        let meta = json!({ "namespace": "any", "name": "any", "resourceVersion": revision.to_string() });
        Awaited::by_metadata(&metadata, &request, Some(Object(json!({ "metadata": meta }))))
    };
    for resource in ["secrets", "pods", "configmaps"] {
        assert!(awaited(Verb::Patch, resource, 7).is_some_and(|awaited| awaited.is_shown()), "{resource}");
        let later = awaited(Verb::Patch, resource, 8).expect("it is followed");
        assert!(!later.is_shown(), "{resource}");
        tokio::time::sleep(PATIENCE).await;
        assert!(later.is_shown(), "{resource}: it may never be");
    }
    assert!(awaited(Verb::Delete, "secrets", 8).is_none());
    assert!(awaited(Verb::Patch, "widgets.example.com", 8).is_none());
}

#[test]
fn the_controllers_write_what_is_followed() {
    assert_eq!(check(CONTROLLERS), Ok(()));
}

#[test]
fn a_controller_that_writes_what_no_informer_follows_is_refused_by_name() {
    let row =
        Row { name: "sprocket-controller", writes: Writes::Of(&["pods", "sprockets.example.com"]), ..CONTROLLERS[0] };
    let refused = check(&[row]).expect_err("nobody follows sprockets");
    assert_eq!(
        refused.to_string(),
        r#"controller "sprocket-controller" writes "sprockets.example.com", which no shared informer follows"#
    );
}
