//! A simulated cluster: its store, its control planes, its nodes, and what a user does with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use jiff::tz::{Offset, TimeZone};
use podwright::{
    api::{Env, Options, Request, Response, Status, Verb, request::PatchType},
    client::{Client, Informers, Key, local},
    server::{self, Server},
    store::Store,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    history::{History, Recorded},
    invariants,
    machines::{Machines, Room, beat},
    nodes::Hollow,
    planes::{Plane, Setup},
    usage::Meters,
    wishes::Wish,
    world::Step,
};

pub struct Cluster {
    pub env: Env,
    pub store: Arc<Recorded>,
    pub client: Client,
    pub seen: Informers,
    pub planes: Vec<Plane>,
    pub wishes: BTreeMap<Key, Wish>,
    machines: Arc<Mutex<Machines>>,
    namespaces: BTreeSet<String>,
}

pub type Outcome<T> = Result<T, Status>;

pub fn request(verb: Verb, resource: &str, key: &Key, body: Option<Value>) -> Request {
    Request {
        verb,
        resource: resource.into(),
        namespace: key.namespace().map(str::to_owned),
        name: Some(key.name.clone()).filter(|name| !name.is_empty()),
        body,
        options: Options { patch_type: (verb == Verb::Patch).then_some(PatchType::Merge), ..Options::default() },
        ..Request::default()
    }
}

pub async fn status(client: &Client, resource: &str, key: &Key, status: Value) -> Outcome<()> {
    let mut request = request(Verb::Patch, resource, key, Some(json!({ "status": status })));
    request.subresource = Some("status".into());
    client.call(request).await.map(drop)
}

impl Cluster {
    /// A cluster whose controllers are right beside the server.
    pub async fn new(seed: u64) -> Cluster {
        Cluster::with(seed, Setup::Straight).await
    }

    /// One whose controllers have a rough way to the server.
    pub async fn rough(seed: u64) -> Cluster {
        Cluster::with(seed, Setup::Rough).await
    }

    pub async fn with(seed: u64, setup: Setup) -> Cluster {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().expect("a time"), seed);
        let store = Arc::new(Recorded::new(History::new(env.clone())));
        let names: &[_] = if setup == Setup::Elected { &["one", "two"] } else { &["one"] };
        let mut planes = Vec::new();
        for name in names {
            let server = Server::open(store.clone(), env.clone(), server::Config::default()).await.expect("a server");
            let (env, store) = (env.clone(), store.clone());
            planes.push(Plane { server, env, store, setup, name, starts: 0, running: None });
        }
        let client = local::client(planes[0].server.clone(), "test");
        let servers = planes.iter().map(|plane| local::client(plane.server.clone(), "test")).collect();
        let seen = Informers::start(client.clone());
        seen.synced().await;
        let machines = Arc::new(Mutex::new(Machines { beating: true, ..Machines::default() }));
        let hollow = Hollow {
            client: client.clone(),
            env: env.clone(),
            seen: seen.clone(),
            store: store.clone(),
            machines: machines.clone(),
            binds: setup != Setup::Elected,
            running: BTreeMap::new(),
            busy: BTreeSet::new(),
            asleep: BTreeSet::new(),
            meters: Meters { servers, nodes: BTreeMap::new() },
            sick: BTreeMap::new(),
        };
        tokio::spawn(hollow.run());
        let namespaces = ["default", "kube-system", "kube-public", "kube-node-lease"].map(str::to_owned).into();
        let wishes = BTreeMap::new();
        let mut cluster = Cluster { env, store, client, seen, planes, wishes, machines, namespaces };
        cluster.start_controllers();
        cluster
    }

    pub fn start_controllers(&mut self) {
        self.planes.iter_mut().for_each(Plane::start);
    }

    pub async fn stop_controllers(&mut self) {
        for plane in &mut self.planes {
            plane.stop().await;
        }
    }

    /// Ends the controllers in the middle of whatever they do.
    pub fn crash_controllers(&mut self) {
        self.planes.iter_mut().for_each(Plane::crash);
    }

    pub async fn revision(&self) -> u64 {
        self.store.revision().await.expect("a store in memory knows")
    }

    fn machines(&self) -> MutexGuard<'_, Machines> {
        self.machines.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn stop_heartbeats(&self) {
        self.machines().beating = false;
    }

    /// Has a Pod not be ready for a while; its node hears of it with its next heartbeat.
    pub fn sicken(&self, uid: String, long: Duration) {
        self.machines().sick.insert(uid, long);
    }

    /// Has the control planes be in a zone so many seconds east of Greenwich.
    pub async fn set_zone(&mut self, seconds: i32) {
        let zone = TimeZone::fixed(Offset::from_seconds(seconds).expect("an offset of less than a day"));
        self.stop_controllers().await;
        self.env.set_zone(zone.clone());
        self.store.seen().world.zone = Some(zone);
        self.start_controllers();
    }

    /// So many thousandths of a CPU are wanted of the Pods of an app.
    pub fn set_load(&mut self, app: &Key, millis: u64) {
        self.machines().load.insert(app.clone(), millis);
        self.store.step(Step::Load(app.clone(), millis));
    }

    /// What nodes have that come from now on.
    pub fn set_room(&mut self, room: Room) {
        self.machines().room = room;
    }

    pub async fn add_node(&mut self, name: &str) {
        let node = json!({ "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } } });
        self.must(request(Verb::Create, "nodes", &Key::new("", ""), Some(node))).await;
        self.find_node(name).await;
    }

    pub fn lose_node(&mut self, name: &str) {
        self.machines().nodes.insert(name.into(), false);
        self.store.step(Step::Lost(name.into()));
        self.relax();
    }

    pub async fn find_node(&mut self, name: &str) {
        self.machines().nodes.insert(name.into(), true);
        self.store.step(Step::Found(name.into()));
        let room = self.machines().room;
        beat(&self.client, &self.env, name, room).await.expect("a heartbeat");
    }

    pub async fn delete_node(&mut self, name: &str) {
        self.machines().nodes.remove(name);
        self.store.step(Step::Found(name.into()));
        self.relax();
        self.must(request(Verb::Delete, "nodes", &Key::new("", name), None)).await;
    }

    /// Whether a node is there, and alive.
    pub fn node(&self, name: &str) -> Option<bool> {
        self.machines().nodes.get(name).copied()
    }

    pub fn taints(&self, node: &str) -> Vec<String> {
        let node = self.seen.nodes.get(&Key::new("", node));
        let taints = node.and_then(|node| node.spec.as_ref()?.taints.clone()).unwrap_or_default();
        taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect()
    }

    pub fn namespaces(&self) -> BTreeSet<String> {
        self.namespaces.clone()
    }

    pub async fn add_namespace(&mut self, name: &str) {
        if self.seen.namespaces.get(&Key::new("", name)).is_some() {
            // The one of that name that was deleted is still going.
            return;
        }
        self.must(request(Verb::Create, "namespaces", &Key::default(), Some(json!({ "metadata": { "name": name } }))))
            .await;
        let there = |cluster: &Cluster| cluster.seen.service_accounts.get(&Key::new(name, "default")).is_some();
        self.until("the default ServiceAccount", there).await;
        self.namespaces.insert(name.into());
    }

    pub async fn delete_namespace(&mut self, name: &str) {
        self.wishes.retain(|key, _| key.namespace != name);
        self.namespaces.remove(name);
        self.relax();
        self.must(request(Verb::Delete, "namespaces", &Key::new("", name), None)).await;
    }

    pub async fn create(&self, resource: &str, namespace: &str, object: Value) {
        self.must(request(Verb::Create, resource, &Key::new(namespace, ""), Some(object))).await;
    }

    pub async fn patch(&self, resource: &str, key: &Key, patch: Value) {
        self.must(request(Verb::Patch, resource, key, Some(patch))).await;
    }

    pub async fn delete(&self, resource: &str, key: &Key) {
        self.must(request(Verb::Delete, resource, key, None)).await;
    }

    pub async fn evict(&self, pod: &Key) -> Outcome<()> {
        let eviction = json!({ "metadata": { "name": pod.name }, "deleteOptions": { "gracePeriodSeconds": 1 } });
        let mut request = request(Verb::Create, "pods", pod, Some(eviction));
        request.subresource = Some("eviction".into());
        self.client.call(request).await.map(drop)
    }

    /// The reason and message of every event.
    pub async fn events(&self, namespace: &str) -> Vec<String> {
        let listed = self.client.list::<k8s_openapi::api::core::v1::Event>(Some(namespace), Options::default()).await;
        let told = |e: &k8s_openapi::api::core::v1::Event| {
            format!("{}: {}", e.reason.clone().unwrap_or_default(), e.message.clone().unwrap_or_default())
        };
        listed.expect("the events").items.iter().map(told).collect()
    }

    /// Waits for a condition. Almost no time passes while anybody has work.
    pub async fn until(&self, what: &str, holds: impl Fn(&Cluster) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(600);
        for turn in 0.. {
            if holds(self) {
                return;
            }
            assert!(Instant::now() < deadline, "not within 600 s: {what}");
            match turn {
                0..20_000 => tokio::task::yield_now().await,
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Waits until everything is as wished and nothing moves any more.
    pub async fn rest(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut troubles: Vec<String> = {
                let seen = &mut *self.store.seen();
                assert!(seen.violations.is_empty(), "{:#?}", seen.violations);
                invariants::at_rest(&seen.world)
            };
            troubles.extend(self.missing());
            if troubles.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "not at rest after {limit:?}: {troubles:#?}");
        }
        self.store.step(Step::Rest);
    }

    /// What was wished and is not there.
    fn missing(&self) -> Vec<String> {
        let missing = self.wishes.keys().filter(|key| self.seen.deployments.get(key).is_none());
        missing.map(|key| format!("{key} is not there")).collect()
    }

    /// Nobody promises ready Pods when nodes or Pods are lost.
    pub fn relax(&self) {
        self.store.step(Step::Disturbance);
    }

    pub async fn must(&self, request: Request) -> Response {
        let told = format!("{request:?}");
        self.client.call(request).await.unwrap_or_else(|status| panic!("{status}: {told}"))
    }
}
