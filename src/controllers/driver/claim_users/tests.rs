//! The cost of checking the users of claims, with a server that has these claims and Pods.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::super::tests::driver_of;
use super::*;
use podwright_api::{
    Response, WatchEvent,
    request::{Body, List},
    rpc::Session,
};
use podwright_client::{Client, Stream, Transport};

/// Answers lists, and counts those of Pods.
#[derive(Default)]
struct Server {
    claims: Vec<Value>,
    pods: Vec<Value>,
    lists_of_pods: AtomicUsize,
    watches: Mutex<Vec<Sender<WatchEvent>>>,
}

#[async_trait]
impl Transport for Server {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        let of_namespace = request.namespace.is_some();
        let items = match request.resource.as_str() {
            "persistentvolumeclaims" => &self.claims[..],
            // The informers do not have any of them yet.
            "pods" if of_namespace => &self.pods[..],
            _ => &[],
        };
        self.lists_of_pods.fetch_add(usize::from(of_namespace && request.resource == "pods"), Ordering::Relaxed);
        let items = items.iter().map(|item| item.to_string().into()).collect();
        let list = List { kind: "List".into(), resource_version: "7".into(), items, ..List::default() };
        Ok(Body::List(list).into())
    }
    async fn watch(&self, _: Request) -> Result<Receiver<WatchEvent>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        self.watches.lock().expect("nobody has panicked").push(sender);
        Ok(receiver)
    }
    async fn dial(&self, _: &str) -> Result<Stream, Status> {
        Err(Status::internal("no"))
    }
    async fn sessions(&self, _: &str) -> Result<Receiver<Session>, Status> {
        Err(Status::internal("no"))
    }
}

fn claim(name: &str, uid: &str, owner: Option<&str>) -> Value {
    let owners =
        owner.map(|uid| json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}]));
    json!({ "metadata": {
        "name": name, "namespace": "default", "uid": uid, "ownerReferences": owners,
        "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [protection::CLAIM],
    } })
}

/// A Pod on a node, with volumes of these sources.
fn pod(name: &str, sources: &[Value]) -> Value {
    let volume = |(n, source): (usize, &Value)| {
        let mut volume = source.clone();
        volume["name"] = format!("v{n}").into();
        volume
    };
    let volumes: Vec<Value> = sources.iter().enumerate().map(volume).collect();
    json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
        "spec": { "nodeName": "n1", "volumes": volumes, "containers": [{ "name": "c", "image": "i" }] },
    })
}

fn of_claim(name: &str) -> Value {
    json!({ "persistentVolumeClaim": { "claimName": name } })
}

async fn asked(claims: Vec<Value>, pods: Vec<Value>) -> (Driver, Arc<Server>) {
    let server = Arc::new(Server { claims, pods, ..Server::default() });
    let client = Client::new(server.clone(), "test");
    let driver = driver_of(&protection::CLAIMS, client);
    driver.world.informers.synced().await;
    (driver, server)
}

async fn check(driver: &Driver, claim: Value) -> Result<(), String> {
    let claim = serde_json::from_value(claim).expect("a claim");
    driver.must_be_unused(&claim).await.map_err(|status| status.message)
}

#[tokio::test]
async fn the_pods_of_a_namespace_are_looked_through_once_for_all_its_claims() {
    let name = |n: usize| format!("data-{n}");
    let claims: Vec<Value> = (0..200).map(|n| claim(&name(n), &format!("uid-{n}"), None)).collect();
    let pods = (0..500).map(|n| pod(&format!("p{n}"), &[of_claim(&format!("other-{n}"))])).collect();
    let (driver, server) = asked(claims.clone(), pods).await;
    for claim in &claims {
        check(&driver, claim.clone()).await.unwrap();
    }
    assert_eq!(server.lists_of_pods.load(Ordering::Relaxed), 1);
    // Asking again means that it was not released, and another claim of its name is a different one.
    check(&driver, claims[7].clone()).await.unwrap();
    assert_eq!(server.lists_of_pods.load(Ordering::Relaxed), 2);
    check(&driver, claim("data-8", "another", None)).await.unwrap();
    assert_eq!(server.lists_of_pods.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_claim_that_a_pod_uses_stays_and_is_not_taken_for_an_unused_one() {
    let ephemeral = json!({ "ephemeral": { "volumeClaimTemplate": { "spec": {} } } });
    let mut waits = pod("waits", &[of_claim("waited-for")]);
    waits["spec"]["nodeName"] = Value::Null;
    let pods = vec![pod("web", &[of_claim("used"), ephemeral.clone()]), waits];
    let claims = vec![
        claim("free", "1", None),
        claim("used", "2", None),
        // An ephemeral volume's own claim, and an unrelated one with its name.
        claim("web-v1", "3", Some("uid-web")),
        claim("waited-for", "4", None),
    ];
    let (driver, server) = asked(claims.clone(), pods).await;
    let uses = |name: &str| {
        let q = "Operation cannot be fulfilled on persistentvolumeclaims";
        Err(format!("{q} \"{name}\": the Pod default/web uses it, and is not seen yet"))
    };
    assert_eq!(check(&driver, claims[0].clone()).await, Ok(()));
    assert_eq!(check(&driver, claims[1].clone()).await, uses("used"));
    assert_eq!(check(&driver, claims[2].clone()).await, uses("web-v1"));
    assert_eq!(check(&driver, claims[3].clone()).await, Ok(()), "a Pod without a node uses nothing");
    assert_eq!(server.lists_of_pods.load(Ordering::Relaxed), 3, "the last one was found with the first");
    let (driver, _) = asked(vec![], vec![pod("web", &[of_claim("used"), ephemeral])]).await;
    assert_eq!(check(&driver, claim("web-v1", "5", Some("uid-other"))).await, Ok(()), "it is another Pod's");
}

/// On a single thread: others run in between while the Pods are examined.
#[tokio::test]
async fn others_have_their_turn_while_many_pods_are_looked_through() {
    let text = "x".repeat(10 << 10);
    let large = |n: usize| {
        let mut pod = pod(&format!("p{n}"), &[]);
        pod["metadata"]["annotations"] = json!({ "a": text });
        pod
    };
    let (driver, _) = asked(vec![], (0..1000).map(large).collect()).await;
    let turns = Arc::new(AtomicUsize::new(0));
    let other = tokio::spawn({
        let turns = turns.clone();
        async move {
            loop {
                turns.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        }
    });
    check(&driver, claim("free", "1", None)).await.unwrap();
    other.abort();
    let turns = turns.load(Ordering::Relaxed);
    assert!(turns >= 30, "{turns} turns during 10 MB");
}
