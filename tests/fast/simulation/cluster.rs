//! A simulated cluster: what is wished of it, hollow nodes that make Pods run, and what must hold.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use podwright::{
    api::{
        Env, Options, Request, Status, Verb, kinds,
        request::{Body, PatchType},
        status::qualified,
    },
    client::{Client, Informers, Key, local},
    controllers::{self, daemon_set::nodes, meta},
    server::{self, Server},
    store::Store,
};
use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{history::Recorded, rough};

/// A Deployment as it is wished.
#[derive(Clone, Debug)]
pub struct Wish {
    pub replicas: i32,
    pub image: String,
    pub surge: i32,
    pub unavailable: i32,
    pub recreate: bool,
    pub paused: bool,
}

impl Wish {
    pub fn new(replicas: i32, image: &str) -> Wish {
        Wish { replicas, image: image.into(), surge: 1, unavailable: 0, recreate: false, paused: false }
    }

    fn spec(&self, name: &str) -> Value {
        let rolling = json!({ "maxSurge": self.surge, "maxUnavailable": self.unavailable });
        json!({
            "replicas": self.replicas, "paused": self.paused, "selector": { "matchLabels": { "app": name } },
            "strategy": match self.recreate {
                true => json!({ "type": "Recreate", "rollingUpdate": null }),
                false => json!({ "type": "RollingUpdate", "rollingUpdate": rolling }),
            },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "c", "image": self.image }] },
            },
        })
    }
}

/// Between which numbers the Pods of a Deployment must be at any time.
#[derive(Clone, Copy, Debug)]
struct Limits {
    active: i32,
    ready: i32,
}

#[derive(Default)]
struct Shared {
    /// The nodes that are there, and whether they are alive.
    nodes: BTreeMap<String, bool>,
    beating: bool,
    limits: HashMap<Key, Limits>,
    addresses: u32,
    violations: Vec<String>,
}

pub struct Cluster {
    env: Env,
    pub store: Arc<Recorded>,
    pub client: Client,
    /// The controllers' way to the server.
    controllers: Client,
    pub seen: Informers,
    shared: Arc<Mutex<Shared>>,
    wishes: BTreeMap<Key, Wish>,
    namespaces: BTreeSet<String>,
    deleted: BTreeSet<String>,
    running: Option<(CancellationToken, JoinHandle<()>)>,
}

type Outcome<T> = Result<T, Status>;

fn request(verb: Verb, resource: &str, key: &Key, body: Option<Value>) -> Request {
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

async fn status(client: &Client, resource: &str, key: &Key, status: Value) -> Outcome<()> {
    let mut request = request(Verb::Patch, resource, key, Some(json!({ "status": status })));
    request.subresource = Some("status".into());
    client.call(request).await.map(drop)
}

impl Cluster {
    /// A cluster whose controllers are right beside the server.
    pub async fn new(seed: u64) -> Cluster {
        Cluster::with(seed, |server, _| local::client(server, "controllers")).await
    }

    /// One whose controllers have a rough way to the server.
    pub async fn rough(seed: u64) -> Cluster {
        Cluster::with(seed, rough::client).await
    }

    async fn with(seed: u64, way: impl FnOnce(Arc<Server>, Env) -> Client) -> Cluster {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().expect("a time"), seed);
        let store = Arc::<Recorded>::default();
        let server = Server::open(store.clone(), env.clone(), server::Config::default()).await.expect("a server");
        let controllers = way(server.clone(), env.clone());
        let client = local::client(server, "test");
        let seen = Informers::start(client.clone());
        seen.synced().await;
        let shared = Arc::new(Mutex::new(Shared { beating: true, ..Shared::default() }));
        let hollow = Hollow { client: client.clone(), env: env.clone(), seen: seen.clone(), shared: shared.clone() };
        tokio::spawn(hollow.run());
        tokio::spawn(watch(seen.clone(), shared.clone()));
        let mut cluster = Cluster {
            env,
            store,
            client,
            controllers,
            seen,
            shared,
            wishes: BTreeMap::new(),
            namespaces: ["default", "kube-system", "kube-public", "kube-node-lease"].map(str::to_owned).into(),
            deleted: BTreeSet::new(),
            running: None,
        };
        cluster.start_controllers();
        cluster
    }

    pub fn start_controllers(&mut self) {
        let shutdown = CancellationToken::new();
        let (client, env, token) = (self.controllers.clone(), self.env.clone(), shutdown.clone());
        let task = tokio::spawn(async move {
            let informers = Informers::start(client.clone());
            controllers::run(client, env, informers, controllers::Config::default(), token).await;
        });
        self.running = Some((shutdown, task));
    }

    pub async fn stop_controllers(&mut self) {
        if let Some((shutdown, task)) = self.running.take() {
            shutdown.cancel();
            task.await.expect("the controllers end without a panic");
        }
    }

    /// Ends the controllers in the middle of whatever they do.
    pub fn crash_controllers(&mut self) {
        if let Some((_, task)) = self.running.take() {
            task.abort();
        }
    }

    pub fn revision(&self) -> u64 {
        self.store.revision()
    }

    pub fn stop_heartbeats(&self) {
        self.lock().beating = false;
    }

    pub async fn add_node(&mut self, name: &str) {
        let node = json!({ "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } } });
        self.must(request(Verb::Create, "nodes", &Key::new("", ""), Some(node))).await;
        self.lock().nodes.insert(name.into(), true);
        self.beat(name).await;
    }

    async fn beat(&self, name: &str) {
        beat(&self.client, &self.env, name).await.expect("a heartbeat");
    }

    pub fn lose_node(&mut self, name: &str) {
        self.lock().nodes.insert(name.into(), false);
        self.relax();
    }

    pub async fn find_node(&mut self, name: &str) {
        self.lock().nodes.insert(name.into(), true);
        self.beat(name).await;
    }

    pub async fn delete_node(&mut self, name: &str) {
        self.lock().nodes.remove(name);
        self.relax();
        self.must(request(Verb::Delete, "nodes", &Key::new("", name), None)).await;
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
        self.deleted.remove(name);
    }

    pub async fn delete_namespace(&mut self, name: &str) {
        self.wishes.retain(|key, _| key.namespace != name);
        self.namespaces.remove(name);
        self.deleted.insert(name.into());
        self.relax();
        self.must(request(Verb::Delete, "namespaces", &Key::new("", name), None)).await;
    }

    pub fn wish(&self, key: &Key) -> Option<Wish> {
        self.wishes.get(key).cloned()
    }

    /// Creates a Deployment and its Service.
    pub async fn deploy(&mut self, key: &Key, wish: Wish) {
        if self.seen.deployments.get(key).is_some() {
            // The one of that name that was deleted is still going.
            return;
        }
        let ns = Key::new(key.namespace.clone(), "");
        let deployment = json!({ "metadata": { "name": key.name }, "spec": wish.spec(&key.name) });
        self.must(request(Verb::Create, "deployments.apps", &ns, Some(deployment))).await;
        let ports = json!([{ "port": 80, "targetPort": 8080 }]);
        let service =
            json!({ "metadata": { "name": key.name }, "spec": { "selector": { "app": key.name }, "ports": ports } });
        match self.client.call(request(Verb::Create, "services", &ns, Some(service))).await {
            Err(status) if !status.is_already_exists() => panic!("{status}"),
            _ => {}
        }
        self.limit(key, None, &wish);
        self.wishes.insert(key.clone(), wish);
    }

    pub async fn change(&mut self, key: &Key, change: impl FnOnce(&mut Wish)) {
        let Some(old) = self.wishes.get(key).cloned() else { return };
        let mut new = old.clone();
        change(&mut new);
        self.limit(key, Some(&old), &new);
        let patch = json!({ "spec": new.spec(&key.name) });
        self.must(request(Verb::Patch, "deployments.apps", key, Some(patch))).await;
        self.wishes.insert(key.clone(), new);
    }

    pub async fn undeploy(&mut self, key: &Key, policy: &str) {
        self.wishes.remove(key);
        self.lock().limits.remove(key);
        let mut delete = request(Verb::Delete, "deployments.apps", key, None);
        delete.options.propagation_policy = Some(policy.into());
        self.must(delete).await;
    }

    pub async fn delete_pod(&mut self, rng: &mut StdRng) {
        self.relax();
        let pods = self.seen.pods.list();
        if !pods.is_empty() {
            let victim = Key::of(&*pods[rng.random_range(0..pods.len())]);
            // It may be gone by now.
            self.client.call(request(Verb::Delete, "pods", &victim, None)).await.ok();
        }
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
            let violations = std::mem::take(&mut self.lock().violations);
            assert!(violations.is_empty(), "{violations:#?}");
            let troubles = self.troubles().await;
            if troubles.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "not at rest after {limit:?}: {troubles:#?}");
        }
        for (key, wish) in self.wishes.clone() {
            self.lock().limits.remove(&key);
            self.limit(&key, None, &wish);
            if !wish.recreate {
                let ready = wish.replicas;
                self.lock().limits.get_mut(&key).expect("just set").ready = ready;
            }
        }
    }

    /// What is not as wished.
    async fn troubles(&self) -> Vec<String> {
        let mut troubles = Vec::new();
        for (key, wish) in &self.wishes {
            self.check_deployment(key, wish, &mut troubles);
        }
        let deployments: BTreeSet<Key> = self.seen.deployments.list().iter().map(|d| Key::of(&**d)).collect();
        troubles.extend(
            deployments.iter().filter(|key| !self.wishes.contains_key(key)).map(|key| format!("{key} is left")),
        );
        self.check_owners(&mut troubles);
        self.check_nodes(&mut troubles);
        for namespace in &self.namespaces {
            if self.seen.service_accounts.get(&Key::new(namespace, "default")).is_none() {
                troubles.push(format!("{namespace} has no default ServiceAccount"));
            }
        }
        for namespace in &self.deleted {
            self.check_gone(namespace, &mut troubles).await;
        }
        troubles
    }

    fn check_deployment(&self, key: &Key, wish: &Wish, troubles: &mut Vec<String>) {
        let Some(deployment) = self.seen.deployments.get(key) else {
            return troubles.push(format!("{key} is not there"));
        };
        let status = deployment.status.clone().unwrap_or_default();
        let counts = [status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas];
        if counts.iter().any(|count| count.unwrap_or(0) != wish.replicas)
            || status.observed_generation != deployment.metadata.generation
        {
            troubles.push(format!("{key}: {wish:?} but {status:?}"));
        }
        let pods = pods_of(&self.seen, key);
        let right = |pod: &&Arc<Pod>| {
            pod.spec.as_ref().is_some_and(|spec| spec.containers[0].image.as_ref() == Some(&wish.image))
        };
        let active = pods.iter().filter(|pod| meta::is_active(pod));
        if (active.clone().count(), active.filter(right).count()) != (wish.replicas as usize, wish.replicas as usize) {
            troubles.push(format!("{key}: wished are {} of {}", wish.replicas, wish.image));
        }
        let ready: BTreeSet<_> =
            pods.iter().filter(|p| meta::is_active(p) && meta::is_ready(p)).map(|p| p.metadata.uid.clone()).collect();
        let slices = self.seen.endpoint_slices.indexed(Informers::BY_SERVICE, &key.to_string());
        let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
        let served: Vec<_> = endpoints
            .filter(|e| e.conditions.as_ref().is_some_and(|c| c.ready == Some(true)))
            .map(|e| e.target_ref.as_ref().and_then(|target| target.uid.clone()))
            .collect();
        if served.iter().cloned().collect::<BTreeSet<_>>() != ready || served.len() != ready.len() {
            troubles.push(format!("{key}: {} Pods are ready, {} endpoints", ready.len(), served.len()));
        }
        let older = self.seen.endpoints.get(key);
        let subsets = older.iter().flat_map(|endpoints| endpoints.subsets.iter().flatten());
        let served: BTreeSet<_> = { subsets }
            .flat_map(|subset| subset.addresses.iter().flatten())
            .map(|address| address.target_ref.as_ref().and_then(|target| target.uid.clone()))
            .collect();
        if served != ready {
            troubles.push(format!("{key}: {} Pods are ready, {} are in the Endpoints", ready.len(), served.len()));
        }
    }

    /// Nobody outlives its owner, and who is being deleted goes.
    fn check_owners(&self, troubles: &mut Vec<String>) {
        let deployments = self.seen.deployments.list();
        let sets = self.seen.replica_sets.list();
        let uids: BTreeSet<_> = deployments.iter().map(|d| d.metadata.uid.clone()).collect();
        let sets_uids: BTreeSet<_> = sets.iter().map(|set| set.metadata.uid.clone()).collect();
        for set in &sets {
            if !meta::controller(&set.metadata).is_some_and(|owner| uids.contains(&Some(owner.uid.clone()))) {
                troubles.push(format!("ReplicaSet {} has outlived its owner", Key::of(&**set)));
            }
        }
        let alive = self.lock().nodes.clone();
        for pod in self.seen.pods.list() {
            let key = Key::of(&*pod);
            if !meta::controller(&pod.metadata).is_some_and(|owner| sets_uids.contains(&Some(owner.uid.clone()))) {
                troubles.push(format!("Pod {key} has outlived its owner"));
            }
            let node = meta::node_name(&pod).unwrap_or_default();
            if meta::is_terminating(&pod.metadata) && alive.get(node) != Some(&false) {
                troubles.push(format!("Pod {key} on {node:?} is being deleted"));
            }
        }
    }

    /// Every node has a range of its own, and its taints are those of its health.
    fn check_nodes(&self, troubles: &mut Vec<String>) {
        let mut ranges: HashMap<String, String> = HashMap::new();
        for node in self.seen.nodes.list() {
            let name = node.metadata.name.clone().unwrap_or_default();
            match node.spec.as_ref().and_then(|spec| spec.pod_cidr.clone()) {
                None => troubles.push(format!("{name} has no podCIDR")),
                Some(range) => {
                    if let Some(other) = ranges.insert(range.clone(), name.clone()) {
                        panic!("{name} and {other} both have {range}");
                    }
                }
            }
            let taints = self.taints(&name);
            if self.lock().nodes.get(&name) == Some(&true) && !taints.is_empty() {
                troubles.push(format!("{name} is well, but has {taints:?}"));
            }
        }
    }

    /// A deleted namespace is gone with everything in it.
    async fn check_gone(&self, namespace: &str, troubles: &mut Vec<String>) {
        if self.seen.namespaces.get(&Key::new("", namespace)).is_some() {
            return troubles.push(format!("namespace {namespace} is still there"));
        }
        for kind in kinds::stored().filter(|kind| kind.namespaced) {
            let list = request(Verb::List, &qualified(kind.plural, kind.group), &Key::new(namespace, ""), None);
            if let Ok(Body::List(list)) = self.client.call(list).await.map(|response| response.body) {
                assert!(list.items.is_empty(), "{} are left in {namespace}, which is gone", kind.plural);
            }
        }
    }

    /// What the Pods of a Deployment must keep to while it goes from one wish to the next.
    fn limit(&self, key: &Key, old: Option<&Wish>, new: &Wish) {
        let most = |wish: &Wish| wish.replicas + if wish.recreate { 0 } else { wish.surge };
        let mut shared = self.lock();
        let before = shared.limits.get(key).copied();
        let active = most(new).max(old.map_or(0, most)).max(before.map_or(0, |limits| limits.active));
        // With fewer replicas, or none allowed to stay, fewer are ready; while replicas are added they are not ready yet.
        let fewest =
            if new.recreate { 0 } else { (new.replicas - new.unavailable.max(i32::from(new.surge == 0))).max(0) };
        let ready = before.map_or(0, |limits| limits.ready.min(fewest));
        shared.limits.insert(key.clone(), Limits { active, ready });
    }

    /// Nobody promises ready Pods when nodes or Pods are lost.
    pub fn relax(&self) {
        self.lock().limits.values_mut().for_each(|limits| limits.ready = 0);
    }

    async fn must(&self, request: Request) {
        let told = format!("{request:?}");
        if let Err(status) = self.client.call(request).await {
            panic!("{status}: {told}");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn pods_of(seen: &Informers, key: &Key) -> Vec<Arc<Pod>> {
    let mut pods = seen.pods.list_namespace(&key.namespace);
    pods.retain(|pod| pod.metadata.labels.iter().flatten().any(|(k, v)| k == "app" && *v == key.name));
    pods
}

/// Checks the limits at every change of a Pod.
async fn watch(seen: Informers, shared: Arc<Mutex<Shared>>) {
    let mut changes = seen.pods.subscribe();
    while let Some(change) = changes.recv().await {
        let Some(pod) = change.new.or(change.old) else { continue };
        let app = pod.metadata.labels.as_ref().and_then(|labels| labels.get("app")).cloned().unwrap_or_default();
        let key = Key::new(change.key.namespace, app);
        let pods = pods_of(&seen, &key);
        let active: Vec<_> = pods.iter().filter(|pod| meta::is_active(pod)).collect();
        let ready = active.iter().filter(|pod| meta::is_ready(pod)).count() as i32;
        let mut shared = shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(limits) = shared.limits.get(&key).copied() else { continue };
        if active.len() as i32 > limits.active || ready < limits.ready {
            let sets: Vec<String> = seen
                .replica_sets
                .list_namespace(&key.namespace)
                .iter()
                .filter(|set| set.metadata.name.as_deref().unwrap_or_default().starts_with(&key.name))
                .map(|set| format!("{:?} {:?}", set.spec.as_ref().map(|s| s.replicas), set.status))
                .collect();
            let wish = seen.deployments.get(&key).and_then(|d: Arc<Deployment>| d.status.clone());
            let told = format!("{key}: {} active, {ready} ready, but {limits:?}; {sets:#?} {wish:?}", active.len());
            shared.violations.push(told);
        }
    }
}

async fn beat(client: &Client, env: &Env, name: &str) -> Outcome<()> {
    let key = Key::new("kube-node-lease", name);
    let now = env.now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let renewed = json!({ "spec": { "renewTime": now, "holderIdentity": name, "leaseDurationSeconds": 40 } });
    match client.call(request(Verb::Patch, "leases.coordination.k8s.io", &key, Some(renewed.clone()))).await {
        Err(status) if status.is_not_found() => {
            let mut lease = renewed;
            lease["metadata"] = json!({ "name": name });
            let ns = Key::new("kube-node-lease", "");
            client.call(request(Verb::Create, "leases.coordination.k8s.io", &ns, Some(lease))).await?;
        }
        other => drop(other?),
    }
    let node: k8s_openapi::api::core::v1::Node = client.get(None, name).await?;
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    if !conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True") {
        let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status, "reason": "KubeletReady", "message": "" });
        let all = json!([condition("Ready", "True"), condition("MemoryPressure", "False")]);
        status(client, "nodes", &Key::new("", name), json!({ "conditions": all })).await?;
    }
    Ok(())
}

/// All nodes' agents and the scheduler, without any kernel work.
struct Hollow {
    client: Client,
    env: Env,
    seen: Informers,
    shared: Arc<Mutex<Shared>>,
}

impl Hollow {
    async fn run(self) {
        const TICK: Duration = Duration::from_millis(200);
        for turn in 0u64.. {
            tokio::time::sleep(TICK).await;
            let (nodes, beating) = {
                let shared = self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                (shared.nodes.clone(), shared.beating)
            };
            let alive: Vec<&String> = nodes.iter().filter(|(_, alive)| **alive).map(|(name, _)| name).collect();
            for name in alive.iter().filter(|_| beating && turn.is_multiple_of(50)) {
                // It may have been deleted a moment ago.
                beat(&self.client, &self.env, name).await.ok();
            }
            for pod in self.seen.pods.list() {
                // Some things take longer than others. What fails is tried again.
                if self.env.below(3) != 0 {
                    self.tend(&pod, &alive).await.ok();
                }
            }
        }
    }

    async fn tend(&self, pod: &Pod, alive: &[&String]) -> Outcome<()> {
        let key = Key::of(pod);
        match meta::node_name(pod) {
            Some(_) if meta::is_finished(pod) && !meta::is_terminating(&pod.metadata) => Ok(()),
            None if !alive.is_empty() && !meta::is_terminating(&pod.metadata) => {
                // A DaemonSet's Pod is meant for one node, which may not be there yet, or no more.
                let node = match nodes::target(pod) {
                    Some(node) if alive.iter().any(|name| *name == node) => node,
                    Some(_) => return Ok(()),
                    None => alive[self.env.below(alive.len() as u64) as usize],
                };
                let target = json!({ "metadata": { "name": key.name }, "target": { "kind": "Node", "name": node } });
                let mut bind = request(Verb::Create, "pods", &key, Some(target));
                bind.subresource = Some("binding".into());
                self.client.call(bind).await.map(drop)
            }
            Some(node) if alive.iter().any(|name| *name == node) => {
                if meta::is_terminating(&pod.metadata) {
                    let mut delete = request(Verb::Delete, "pods", &key, None);
                    delete.options.grace_period_seconds = Some(0);
                    return self.client.call(delete).await.map(drop);
                }
                let broken = pod.spec.as_ref().is_some_and(|s| s.containers[0].image.as_deref() == Some("broken"));
                let well = meta::phase(pod) == "Running" && (broken || meta::is_ready(pod));
                if well { Ok(()) } else { self.start(pod, &key, broken).await }
            }
            _ => Ok(()),
        }
    }

    async fn start(&self, pod: &Pod, key: &Key, broken: bool) -> Outcome<()> {
        let known = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
        let address = known.unwrap_or_else(|| {
            let mut shared = self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            shared.addresses += 1;
            std::net::Ipv4Addr::from(0x0af4_0000 + shared.addresses).to_string()
        });
        let ready = if broken { "False" } else { "True" };
        let now = self.env.now().to_string();
        let conditions = json!([{ "type": "Ready", "status": ready, "lastTransitionTime": now }]);
        let new =
            json!({ "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }], "conditions": conditions });
        status(&self.client, "pods", key, new).await
    }
}
