//! Informers when the server sends what they cannot decode.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use k8s_openapi::api::coordination::v1::Lease;
use podwright::{
    api::{
        Request, Response, Status, WatchEvent,
        request::{Body, EventKind, List},
        rpc::Session,
    },
    client::{Client, Informer, Key, Partial, Rooms, Stream, Transport},
};
use serde_json::json;
use tokio::sync::{Mutex, mpsc};

/// A server with a scripted first list and first watch.
struct Script {
    items: Vec<Bytes>,
    events: Mutex<Option<mpsc::Receiver<WatchEvent>>>,
}

#[async_trait]
impl Transport for Script {
    async fn call(&self, _: Request) -> Result<Response, Status> {
        let list = List { resource_version: "2".into(), items: self.items.clone(), ..List::default() };
        Ok(Body::List(list).into())
    }
    async fn watch(&self, _: Request) -> Result<mpsc::Receiver<WatchEvent>, Status> {
        self.events.lock().await.take().ok_or_else(|| Status::internal("there was one watch"))
    }
    async fn dial(&self, _: &str) -> Result<Stream, Status> {
        Err(Status::internal("no streams"))
    }
    async fn sessions(&self, _: &str) -> Result<mpsc::Receiver<Session>, Status> {
        Err(Status::internal("no sessions"))
    }
}

/// A server whose lists return a revision that its watches no longer know: they are rejected, or end with that.
struct Forgetful {
    refuses: bool,
    /// The times of the list requests.
    lists: std::sync::Mutex<Vec<tokio::time::Instant>>,
    /// How long a watch lasts.
    lasts: Duration,
}

#[async_trait]
impl Transport for Forgetful {
    async fn call(&self, _: Request) -> Result<Response, Status> {
        self.lists.lock().unwrap().push(tokio::time::Instant::now());
        let list = List { resource_version: "2".into(), ..List::default() };
        Ok(Body::List(list).into())
    }
    async fn watch(&self, _: Request) -> Result<mpsc::Receiver<WatchEvent>, Status> {
        let gone = Status::failure(410, "Expired", "too old resource version");
        if self.refuses {
            return Err(gone);
        }
        let (events, receiver) = mpsc::channel(1);
        let (lasts, object) = (self.lasts, serde_json::to_vec(&gone).unwrap().into());
        tokio::spawn(async move {
            tokio::time::sleep(lasts).await;
            events.send(WatchEvent { kind: EventKind::Error, object }).await
        });
        Ok(receiver)
    }
    async fn dial(&self, _: &str) -> Result<Stream, Status> {
        Err(Status::internal("no streams"))
    }
    async fn sessions(&self, _: &str) -> Result<mpsc::Receiver<Session>, Status> {
        Err(Status::internal("no sessions"))
    }
}

/// The intervals between the lists requested within five minutes.
async fn lists(refuses: bool, lasts: Duration) -> Vec<Duration> {
    let server = Arc::new(Forgetful { refuses, lasts, lists: Default::default() });
    let informer: Informer<Lease> = Informer::builder(Client::new(server.clone(), "test")).start();
    tokio::time::sleep(Duration::from_secs(300)).await;
    drop(informer);
    let lists = server.lists.lock().unwrap();
    lists.windows(2).map(|two| two[1] - two[0]).collect()
}

#[tokio::test(start_paused = true)]
async fn a_list_that_was_of_no_use_is_asked_for_again_more_and_more_seldom() {
    for refuses in [false, true] {
        let between = lists(refuses, Duration::ZERO).await;
        assert!((40..90).contains(&between.len()), "{} lists: {between:?}", between.len());
        assert!(between[0] < Duration::from_millis(100), "the second one comes at once: {between:?}");
        assert!(between.last().is_some_and(|last| *last >= Duration::from_secs(5)), "{between:?}");
    }
    // When an honest server no longer has the revision, the list follows at once.
    let between = lists(false, Duration::from_secs(6)).await;
    assert!(between.len() == 49 && between.iter().all(|pause| pause.as_millis() < 6_020), "{between:?}");
}

fn lease(name: &str, version: u64, renewed: &str) -> Bytes {
    let metadata = json!({"namespace": "d", "name": name, "resourceVersion": version.to_string()});
    let kind = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {"renewTime": renewed}});
    kind.to_string().into()
}

#[tokio::test]
async fn what_does_not_decode_stays_as_it_was_and_stops_nothing() {
    const GOOD: &str = "2026-01-01T00:00:00.000000Z";
    let (events, receiver) = mpsc::channel(9);
    let items = vec![lease("a", 1, GOOD), lease("bad", 2, "never")];
    let script = Script { items, events: Mutex::new(Some(receiver)) };
    let informer: Informer<Lease> = Informer::builder(Client::new(Arc::new(script), "test")).start();
    let mut changes = informer.subscribe();
    let object = |object| WatchEvent { kind: EventKind::Modified, object };
    events.send(object(lease("a", 3, "never"))).await.unwrap();
    events.send(object(lease("b", 4, GOOD))).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        let change = tokio::time::timeout(Duration::from_secs(5), changes.recv()).await;
        let change = change.unwrap_or_else(|_| panic!("no more came after {seen:?}")).expect("the informer lives");
        let version = change.new.and_then(|new| new.metadata.resource_version.clone()).unwrap_or_default();
        let field = change.undecodable.map(|u| u.why.split(':').next().unwrap_or_default().to_owned());
        seen.push(format!("{} {version} {}", change.key.name, field.unwrap_or_default()));
    }
    assert_eq!(seen, ["a 1 ", "bad  spec.renewTime", "a 1 spec.renewTime", "b 4 "]);
    assert!(informer.get(&Key::new("d", "bad")).is_none());
    let undecodable: Vec<String> = informer.undecodable().iter().map(|u| u.key.name.clone()).collect();
    assert_eq!(undecodable, ["a", "bad"]);
    assert_eq!(informer.resource_version(), "4");
    events.send(WatchEvent { kind: EventKind::Deleted, object: lease("bad", 5, "never") }).await.unwrap();
    let change = tokio::time::timeout(Duration::from_secs(5), changes.recv()).await.unwrap().unwrap();
    assert!(change.key.name == "bad" && change.undecodable.is_none() && change.new.is_none(), "{change:?}");
    assert_eq!(informer.undecodable().len(), 1);
}

/// Of what others serve, at most the capacity is kept, whether it can be decoded or not.
#[tokio::test]
async fn what_comes_beyond_its_room_is_not_kept() {
    let object = |name: &str, meta: serde_json::Value| {
        let mut object =
            json!({"metadata": {"namespace": "d", "name": name, "resourceVersion": "3"}, "spec": "x".repeat(100_000)});
        object["metadata"].as_object_mut().unwrap().extend(meta.as_object().unwrap().clone());
        Bytes::from(object.to_string())
    };
    let unreadable = |name: &str| object(name, json!({"finalizers": "x".repeat(2_000)}));
    let long = object("long", json!({"finalizers": ["x".repeat(5_000)]}));
    for (events, kept) in [
        (vec![unreadable("u0"), unreadable("u1"), unreadable("u2")], vec!["a +", "u0 ?", "u1 ?"]),
        (vec![object("b", json!({})), long], vec!["a +", "b +"]),
        // An object that was decodable earlier is not kept beside its undecodable version.
        (
            vec![object("b", json!({})), unreadable("b"), unreadable("u"), unreadable("v")],
            vec!["a +", "b +", "b ?", "u ?"],
        ),
    ] {
        let (sender, receiver) = mpsc::channel(9);
        let script = Script { items: vec![object("a", json!({}))], events: Mutex::new(Some(receiver)) };
        let informer: Informer<Partial> = Informer::<Partial>::builder(Client::new(Arc::new(script), "test"))
            .resource("things.ext.example.com/v1")
            .at_most(3)
            .within(Rooms::new(20_000).of("ext.example.com/v1"))
            .start();
        let mut changes = informer.subscribe();
        informer.synced().await;
        assert!(!informer.is_full());
        for object in events {
            sender.send(WatchEvent { kind: EventKind::Added, object }).await.unwrap();
        }
        let begun = std::time::Instant::now();
        while !informer.is_full() {
            assert!(begun.elapsed() < Duration::from_secs(5), "it says so for as long as it lasts");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // What has no room ends the watch, and the list that follows has the first one alone.
        let mut seen = Vec::new();
        loop {
            let change = tokio::time::timeout(Duration::from_secs(5), changes.recv()).await;
            let change = change.unwrap_or_else(|_| panic!("no more came after {seen:?}")).expect("the informer lives");
            assert!(change.undecodable.as_ref().is_none_or(|it| it.object.is_empty()), "its bytes are nobody's");
            assert!(change.undecodable.as_ref().is_none_or(|it| it.why.len() <= 512), "nor what it quotes");
            match (&change.new, &change.undecodable) {
                (None, None) => break,
                (Some(_), None) => seen.push(format!("{} +", change.key.name)),
                (None, Some(_)) => seen.push(format!("{} ?", change.key.name)),
                both => panic!("both are kept: {both:?}"),
            }
        }
        assert_eq!(seen, kept);
        assert!(!informer.is_full());
    }
}
