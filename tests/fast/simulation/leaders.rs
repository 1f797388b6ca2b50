//! Two control planes, each with an API server of its own, on one store: never do two act at once.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use podwright::{
    api::{Options, Request, Response, Status, WatchEvent, rpc::Session},
    client::{
        Client, Key, Stream, Transport,
        elector::{Election, NAMESPACE, Times},
    },
    controllers::meta,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{sync::mpsc::Receiver, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    REST,
    cluster::Cluster,
    first_seed,
    planes::{PARTS, Setup},
    run,
    wishes::Wish,
};

/// A cluster with two control planes and a Deployment.
async fn cluster(seed: u64) -> (Cluster, Key) {
    let mut cluster = Cluster::with(seed, Setup::Elected).await;
    cluster.add_node("n1").await;
    cluster.add_namespace("a").await;
    let key = Key::new("a", "web");
    cluster.deploy(&key, Wish::new(0, "v1")).await;
    (cluster, key)
}

async fn scale(cluster: &mut Cluster, key: &Key, replicas: i32) {
    cluster.change(key, |wish| wish.replicas = replicas).await;
}

async fn lease(cluster: &Cluster, part: &str) -> k8s_openapi::api::coordination::v1::LeaseSpec {
    let lease = cluster.client.get::<Lease>(Some(NAMESPACE), part).await.ok();
    lease.and_then(|lease| lease.spec).unwrap_or_default()
}

/// Waits until a plane leads in both parts; how long that took.
async fn until_leads(cluster: &Cluster, name: &str, limit: Duration) -> Duration {
    let begun = Instant::now();
    while !leads(cluster, name).await {
        assert!(begun.elapsed() < limit, "{name} does not lead after {limit:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    begun.elapsed()
}

async fn leads(cluster: &Cluster, name: &str) -> bool {
    for part in PARTS {
        let holder = lease(cluster, part).await.holder_identity.unwrap_or_default();
        if !(holder == name || holder.starts_with(&format!("{name}-"))) {
            return false;
        }
    }
    true
}

async fn until_placed(cluster: &Cluster, number: usize) {
    let placed = |cluster: &Cluster| {
        let pods = cluster.seen.pods.list();
        pods.iter().filter(|pod| meta::is_active(pod) && meta::node_name(pod).is_some()).count() == number
    };
    cluster.until("the Pods are placed", placed).await;
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("the test's object decodes")
}

#[test]
fn two_servers_on_one_store_never_act_twice() {
    let seed = first_seed();
    run(async {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut cluster, key) = cluster(seed).await;
        for _ in 0..60 {
            scale(&mut cluster, &key, rng.random_range(0..10)).await;
            let plane = rng.random_range(0..2);
            match rng.random_range(0..6) {
                0 | 1 => {
                    cluster.planes[plane].cut(true);
                    tokio::time::sleep(Duration::from_millis(rng.random_range(0..40_000))).await;
                    scale(&mut cluster, &key, rng.random_range(0..10)).await;
                    tokio::time::sleep(Duration::from_millis(rng.random_range(0..20_000))).await;
                    cluster.planes[plane].cut(false);
                }
                2 => {
                    cluster.planes[plane].stop().await;
                    cluster.planes[plane].start();
                }
                _ => tokio::time::sleep(Duration::from_millis(rng.random_range(0..5000))).await,
            }
            let violations = cluster.store.seen().violations.clone();
            assert!(violations.is_empty(), "{violations:#?}");
        }
        scale(&mut cluster, &key, 7).await;
        cluster.rest(REST).await;
        cluster.stop_controllers().await;
        let seen = cluster.store.seen();
        let acted: BTreeSet<_> = seen.world.past.acted.iter().map(|(part, plane)| (*part, &plane[..3])).collect();
        assert_eq!(acted.len(), 4, "both planes have had their turns: {acted:?}");
        assert!(seen.world.past.leading.is_empty(), "{:?}", seen.world.past.leading);
    });
}

#[test]
fn who_ends_in_order_hands_over_at_once_and_who_is_cut_off_is_waited_for() {
    run(async {
        let (mut cluster, key) = cluster(7).await;
        cluster.stop_controllers().await;
        assert!(leads(&cluster, "").await, "it is released");
        cluster.planes[0].start();
        // Nobody has to be waited for.
        let took = until_leads(&cluster, "one", Duration::from_secs(9)).await;
        assert!(took < Duration::from_secs(5), "{took:?}");
        scale(&mut cluster, &key, 3).await;
        until_placed(&cluster, 3).await;
        cluster.planes[1].start();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(leads(&cluster, "one").await, "it renews");
        let before = lease(&cluster, PARTS[0]).await;
        assert_eq!(before.lease_duration_seconds, Some(15));

        cluster.planes[0].stop().await;
        let took = until_leads(&cluster, "two", Duration::from_secs(30)).await;
        assert!(took < Duration::from_secs(6), "{took:?}");
        let after = lease(&cluster, PARTS[0]).await;
        assert_eq!(after.lease_transitions, before.lease_transitions.map(|n| n + 1));
        assert!(after.acquire_time > before.acquire_time);

        cluster.planes[0].start();
        cluster.planes[1].cut(true);
        let took = until_leads(&cluster, "one", Duration::from_secs(60)).await;
        assert!((10..30).contains(&took.as_secs()), "{took:?}");
        let leading: Vec<_> = cluster.store.seen().world.past.leading.values().cloned().collect();
        assert_eq!(leading, ["one-3", "one-3"], "the loser's loops have ended");
        scale(&mut cluster, &key, 5).await;
        until_placed(&cluster, 5).await;
        cluster.stop_controllers().await;
        assert!(cluster.store.seen().violations.is_empty());
    });
}

/// One that does not hear that its time is over, as a process that was suspended.
#[test]
fn a_leader_whose_lease_is_over_writes_no_more() {
    run(async {
        // Controllers without an election: the Lease is free.
        let cluster = Cluster::new(8).await;
        let client = cluster.client.clone();
        let refused = Arc::<Mutex<Vec<(u64, String)>>>::default();
        let begun = Instant::now();
        let told = refused.clone();
        let lead = move |client: Client, _: CancellationToken| {
            let told = told.clone();
            async move {
                for n in 0..40 {
                    let map = json!({ "metadata": { "name": format!("m{n}"), "namespace": "default" } });
                    if let Err(status) = client.create(&object::<ConfigMap>(map)).await {
                        told.lock().expect("no panic").push((begun.elapsed().as_secs(), status.message));
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        };
        let (env, times) = (cluster.env.clone(), Times::default());
        // The Lease alone is cut off.
        let election =
            Election { client: OnlyLeases::of(&client, begun), env, name: PARTS[0], identity: "one".into(), times };
        let stop = CancellationToken::new();
        let running = tokio::spawn(election.run(stop.clone(), lead));
        tokio::time::sleep(Duration::from_secs(35)).await;
        stop.cancel();
        running.await.expect("it ends in order");
        let refused = refused.lock().expect("no panic").clone();
        let (first, why) = refused.first().expect("some are refused");
        assert_eq!(why, "the leader's Lease is lost");
        assert!((8..=15).contains(first), "the first one after {first} s");
        let written = client.list::<ConfigMap>(Some("default"), Options::default()).await.expect("the maps").items;
        let written = written.iter().filter(|map| map.metadata.name.as_ref().is_some_and(|name| name.starts_with('m')));
        assert_eq!(written.count() + refused.len(), 40, "none in between, and none later");
    });
}

/// After five seconds no Lease is written any more.
struct OnlyLeases(Client, Instant);

impl OnlyLeases {
    fn of(client: &Client, begun: Instant) -> Client {
        Client::new(Arc::new(OnlyLeases(client.clone(), begun)), "test")
    }
}

#[async_trait]
impl Transport for OnlyLeases {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        if request.resource == "leases.coordination.k8s.io" && self.1.elapsed() > Duration::from_secs(5) {
            return Err(Status::unavailable("cut off"));
        }
        self.0.call(request).await
    }
    async fn watch(&self, request: Request) -> Result<Receiver<WatchEvent>, Status> {
        self.0.watch(request).await
    }
    async fn dial(&self, id: &str) -> Result<Stream, Status> {
        self.0.dial(id).await
    }
    async fn sessions(&self, node: &str) -> Result<Receiver<Session>, Status> {
        self.0.sessions(node).await
    }
}
