//! The whole loop against an API server on the memory store, on a paused clock.

use podwright::api::instruments::{self, Format};
use prometheus_client::registry::Registry;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use podwright::{
    api::{Env, Options, Request, Response, Status, Verb, WatchEvent, patch, request::Body},
    client::{Client, Informers, Key, Stream, Transport, local},
    scheduler,
    server::{self, Server},
    store::Memory,
};
use serde_json::{Value, json};
use tokio::{sync::mpsc::Receiver, time::Instant};
use tokio_util::sync::CancellationToken;

/// How bindings and deletions fare on their way to the server.
#[derive(Default)]
pub(super) struct Road {
    /// So many of the next bindings are refused.
    pub(super) refuse: usize,
    /// Likewise of deletions.
    pub(super) refuse_deletions: usize,
    /// The next deletion takes so long.
    pub(super) delay_deletion: Option<Duration>,
    /// The next binding takes so long.
    delay: Option<Duration>,
    /// When each one was sent, and of which Pod.
    sent: Vec<(Instant, String)>,
}

/// The scheduler's way to the server, on which a test puts obstacles.
struct Bumpy {
    client: Client,
    road: Arc<Mutex<Road>>,
}

#[async_trait]
impl Transport for Bumpy {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        if request.verb == Verb::Delete {
            let (refused, delay) = {
                let mut road = self.road.lock().expect("no panic");
                let refused = road.refuse_deletions > 0;
                road.refuse_deletions -= usize::from(refused);
                (refused, road.delay_deletion.take())
            };
            if let Some(delay) = delay {
                tokio::time::sleep(delay).await;
            }
            if refused {
                return Err(Status::internal("no"));
            }
        }
        if request.subresource.as_deref() == Some("binding") {
            let (refused, delay) = {
                let mut road = self.road.lock().expect("no panic");
                road.sent.push((Instant::now(), request.name.clone().unwrap_or_default()));
                let refused = road.refuse > 0;
                road.refuse -= usize::from(refused);
                (refused, road.delay.take())
            };
            if let Some(delay) = delay {
                tokio::time::sleep(delay).await;
            }
            if refused {
                return Err(Status::internal("no"));
            }
        }
        self.client.call(request).await
    }
    async fn watch(&self, request: Request) -> Result<Receiver<WatchEvent>, Status> {
        self.client.watch(request).await
    }
    async fn dial(&self, id: &str) -> Result<Stream, Status> {
        self.client.dial(id).await
    }
    async fn sessions(&self, node: &str) -> Result<Receiver<podwright::api::rpc::Session>, Status> {
        self.client.sessions(node).await
    }
}

pub(super) struct World {
    pub(super) client: Client,
    pub(super) seen: Informers,
    pub(super) road: Arc<Mutex<Road>>,
    pub(super) shutdown: CancellationToken,
    pub(super) scheduler: tokio::task::JoinHandle<()>,
}

pub(super) fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(test());
}

impl World {
    pub(super) async fn new() -> World {
        World::with(scheduler::Config::default()).await
    }

    pub(super) async fn with(config: scheduler::Config) -> World {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().expect("a time"), 7);
        let store = Arc::new(Memory::new());
        let server = Server::open(store, env.clone(), server::Config::default()).await.expect("a server");
        let client = local::client(server, "kube-scheduler");
        let road = Arc::<Mutex<Road>>::default();
        let bumpy = Client::new(Arc::new(Bumpy { client: client.clone(), road: road.clone() }), "kube-scheduler");
        let seen = Informers::start(client.clone());
        seen.synced().await;
        let shutdown = CancellationToken::new();
        let scheduler = tokio::spawn(scheduler::run(bumpy, env, seen.clone(), Arc::new(config), shutdown.clone()));
        World { client, seen, road, shutdown, scheduler }
    }

    pub(super) async fn node(&self, name: &str, changes: Value) {
        let node = super::node(name, changes);
        self.client.create(&*node).await.expect("created");
        self.client.merge::<Node>(None, name, Some("status"), json!({ "status": node.status })).await.expect("status");
        // The scheduler shall know it before anything else happens.
        self.settle().await;
    }

    pub(super) async fn pod(&self, name: &str, spec: Value) -> Pod {
        let base = json!({ "containers": [{ "name": "c", "image": "i" }] });
        let meta = json!({ "name": name, "namespace": "default" });
        let pod = json!({ "metadata": meta, "spec": patch::merge(&base, &spec) });
        let pod: Pod = serde_json::from_value(pod).expect("a Pod");
        self.client.create(&pod).await.expect("created")
    }

    pub(super) async fn status(&self, pod: &str, status: Value) {
        let patch = json!({ "status": status });
        self.client.merge::<Pod>(Some("default"), pod, Some("status"), patch).await.expect("status");
    }

    pub(super) async fn delete(&self, pod: &str) {
        let options = Options { grace_period_seconds: Some(0), ..Options::default() };
        self.client.delete::<Pod>(Some("default"), pod, None, options).await.expect("deleted");
    }

    pub(super) fn get(&self, pod: &str) -> Option<Arc<Pod>> {
        self.seen.pods.get(&Key::new("default", pod))
    }

    pub(super) fn place(&self, pod: &str) -> Option<String> {
        self.get(pod)?.spec.as_ref()?.node_name.clone()
    }

    /// The reason and message of the condition PodScheduled.
    pub(super) fn told(&self, pod: &str) -> Option<(String, String)> {
        let pod = self.get(pod)?;
        let condition = pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == "PodScheduled")?.clone();
        Some((condition.reason?, condition.message?))
    }

    /// What the Pod's trace tells of the writes to one of its subresources.
    async fn notes(&self, pod: &str, subresource: &str) -> Vec<String> {
        let request = Request {
            verb: Verb::Get,
            resource: "pods".into(),
            namespace: Some("default".into()),
            name: Some(pod.into()),
            subresource: Some("trace".into()),
            ..Request::default()
        };
        let Body::Object { bytes, .. } = self.client.call(request).await.expect("a trace").body else { panic!() };
        let trace: Value = serde_json::from_slice(&bytes).expect("JSON");
        let steps = trace["items"].as_array().expect("steps").iter().filter(|step| step["subresource"] == subresource);
        steps.map(|step| step["note"].as_str().unwrap_or_default().to_owned()).collect()
    }

    pub(super) async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(600);
        while !holds() {
            assert!(Instant::now() < deadline, "not within 600 s: {what}: {:#?}", self.seen.pods.list());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets everybody do what can be done without waiting: the clock moves only then.
    pub(super) async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    async fn events_about(&self, pod: &str) -> impl Iterator<Item = Event> {
        self.settle().await;
        let events = self.client.list::<Event>(Some("default"), Options::default()).await.expect("a list").items;
        events.into_iter().filter(move |event| event.involved_object.name.as_deref() == Some(pod))
    }

    /// How often each message was told about a Pod.
    pub(super) async fn events(&self, pod: &str) -> BTreeMap<String, i32> {
        let told = |e: Event| {
            (format!("{} {}", e.reason.unwrap_or_default(), e.message.unwrap_or_default()), e.count.unwrap_or(0))
        };
        self.events_about(pod).await.map(told).collect()
    }

    /// What was told about a Pod, and by whom.
    pub(super) async fn reporters(&self, pod: &str) -> BTreeSet<(String, String)> {
        let by = |e: Event| {
            let source = e.source.and_then(|source| source.component);
            assert_eq!(e.reporting_component, source);
            (e.reason.unwrap_or_default(), source.unwrap_or_default())
        };
        self.events_about(pod).await.map(by).collect()
    }

    pub(super) async fn stop(self) {
        self.shutdown.cancel();
        self.scheduler.await.expect("it ends without a panic");
    }
}

pub(super) fn cpu(cpu: &str) -> Value {
    super::requesting(json!({ "cpu": cpu }))
}

#[test]
fn a_pod_gets_its_node_at_once_and_its_trace_says_why() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        world.node("n2", json!({ "spec": { "unschedulable": true } })).await;
        let start = Instant::now();
        world.pod("p", cpu("1")).await;
        world.until("bound", || world.place("p").is_some()).await;
        assert!(start.elapsed() < Duration::from_millis(50));
        assert_eq!(world.place("p").as_deref(), Some("n1"));
        assert_eq!(world.events("p").await, [("Scheduled Successfully assigned default/p to n1".to_owned(), 1)].into());
        let notes = world.notes("p", "binding").await;
        let [note] = notes.as_slice() else { panic!("{notes:?}") };
        assert!(note.starts_with("looked at 2 of 2 nodes, 1 fit, chose n1, in "), "{note}");
        assert!(note.ends_with(" us; n1: fits; n2: node(s) were unschedulable"), "{note}");
        let pod = world.client.get::<Pod>(Some("default"), "p").await.expect("there");
        assert!(!serde_json::to_string(&pod).expect("JSON").contains("looked at"), "the note is not in the object");
        world.stop().await;
    });
}

#[test]
fn a_pod_without_a_node_is_told_why_and_wakes_when_it_helps() {
    run(|| async {
        let world = World::new().await;
        world.pod("p", cpu("3")).await;
        world.until("told", || world.told("p").is_some()).await;
        let why = |message: &str| Some(("Unschedulable".to_owned(), message.to_owned()));
        assert_eq!(world.told("p"), why("no nodes available to schedule pods"));
        tokio::time::sleep(Duration::from_secs(20)).await;
        world.node("n1", json!({ "status": { "allocatable": { "cpu": "1" } } })).await;
        world.settle().await;
        assert_eq!(world.told("p"), why("no nodes available to schedule pods"), "it does not fit there: it sleeps on");
        // Another Pod takes the room first.
        world.node("n2", json!({ "spec": { "unschedulable": true } })).await;
        world
            .client
            .merge::<Pod>(Some("default"), "p", None, json!({ "metadata": { "labels": { "a": "b" } } }))
            .await
            .expect("p");
        let message = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable. \
                       preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
        world.until("told anew", || world.told("p") == why(message)).await;
        let notes = world.notes("p", "status").await;
        let note = notes.last().expect("of each try");
        assert!(note.starts_with("no node fits, in "), "{notes:?}");
        assert!(note.ends_with(" us; n1: Insufficient cpu; n2: node(s) were unschedulable"), "{notes:?}");
        tokio::time::sleep(Duration::from_secs(20)).await;
        let uncordon = json!({ "spec": { "unschedulable": null } });
        world
            .client
            .merge::<Node>(None, "n2", None, json!({ "metadata": { "labels": { "x": "y" } } }))
            .await
            .expect("n2");
        world.settle().await;
        assert_eq!(world.place("p"), None);
        world.client.merge::<Node>(None, "n2", None, uncordon).await.expect("n2");
        world.settle().await;
        assert_eq!(world.place("p").as_deref(), Some("n2"));
        let events = world.events("p").await;
        assert_eq!(events.get(&format!("FailedScheduling {message}")), Some(&1), "{events:#?}");
        assert_eq!(events.len(), 3, "{events:#?}");
        world.stop().await;
    });
}

#[test]
fn a_pod_that_comes_before_its_node_need_not_sit_out_its_backoff() {
    run(|| async {
        let world = World::new().await;
        world.pod("p", cpu("1")).await;
        world.until("told", || world.told("p").is_some()).await;
        for (n, cpu) in ["10m", "20m", "30m"].iter().enumerate() {
            world.node(&format!("small{n}"), json!({ "status": { "allocatable": { "cpu": cpu } } })).await;
        }
        let start = Instant::now();
        world.node("n1", json!({})).await;
        world.until("bound", || world.place("p").is_some()).await;
        assert!(start.elapsed() < Duration::from_millis(50), "{:?}", start.elapsed());
        world.stop().await;
    });
}

#[test]
fn an_event_is_cut_off_where_notes_end() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        let domain = ["a", "b", "c"].map(|label| label.repeat(60)).join(".");
        let names: Vec<String> = (10..50).map(|n| format!("{domain}/a-resource-of-a-long-name-{n}")).collect();
        let requests: BTreeMap<&str, &str> = names.iter().map(|name| (name.as_str(), "1")).collect();
        let resources = json!({ "requests": requests, "limits": requests });
        world.pod("p", json!({ "containers": [{ "name": "c", "image": "i", "resources": resources }] })).await;
        world.until("told", || world.told("p").is_some()).await;
        let (_, whole) = world.told("p").unwrap_or_default();
        let told = names.iter().filter(|name| whole.contains(&format!("1 Insufficient {name}")));
        assert_eq!(told.count(), 10, "the first that lack are told: {whole}");
        let events = world.events("p").await;
        let expected = format!("FailedScheduling {} ...", &whole[..1020]);
        assert_eq!(events.keys().collect::<Vec<_>>(), [&expected]);
        world.stop().await;
    });
}

#[test]
fn room_is_free_when_a_pod_is_finished_or_gone_not_while_it_ends() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        world.pod("a", cpu("4")).await;
        world.until("a is bound", || world.place("a").is_some()).await;
        world.pod("b", cpu("4")).await;
        world.until("b is told", || world.told("b").is_some()).await;
        // With a grace period it is being deleted until its node says it is gone.
        world.client.delete::<Pod>(Some("default"), "a", None, Options::default()).await.expect("deleted");
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(world.get("a").is_some_and(|a| a.metadata.deletion_timestamp.is_some()));
        assert_eq!(world.place("b"), None);
        world.delete("a").await;
        world.settle().await;
        assert_eq!(world.place("b").as_deref(), Some("n1"));
        world.pod("c", cpu("4")).await;
        world.until("c is told", || world.told("c").is_some()).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        world.status("b", json!({ "phase": "Succeeded" })).await;
        world.settle().await;
        assert_eq!(world.place("c").as_deref(), Some("n1"));
        world.stop().await;
    });
}

#[test]
fn a_refused_binding_is_tried_again_with_backoff_and_its_room_is_free_meanwhile() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        world.road.lock().expect("no panic").refuse = 6;
        let start = Instant::now();
        world.pod("p", cpu("4")).await;
        world.until("bound", || world.place("p").is_some()).await;
        let sent: Vec<_> = std::mem::take(&mut world.road.lock().expect("no panic").sent);
        let gaps: Vec<u64> = sent.windows(2).map(|w| (w[1].0 - w[0].0).as_millis() as u64 / 100).collect();
        assert_eq!(gaps, [10, 20, 40, 80, 100, 100]);
        assert_eq!(start.elapsed().as_secs(), 35);
        let events = world.events("p").await;
        assert_eq!(
            events.get("FailedScheduling binding rejected: Internal error occurred: no"),
            Some(&6),
            "{events:#?}"
        );
        world.road.lock().expect("no panic").refuse = 1;
        world.delete("p").await;
        world.settle().await;
        world.pod("q", cpu("4")).await;
        world.settle().await;
        world.pod("r", cpu("4")).await;
        world.settle().await;
        assert_eq!(world.place("r").as_deref(), Some("n1"), "q waits for its backoff, r need not");
        world.stop().await;
    });
}

#[test]
fn a_binding_that_fails_is_told_in_the_status() {
    run(|| async {
        let world = World::new().await;
        world.pod("p", cpu("4")).await;
        world.until("told", || world.told("p").is_some()).await;
        {
            let mut road = world.road.lock().expect("no panic");
            (road.refuse, road.delay) = (1, Some(Duration::from_secs(5)));
        }
        world.node("n1", json!({})).await;
        // Somebody else changes it while it is being bound.
        world.status("p", json!({ "conditions": [{ "type": "example.com/a", "status": "True" }] })).await;
        let why = ("SchedulerError".to_owned(), "binding rejected: Internal error occurred: no".to_owned());
        world.until("told anew", || world.told("p") == Some(why.clone())).await;
        assert_eq!(world.place("p"), None);
        world.until("bound", || world.place("p").is_some()).await;
        let conditions = world.get("p").and_then(|pod| pod.status.clone()?.conditions).unwrap_or_default();
        let scheduled = conditions.iter().find(|c| c.type_ == "PodScheduled").expect("the condition");
        assert_eq!((scheduled.status.as_str(), scheduled.reason.as_deref()), ("True", None));
        world.stop().await;
    });
}

#[test]
fn another_pod_of_the_same_name_is_another_pod() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        for delay in [1, 500, 1500, 3000] {
            // The first one's binding is on its way while it is deleted and the name is given to a second one.
            world.road.lock().expect("no panic").delay = Some(Duration::from_millis(delay));
            let first = world.pod("p", cpu("4")).await;
            world.until("sent", || !world.road.lock().expect("no panic").sent.is_empty()).await;
            world.delete("p").await;
            let second = world.pod("p", cpu("4")).await;
            assert_ne!(first.metadata.uid, second.metadata.uid);
            world.until("the second one is bound", || world.place("p").is_some()).await;
            tokio::time::sleep(Duration::from_secs(10)).await;
            let sent = std::mem::take(&mut world.road.lock().expect("no panic").sent);
            assert_eq!(sent.len(), 2, "each was bound once: {sent:?}");
            world.delete("p").await;
            world.settle().await;
        }
        world.stop().await;
    });
}

#[test]
fn only_those_that_are_ours_and_ready_are_placed() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        world.pod("other", json!({ "schedulerName": "another" })).await;
        world.pod("gated", json!({ "schedulingGates": [{ "name": "a/b" }] })).await;
        world.pod("ending", cpu("5")).await;
        let held = json!({ "metadata": { "finalizers": ["example.com/a"] } });
        world.client.merge::<Pod>(Some("default"), "ending", None, held).await.expect("held");
        world.until("told", || world.told("ending").is_some()).await;
        world.client.delete::<Pod>(Some("default"), "ending", None, Options::default()).await.expect("deleted");
        tokio::time::sleep(Duration::from_secs(400)).await;
        assert_eq!((world.place("other"), world.place("gated"), world.place("ending")), (None, None, None));
        let message = "Scheduling is blocked due to non-empty scheduling gates".to_owned();
        assert_eq!(world.told("gated"), Some(("SchedulingGated".to_owned(), message)));
        let failures: i32 = world.events("ending").await.values().sum();
        assert!(failures <= 2, "nobody tries to place what is being deleted: {failures}");
        assert!(world.road.lock().expect("no panic").sent.is_empty());
        let open = json!({ "spec": { "schedulingGates": null } });
        world.client.merge::<Pod>(Some("default"), "gated", None, open).await.expect("opened");
        world.settle().await;
        assert_eq!(world.place("gated").as_deref(), Some("n1"));
        world.stop().await;
    });
}

#[test]
fn a_condition_that_was_refused_is_written_when_the_pod_is_seen_again() {
    run(|| async {
        let world = World::new().await;
        // Changed by others all the time while the scheduler looks at it.
        world.pod("p", json!({})).await;
        for n in 0..20 {
            let ready = json!([{ "type": format!("example.com/{n}"), "status": "True" }]);
            world.status("p", json!({ "conditions": ready })).await;
        }
        world.until("told", || world.told("p").is_some()).await;
        let pod = world.get("p").expect("there");
        let conditions = pod.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        assert!(conditions.iter().any(|c| c.type_ == "example.com/19"), "nobody else's is lost: {conditions:?}");
        world.stop().await;
    });
}

#[test]
fn a_thousand_pods_fill_ten_nodes_and_no_more() {
    run(|| async {
        let world = World::new().await;
        for n in 0..10 {
            let size = json!({ "status": { "allocatable": { "cpu": "10", "pods": "200" } } });
            world.node(&format!("n{n}"), size).await;
        }
        let (shutdown, overfull) = (CancellationToken::new(), Arc::<Mutex<Vec<String>>>::default());
        tokio::spawn(watch(world.seen.clone(), overfull.clone(), shutdown.clone()));
        // Some bindings fail on the way.
        world.road.lock().expect("no panic").refuse = 50;
        for n in 0..1050 {
            world.pod(&format!("p{n:04}"), cpu("100m")).await;
        }
        let bound =
            || world.seen.pods.list().iter().filter(|p| p.spec.as_ref().is_some_and(|s| s.node_name.is_some())).count();
        world.until("1000 are bound", || bound() == 1000).await;
        world
            .until("50 are told", || {
                world
                    .seen
                    .pods
                    .list()
                    .iter()
                    .filter(|p| world.told(p.metadata.name.as_deref().unwrap_or("")).is_some())
                    .count()
                    >= 50
            })
            .await;
        tokio::time::sleep(Duration::from_secs(400)).await;
        assert_eq!(bound(), 1000);
        for n in 0..10 {
            assert_eq!(world.seen.pods.indexed(Informers::BY_NODE, &format!("n{n}")).len(), 100);
        }
        // One goes, one comes; a node comes, all others come.
        world.delete("p0000").await;
        world.until("its room is taken", || bound() == 1000).await;
        world.node("n10", json!({})).await;
        world.until("10 more", || bound() == 1010).await;
        assert_eq!(overfull.lock().expect("no panic").as_slice(), [""; 0]);
        world.stop().await;
    });
}

/// Notes every moment at which a node has more than fits.
async fn watch(seen: Informers, overfull: Arc<Mutex<Vec<String>>>, shutdown: CancellationToken) {
    let mut changes = seen.pods.subscribe();
    while let Some(Some(change)) = shutdown.run_until_cancelled(changes.recv()).await {
        let Some(node) = change.new.and_then(|pod| pod.spec.as_ref()?.node_name.clone()) else { continue };
        let count = seen.pods.indexed(Informers::BY_NODE, &node).len();
        if count > 100 {
            overfull.lock().expect("no panic").push(format!("{count} on {node}"));
        }
    }
}

#[test]
fn a_restarted_scheduler_counts_what_is_there_first() {
    run(|| async {
        let mut world = World::new().await;
        world.node("n1", json!({ "status": { "allocatable": { "pods": "600" } } })).await;
        for n in 0..400 {
            world.pod(&format!("z{n:03}"), cpu("10m")).await;
        }
        let bound = || world.seen.pods.indexed(Informers::BY_NODE, "n1").len();
        world.until("the node is full", || bound() == 400).await;
        world.shutdown.cancel();
        (&mut world.scheduler).await.expect("it ends");
        // These come first in every list.
        for n in 0..200 {
            world.pod(&format!("a{n:03}"), cpu("10m")).await;
        }
        world.settle().await;
        let again = CancellationToken::new();
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().expect("a time"), 8);
        let (client, seen) = (world.client.clone(), world.seen.clone());
        let second = tokio::spawn(scheduler::run(client, env, seen, Arc::default(), again.clone()));
        world.until("all are told", || world.told("a199").is_some()).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(bound(), 400);
        again.cancel();
        second.await.expect("it ends");
        let text = instruments::expose(&Registry::default(), "", Format::Text);
        for series in [
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"scheduled\"}",
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"unschedulable\"}",
            "scheduler_scheduling_attempt_duration_seconds_count{",
            "scheduler_scheduling_algorithm_duration_seconds_count",
            "scheduler_pending_pods{queue=\"unschedulable\"}",
            "scheduler_queue_incoming_pods_total{",
            "scheduler_pod_scheduling_attempts_count",
            "scheduler_pod_scheduling_sli_duration_seconds_count",
        ] {
            assert!(text.lines().any(|line| line.starts_with(series)), "{series}: {text}");
        }
    });
}
