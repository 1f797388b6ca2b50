//! Two sets of controllers and schedulers, each with an API server of its own, on one store: never do two act at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Pod},
};
use podwright::{
    api::{Env, Options, Request, Response, Status, Verb, WatchEvent, rpc::Session},
    client::{
        Client, Informers, Stream, Transport,
        elector::{Election, NAMESPACE, Times},
        local,
    },
    controllers, scheduler,
    server::{self, Server},
    store::Memory,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{sync::mpsc::Receiver, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::run;

const PARTS: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

/// What is seen of all sets.
#[derive(Default)]
struct Log {
    violations: Vec<String>,
    /// Which set's part has written something.
    acted: BTreeSet<(String, &'static str)>,
}

/// One set's way to its server, for one part of it. Cut off, calls fail after a while; what it watches still comes through,
/// so that it has every reason to act.
struct Way {
    client: Client,
    set: String,
    part: &'static str,
    cut: Arc<AtomicBool>,
    log: Arc<Mutex<Log>>,
}

#[async_trait]
impl Transport for Way {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        if self.cut.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_secs(3)).await;
            return Err(Status::unavailable("cut off"));
        }
        let reads = matches!(request.verb, Verb::Get | Verb::List);
        let own = request.resource == "leases.coordination.k8s.io" && request.namespace.as_deref() == Some(NAMESPACE);
        if !reads && !own && request.resource != "events" {
            let lease = self.client.get::<Lease>(Some(NAMESPACE), self.part).await?;
            let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
            let mut log = self.log.lock().expect("no panic");
            log.acted.insert((self.set.clone(), self.part));
            if holder != self.set {
                let told = format!("{} of {} writes while {holder:?} leads: {request:?}", self.part, self.set);
                log.violations.push(told);
            }
        }
        self.client.call(request).await
    }
    async fn watch(&self, request: Request) -> Result<Receiver<WatchEvent>, Status> {
        self.client.watch(request).await
    }
    async fn dial(&self, _: &str) -> Result<Stream, Status> {
        Err(Status::bad_request("no streams here"))
    }
    async fn sessions(&self, _: &str) -> Result<Receiver<Session>, Status> {
        Err(Status::bad_request("no sessions here"))
    }
}

/// A server with its controllers and its scheduler.
struct Set {
    name: String,
    server: Arc<Server>,
    env: Env,
    cut: Arc<AtomicBool>,
    log: Arc<Mutex<Log>>,
    /// How many of each part's loops run, in all sets.
    running: Arc<[AtomicUsize; 2]>,
    tasks: Option<(CancellationToken, Vec<JoinHandle<()>>)>,
}

impl Set {
    fn client(&self, part: &'static str) -> Client {
        let (set, cut, log) = (self.name.clone(), self.cut.clone(), self.log.clone());
        let way = Way { client: local::client(self.server.clone(), part), set, part, cut, log };
        Client::new(Arc::new(way), part)
    }

    fn start(&mut self) {
        let stop = CancellationToken::new();
        let tasks = PARTS.iter().enumerate().map(|(index, part)| {
            let (env, running) = (self.env.clone(), self.running.clone());
            let election = Election {
                client: self.client(part),
                env: env.clone(),
                name: part,
                identity: self.name.clone(),
                times: Times::default(),
            };
            let log = self.log.clone();
            let lead = move |client: Client, stop: CancellationToken| {
                let (env, running, log) = (env.clone(), running.clone(), log.clone());
                async move {
                    if running[index].fetch_add(1, Ordering::Relaxed) > 0 {
                        log.lock().expect("no panic").violations.push(format!("two {} run", PARTS[index]));
                    }
                    let informers = Informers::start(client.clone());
                    match index {
                        0 => controllers::run(client, env, informers, controllers::Config::default(), stop).await,
                        _ => scheduler::run(client, env, informers, Arc::default(), stop).await,
                    }
                    running[index].fetch_sub(1, Ordering::Relaxed);
                }
            };
            tokio::spawn(election.run(stop.clone(), lead))
        });
        self.tasks = Some((stop.clone(), tasks.collect()));
    }

    async fn stop(&mut self) {
        let Some((stop, tasks)) = self.tasks.take() else { return };
        stop.cancel();
        for task in tasks {
            task.await.expect("it ends in order");
        }
    }
}

/// Two sets on one store, and a client beside them.
async fn sets(seed: u64) -> (Vec<Set>, Client, Arc<Mutex<Log>>) {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().expect("a time"), seed);
    let store = Arc::new(Memory::new());
    let (log, running) = (Arc::<Mutex<Log>>::default(), Arc::<[AtomicUsize; 2]>::default());
    let mut sets = Vec::new();
    for name in ["one", "two"] {
        let server = Server::open(store.clone(), env.clone(), server::Config::default()).await.expect("a server");
        let (env, log, running) = (env.clone(), log.clone(), running.clone());
        sets.push(Set { name: name.into(), server, env, cut: Arc::default(), log, running, tasks: None });
    }
    let client = local::client(sets[0].server.clone(), "test");
    (sets, client, log)
}

async fn until(what: &str, limit: Duration, holds: impl AsyncFn() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    begun.elapsed()
}

async fn holder(client: &Client, part: &str) -> String {
    let lease = client.get::<Lease>(Some(NAMESPACE), part).await.ok();
    lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default()
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("the test's object decodes")
}

/// The names of the Pods that are placed, and how many are not. Those that were deleted are taken away as a node would.
async fn pods(client: &Client) -> (usize, usize) {
    let pods = client.list::<Pod>(Some("default"), Options::default()).await.expect("the Pods").items;
    let mut counts = (0, 0);
    for pod in pods {
        match (pod.metadata.deletion_timestamp, pod.spec.and_then(|spec| spec.node_name)) {
            (Some(_), _) => {
                let now = Options { grace_period_seconds: Some(0), ..Options::default() };
                let name = pod.metadata.name.unwrap_or_default();
                client.delete::<Pod>(Some("default"), &name, None, now).await.ok();
            }
            (None, Some(_)) => counts.0 += 1,
            (None, None) => counts.1 += 1,
        }
    }
    counts
}

async fn scale(client: &Client, replicas: usize) {
    let patch = json!({ "spec": { "replicas": replicas } });
    client
        .merge::<k8s_openapi::api::apps::v1::Deployment>(Some("default"), "web", None, patch)
        .await
        .expect("the Deployment is scaled");
}

async fn furnish(client: &Client) {
    let node = json!({ "metadata": { "name": "n1" }, "status": { "allocatable": { "pods": "500" } } });
    client.create(&object::<k8s_openapi::api::core::v1::Node>(node)).await.expect("a node");
    let deployment = json!({ "metadata": { "name": "web", "namespace": "default" }, "spec": {
        "replicas": 0, "selector": { "matchLabels": { "app": "web" } },
        "template": { "metadata": { "labels": { "app": "web" } }, "spec": {
            "tolerations": [{ "operator": "Exists" }], "containers": [{ "name": "c", "image": "c:1" }],
        } },
    } });
    client.create(&object::<k8s_openapi::api::apps::v1::Deployment>(deployment)).await.expect("a Deployment");
}

#[test]
fn two_servers_on_one_store_never_act_twice() {
    let seed: u64 = match std::env::var("SIMULATION_SEED") {
        Ok(seed) => seed.parse().expect("SIMULATION_SEED is a number"),
        Err(_) => rand::rng().random_range(0..1_000_000),
    };
    println!("SIMULATION_SEED={seed}");
    run(async {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut sets, client, log) = sets(seed).await;
        sets.iter_mut().for_each(Set::start);
        furnish(&client).await;
        let mut transitions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for round in 0..60 {
            scale(&client, rng.random_range(0..10)).await;
            let index = rng.random_range(0..2);
            match rng.random_range(0..6) {
                0 | 1 => {
                    sets[index].cut.store(true, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(rng.random_range(0..40_000))).await;
                    scale(&client, rng.random_range(0..10)).await;
                    tokio::time::sleep(Duration::from_millis(rng.random_range(0..20_000))).await;
                    sets[index].cut.store(false, Ordering::Relaxed);
                }
                2 => {
                    sets[index].stop().await;
                    sets[index].start();
                }
                _ => tokio::time::sleep(Duration::from_millis(rng.random_range(0..5000))).await,
            }
            pods(&client).await;
            for part in PARTS {
                transitions.entry(part).or_default().insert(holder(&client, part).await);
            }
            let violations = std::mem::take(&mut log.lock().expect("no panic").violations);
            assert!(violations.is_empty(), "round {round}: {violations:#?}");
        }
        scale(&client, 7).await;
        until("7 Pods are placed", Duration::from_secs(120), async || pods(&client).await == (7, 0)).await;
        assert_eq!(log.lock().expect("no panic").acted.len(), 4, "both sets have had their turns: {transitions:?}");
        for set in &mut sets {
            set.stop().await;
        }
        assert_eq!([0, 1].map(|part| sets[0].running[part].load(Ordering::Relaxed)), [0, 0]);
    });
}

#[test]
fn who_ends_in_order_hands_over_at_once_and_who_is_cut_off_is_waited_for() {
    run(async {
        let (mut sets, client, log) = sets(7).await;
        furnish(&client).await;
        sets[0].start();
        let leads =
            async |name: &str| [holder(&client, PARTS[0]).await, holder(&client, PARTS[1]).await] == [name, name];
        // Nobody has to be waited for.
        let took = until("the first one leads", Duration::from_secs(9), async || leads("one").await).await;
        assert!(took < Duration::from_secs(1), "{took:?}");
        scale(&client, 3).await;
        until("3 Pods are placed", Duration::from_secs(60), async || pods(&client).await == (3, 0)).await;
        sets[1].start();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(leads("one").await, "it renews");
        let before = client.get::<Lease>(Some(NAMESPACE), PARTS[0]).await.expect("the Lease").spec.expect("a spec");
        assert_eq!((before.lease_duration_seconds, before.lease_transitions), (Some(15), Some(0)));

        sets[0].stop().await;
        assert!(leads("").await || leads("two").await, "it is released");
        let took = until("the second one leads", Duration::from_secs(30), async || leads("two").await).await;
        assert!(took < Duration::from_secs(5), "{took:?}");
        let after = client.get::<Lease>(Some(NAMESPACE), PARTS[0]).await.expect("the Lease").spec.expect("a spec");
        assert_eq!(after.lease_transitions, Some(1));
        assert!(after.acquire_time > before.acquire_time);

        sets[0].start();
        sets[1].cut.store(true, Ordering::Relaxed);
        let took = until("the first one leads again", Duration::from_secs(60), async || leads("one").await).await;
        assert!((10..25).contains(&took.as_secs()), "{took:?}");
        assert_eq!(
            [0, 1].map(|part| sets[0].running[part].load(Ordering::Relaxed)),
            [1, 1],
            "the loser's loops have ended"
        );
        scale(&client, 5).await;
        until("5 Pods are placed", Duration::from_secs(60), async || pods(&client).await == (5, 0)).await;
        for set in &mut sets {
            set.stop().await;
        }
        assert!(log.lock().expect("no panic").violations.is_empty());
    });
}

/// One that does not hear that its time is over, as a process that was suspended.
#[test]
fn a_leader_whose_lease_is_over_writes_no_more() {
    run(async {
        let (sets, client, _) = sets(8).await;
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
        let (env, times) = (sets[0].env.clone(), Times::default());
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
