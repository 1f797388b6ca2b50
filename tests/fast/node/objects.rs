//! Objects that a Pod refers to: as new as the Pod, not fetched again and again, and in turns by namespace.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use podwright::{
    api::{Env, Request, Response, Status, Verb, WatchEvent, rpc::Session},
    client::{Client, Informer, Key, Stream, Transport, local},
    node::objects::{Changed, Objects, What},
    server::{Config, Server},
    store::Memory,
};
use serde_json::json;
use tokio::{sync::mpsc, time::Instant};

/// A server that has no objects, and is slow to say so.
#[derive(Default)]
struct Slow {
    /// By namespace: the requests in flight, and their maximum.
    asked: Mutex<BTreeMap<String, (usize, usize)>>,
}

#[async_trait]
impl Transport for Slow {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        let missing = Status::not_found("configmaps", "", "a");
        if request.verb != Verb::Get {
            return Err(missing);
        }
        let namespace = request.namespace.clone().unwrap_or_default();
        {
            let mut asked = self.asked.lock().unwrap();
            let (now, most) = asked.entry(namespace.clone()).or_default();
            *now += 1;
            *most = *now.max(most);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.asked.lock().unwrap().entry(namespace).or_default().0 -= 1;
        Err(missing)
    }
    async fn watch(&self, _: Request) -> Result<mpsc::Receiver<WatchEvent>, Status> {
        Err(Status::internal("no watches"))
    }
    async fn dial(&self, _: &str) -> Result<Stream, Status> {
        Err(Status::internal("no streams"))
    }
    async fn sessions(&self, _: &str) -> Result<mpsc::Receiver<Session>, Status> {
        Err(Status::internal("no sessions"))
    }
}

/// How many of these ConfigMaps there are.
async fn read(objects: &Objects, pod: &Pod, names: &BTreeSet<String>) -> usize {
    objects.sources(&mut objects.hold(), pod, names, &BTreeSet::new()).await.unwrap().config_maps.len()
}

/// A namespace's Pods may name thousands that there are not: it has one asked for at a time, and rests for as long as that took.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_all_that_another_namespaces_pods_refer_to() {
    let slow = Arc::new(Slow::default());
    let client = Client::new(slow.clone(), "test");
    let objects = Objects::new(client.clone(), Informer::builder(client).start(), true);
    let pod = |namespace: &str, uid: &str| -> Pod {
        serde_json::from_value(
            json!({ "metadata": { "name": uid, "namespace": namespace, "uid": uid }, "spec": { "containers": [] } }),
        )
        .unwrap()
    };
    let many: Vec<Pod> = (0..20).map(|n| pod("many", &format!("u{n}"))).collect();
    let names: BTreeSet<String> = (0..10).map(|n| format!("m{n}")).collect();
    let one = BTreeSet::from(["a".to_owned()]);
    let begin = Instant::now();
    let others = join_all(many.iter().map(|pod| read(&objects, pod, &names)));
    let other = pod("other", "o");
    let waits = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        read(&objects, &other, &one).await;
        begin.elapsed()
    };
    let (all, waited) = tokio::join!(others, waits);
    assert!(all.iter().all(|found| *found == 0));
    assert!(waited < Duration::from_millis(100), "{waited:?}");
    assert_eq!(slow.asked.lock().unwrap()["many"], (0, 1));
    assert!(begin.elapsed() > Duration::from_millis(100) * 150, "{:?}", begin.elapsed());
}

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
    let count = async |pod: &Pod| read(&objects, pod, &names).await;
    assert_eq!(count(&early).await, 0);
    let map = json!({ "metadata": { "name": "late", "namespace": "default" } });
    client.create(&serde_json::from_value::<ConfigMap>(map).unwrap()).await.unwrap();
    assert_eq!(count(&early).await, 0, "it was asked for a moment ago");
    assert_eq!(count(&pod("later").await).await, 1, "it is older than this Pod");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(count(&early).await, 1);
}

/// A Pod may have hundreds of volumes, containers and pulls at once, each of many objects of a megabyte, and reads them for each.
#[tokio::test]
async fn whoever_has_much_in_hand_has_it_alone_of_his_namespace() {
    let env = Env::simulated("2026-11-20T17:00:00Z".parse().unwrap(), 1);
    let server = Server::open(Arc::new(Memory::new()), env, Config::default()).await.unwrap();
    let client = local::client(server, "kubelet");
    for namespace in ["default", "kube-system"] {
        for (name, size) in [("small", 1 << 10), ("large", 200 << 10), ("larger", 300 << 10)] {
            let object =
                json!({ "metadata": { "name": name, "namespace": namespace }, "data": { "k": "x".repeat(size) } });
            client.create(&serde_json::from_value::<ConfigMap>(object).unwrap()).await.unwrap();
        }
    }
    let objects = Objects::new(client.clone(), Informer::builder(client).start(), true);
    let pod = |namespace: &str| -> Pod {
        let metadata = json!({ "name": "p", "namespace": namespace, "uid": "u" });
        serde_json::from_value(json!({ "metadata": metadata, "spec": { "containers": [] } })).unwrap()
    };
    let (own, other, none) = (pod("default"), pod("kube-system"), BTreeSet::new());
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let soon = Duration::from_secs(10);
    let mut held = objects.hold();
    let much = objects.sources(&mut held, &own, &names(&["large", "small", "larger"]), &none).await.unwrap();
    assert_eq!(much.config_maps.len(), 3);
    // Neither what is little nor another namespace waits; one whose little is too much together does, as does one large object.
    for (pod, names) in [(&own, names(&["small"])), (&own, names(&["large"])), (&other, names(&["large", "larger"]))] {
        assert_eq!(tokio::time::timeout(soon, read(&objects, pod, &names)).await.expect("it waits"), names.len());
    }
    for names in [names(&["larger"]), names(&["large", "larger"])] {
        let waits = tokio::time::timeout(Duration::from_secs(1), read(&objects, &own, &names)).await;
        assert!(waits.is_err(), "{names:?}");
    }
    // It shows a key of what it has read, and has its turn only while that is much.
    drop(much);
    let name = names(&["larger"]);
    let larger = || tokio::time::timeout(Duration::from_secs(1), read(&objects, &own, &name));
    held.lessen(300 << 10);
    assert!(larger().await.is_err());
    held.lessen(1 << 10);
    assert_eq!(larger().await.expect("it waits"), 1);
    drop(held);
    assert_eq!(tokio::time::timeout(soon, read(&objects, &own, &names(&["larger"]))).await.expect("it waits"), 1);
}

/// What informers have is everybody's; but who waits for his turn would keep what it was: many may wait, each for other versions.
#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_turn_keeps_nothing_of_what_is_watched() {
    let env = Env::simulated("2026-11-20T17:00:00Z".parse().unwrap(), 1);
    let server = Server::open(Arc::new(Memory::new()), env, Config::default()).await.unwrap();
    let client = local::client(server, "kubelet");
    let large = |letter: &str| -> ConfigMap {
        let metadata = json!({ "name": "large", "namespace": "default" });
        serde_json::from_value(json!({ "metadata": metadata, "data": { "k": letter.repeat(300 << 10) } })).unwrap()
    };
    let made = client.create(&large("a")).await.unwrap();
    let objects = Objects::new(client.clone(), Informer::builder(client.clone()).start(), false);
    let metadata =
        json!({ "name": "p", "namespace": "default", "uid": "u", "resourceVersion": made.metadata.resource_version });
    let pod: Pod = serde_json::from_value(json!({ "metadata": metadata, "spec": { "containers": [] } })).unwrap();
    let (names, none) = (BTreeSet::from(["large".to_owned()]), BTreeSet::new());
    let text = async |held: &mut podwright::node::objects::Held<'_>| {
        let sources = objects.sources(held, &pod, &names, &none).await.unwrap();
        let found = sources.config_maps["large"].clone();
        (found.data.as_ref().unwrap()["k"][..1].to_owned(), Arc::downgrade(&found))
    };
    // As the informer has it: whoever asks twice gets the same.
    let mut first = loop {
        let mut held = objects.hold();
        let (one, other) = (text(&mut held).await, text(&mut held).await);
        if one.1.ptr_eq(&other.1) && one.1.upgrade().is_some() {
            break held;
        }
        drop(held);
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let (_, watched) = text(&mut first).await;
    let mut held = objects.hold();
    let waiting = text(&mut held);
    tokio::pin!(waiting);
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut waiting).await.is_err(), "it is not its turn");
    client.update(&ConfigMap { metadata: made.metadata.clone(), ..large("b") }).await.unwrap();
    for _ in 0..1000 {
        if watched.strong_count() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(watched.strong_count(), 0, "somebody who waits keeps what was there before");
    drop(first);
    assert_eq!(waiting.await.0, "b");
}

/// A server that never answers.
struct Silent;

#[async_trait]
impl Transport for Silent {
    async fn call(&self, _: Request) -> Result<Response, Status> {
        std::future::pending().await
    }
    async fn watch(&self, _: Request) -> Result<mpsc::Receiver<WatchEvent>, Status> {
        Err(Status::internal("no watches"))
    }
    async fn dial(&self, _: &str) -> Result<Stream, Status> {
        Err(Status::internal("no streams"))
    }
    async fn sessions(&self, _: &str) -> Result<mpsc::Receiver<Session>, Status> {
        Err(Status::internal("no sessions"))
    }
}

/// A Pod that ends waits for what is under way.
#[tokio::test(start_paused = true)]
async fn no_answer_is_waited_for_without_end() {
    let client = Client::new(Arc::new(Silent), "test");
    let objects = Objects::new(client.clone(), Informer::builder(client).start(), true);
    let pod: Pod =
        serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "a", "uid": "u" } })).unwrap();
    let (begin, one, none) = (Instant::now(), BTreeSet::from(["a".to_owned()]), BTreeSet::new());
    // The second waits for its turn, and no longer for that.
    let mut held = objects.hold();
    let (map, claim) = tokio::join!(objects.sources(&mut held, &pod, &one, &none), objects.claim(&pod, "c"));
    assert!(map.is_err() && claim.is_err());
    assert_eq!(begin.elapsed().as_secs(), 10);
}

/// One Pod finds a claim bound that another has waited for: nobody looks at it any more, so all are told then.
#[tokio::test(start_paused = true)]
async fn a_claim_that_one_pod_finds_bound_is_told_to_all_who_wait() {
    let env = Env::simulated("2026-11-20T17:00:00Z".parse().unwrap(), 1);
    let server = Server::open(Arc::new(Memory::new()), env, Config::default()).await.unwrap();
    let client = local::client(server, "kubelet");
    let claim = json!({ "metadata": { "name": "c", "namespace": "default" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1" } } } });
    let mut claim: PersistentVolumeClaim = client.create(&serde_json::from_value(claim).unwrap()).await.unwrap();
    let objects = Objects::new(client.clone(), Informer::builder(client.clone()).start(), true);
    let mut changes = objects.changes();
    let pod = |name: &str| -> Pod {
        serde_json::from_value(json!({ "metadata": { "name": name, "namespace": "default", "uid": name } })).unwrap()
    };
    objects.claim(&pod("one"), "c").await.unwrap();
    claim.status.get_or_insert_default().phase = Some("Bound".into());
    client.update_status(&claim).await.unwrap();
    // No time has passed: nobody has looked at it since.
    objects.claim(&pod("other"), "c").await.unwrap();
    assert_eq!(changes.try_recv(), Ok(Changed { what: What::Claim, key: Key::new("default", "c") }));
    objects.claim(&pod("third"), "c").await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(changes.try_recv().is_err(), "once");
}
