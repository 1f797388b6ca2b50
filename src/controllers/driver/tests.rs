//! A key after its plan, with a paused clock and a server that refuses everything.

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::{sync::mpsc::Receiver, time::Instant};

use super::*;
use crate::Writes;
use podwright_api::{WatchEvent, rpc::Session};
use podwright_client::{Informers, Stream, Transport};

struct Closed;

#[async_trait]
impl Transport for Closed {
    async fn call(&self, _: Request) -> Result<Response, Status> {
        Err(Status::internal("no"))
    }
    async fn watch(&self, _: Request) -> Result<Receiver<WatchEvent>, Status> {
        Err(Status::internal("no"))
    }
    async fn dial(&self, _: &str) -> Result<Stream, Status> {
        Err(Status::internal("no"))
    }
    async fn sessions(&self, _: &str) -> Result<Receiver<Session>, Status> {
        Err(Status::internal("no"))
    }
}

/// Its writes are refused, and it requeues after 20 s.
static STUBBORN: Row = Row {
    name: "stubborn",
    workers: 1,
    writes: Writes::Of(&["pods"]),
    watch: |_| (),
    reconcile: |_, key| {
        let pod = json!({ "metadata": { "name": key.name, "namespace": "default" } });
        let mut plan = Plan::default();
        // The invariant: this is enough for a Pod.
        plan.then(vec![Write::create(&serde_json::from_value::<Pod>(pod).expect("a Pod"))]);
        plan.requeue(Duration::from_secs(20));
        plan
    },
};

fn driver(row: &'static Row) -> Driver {
    driver_of(row, Client::new(Arc::new(Closed), row.name))
}

pub(super) fn driver_of(row: &'static Row, client: Client) -> Driver {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().expect("a time"), 1);
    let world = World {
        informers: Informers::start(client.clone()),
        metadata: super::super::metadata_informers::MetadataInformers::start(&client),
        heartbeats: Default::default(),
        scales: Default::default(),
        autoscaling: Default::default(),
        paces: Default::default(),
        short_lives: Default::default(),
        patience: Default::default(),
        last_successes: Default::default(),
        zone: jiff::tz::TimeZone::UTC,
        config: Default::default(),
        aside: Default::default(),
    };
    let recorder = Recorder::new(client.clone(), env.clone(), row.name, None);
    let (world, queue) = (Arc::new(world), Queue::new("test", 1));
    let (memory, lately, unused) = Default::default();
    Driver { row, world, client, env, recorder, queue, memory, lately, unused }
}

/// A repeatedly refused write backs off; other due times of the key do not wait for that.
#[tokio::test(start_paused = true)]
async fn what_is_due_does_not_wait_for_a_refused_write() {
    let driver = driver(&STUBBORN);
    let key = Key::new("default", "web");
    let mut waits = Vec::new();
    for _ in 0..16 {
        let start = Instant::now();
        driver.reconcile(&key).await;
        assert_eq!(driver.queue.get().await, key);
        driver.queue.done(&key);
        waits.push(start.elapsed());
    }
    assert!(waits[0] < Duration::from_millis(50), "{waits:?}: a refused write is tried again soon");
    assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(20)), "{waits:?}");
    assert_eq!(driver.queue.failures(&key), 16);
}

/// Works in rounds of three plans.
static IN_ROUNDS: Row = Row {
    name: "in-rounds",
    reconcile: |context, key| {
        let mut plan = (STUBBORN.reconcile)(context, key);
        plan.requeue_after = Some(Duration::ZERO);
        let item = |name: &str| {
            let object = serde_json::from_value(json!({ "metadata": { "name": name } }));
            // The invariant: this is enough for an object.
            Item { resource: "pods".into(), object: Arc::new(object.expect("an object")) }
        };
        plan.left_off = match context.left_off.and_then(|last| last.object.metadata.name.as_deref()) {
            None => Some(item("1")),
            Some("1") => Some(item("2")),
            _ => None,
        };
        // The last one of each is not refused.
        if plan.left_off.is_none() {
            plan.work = Default::default();
        }
        plan
    },
    ..STUBBORN
};

/// A refusal does not stop its round, and is retried after it with growing back-off.
#[tokio::test(start_paused = true)]
async fn a_round_goes_on_whatever_is_refused_and_is_one_try() {
    let driver = driver(&IN_ROUNDS);
    let key = Key::new("default", "web");
    let mut waits = Vec::new();
    for round in 1..=8 {
        for plan in 1..=3 {
            let start = Instant::now();
            driver.reconcile(&key).await;
            assert_eq!(driver.queue.get().await, key);
            driver.queue.done(&key);
            match plan {
                3 => waits.push(start.elapsed()),
                _ => assert_eq!(start.elapsed(), Duration::ZERO, "plan {plan} of round {round}"),
            }
        }
        assert_eq!(driver.queue.failures(&key), round);
    }
    assert!(waits.is_sorted() && waits[7] > waits[0] * 100, "{waits:?}");
}

/// Writes a resource that its row does not list.
static ASTRAY: Row = Row { name: "astray", writes: Writes::Of(&["nodes"]), ..STUBBORN };

#[tokio::test(start_paused = true)]
async fn a_write_that_the_row_does_not_name_is_refused() {
    let refusal = |driver: Driver| async move {
        let plan = driver.plan(&Key::new("default", "web"), &Memory::default()).await;
        let (_, refused) = driver.execute("", plan).await;
        refused.into_iter().map(|refusal| refusal.status.message).collect::<Vec<_>>()
    };
    assert_eq!(refusal(driver(&STUBBORN)).await, ["Internal error occurred: no"], "the server's word");
    let why = refusal(driver(&ASTRAY)).await;
    assert_eq!(why, [r#"Internal error occurred: controller "astray" does not say that it writes "pods""#]);
}

/// A server that takes so long for whatever is asked, and counts what that is.
struct Slow(Duration, Mutex<Vec<(Verb, String)>>);

#[async_trait]
impl Transport for Slow {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        let is_ours = request.resource.ends_with("widgets.example.com/") || request.resource.contains("/v1");
        if request.resource != "configmaps" && !is_ours {
            return Err(Status::internal("no"));
        }
        self.1.lock().unwrap().push((request.verb, request.resource.clone()));
        tokio::time::sleep(self.0).await;
        Err(Status::not_found("things", "", "x"))
    }
    async fn watch(&self, _: Request) -> Result<Receiver<WatchEvent>, Status> {
        Err(Status::internal("no"))
    }
    async fn dial(&self, _: &str) -> Result<Stream, Status> {
        Err(Status::internal("no"))
    }
    async fn sessions(&self, _: &str) -> Result<Receiver<Session>, Status> {
        Err(Status::internal("no"))
    }
}

const THINGS: &str = "things.ext.example.com/v1";

fn absent(resource: &str, name: &str) -> Guard {
    Guard::Absent { resource: resource.into(), key: Key::new("a", name), uid: None }
}

fn removal(resource: &str) -> Write {
    Write::remove(resource.into(), &Key::new("a", "x"), None)
}

/// Deletes what others serve once an owner of theirs is known to be gone.
static OF_OTHERS: Row = Row {
    name: "of-others",
    writes: Writes::Any,
    reconcile: |_, _| {
        let mut plan = Plan::default();
        plan.then(vec![removal("configmaps").guarded(absent(THINGS, "owner"))]);
        plan
    },
    ..STUBBORN
};

/// Each namespace is an account of its own, and so is each object that is in none.
#[tokio::test(start_paused = true)]
async fn who_is_slow_is_left_alone_for_the_key_that_has_led_to_him() {
    let slow = Arc::new(Slow(Duration::from_secs(50), Mutex::default()));
    let driver = driver_of(&OF_OTHERS, Client::new(slow.clone(), "test"));
    let took = async |key: Key| {
        let begin = Instant::now();
        driver.reconcile(&key).await;
        begin.elapsed().as_secs()
    };
    let asked = || slow.1.lock().unwrap().iter().filter(|(_, resource)| resource.starts_with("things")).count();
    assert_eq!(took(Key::new("", "a")).await, 5, "a read of what others serve is given up");
    let once = asked();
    assert!(once > 0);
    assert_eq!((took(Key::new("", "a")).await, asked()), (0, once), "and not tried again at once");
    assert_eq!((took(Key::new("", "b")).await, asked()), (5, 2 * once), "another namespace's");
    assert_eq!((took(Key::new("c", "x")).await, asked()), (5, 3 * once));
    assert_eq!((took(Key::new("c", "y")).await, asked()), (0, 3 * once));
}

#[tokio::test(start_paused = true)]
async fn writes_wait_no_longer_for_what_they_depend_on_than_a_minute() {
    let slow = Arc::new(Slow(Duration::from_secs(25), Mutex::default()));
    let driver = driver_of(&OF_OTHERS, Client::new(slow.clone(), "test"));
    let guarded = |count: usize| {
        (0..count).fold(removal("configmaps"), |write, n| write.guarded(absent("configmaps", &n.to_string())))
    };
    let mut took = Vec::new();
    for count in [2 * GUARDS, 3 * GUARDS] {
        let (begin, asked) = (Instant::now(), slow.1.lock().unwrap().len());
        let done = driver.write("a", guarded(count)).await;
        let writes = slow.1.lock().unwrap()[asked..].iter().filter(|(verb, _)| *verb == Verb::Delete).count();
        took.push((done.is_ok(), begin.elapsed().as_secs(), writes));
    }
    assert_eq!(took, [(true, 75, 1), (false, 60, 0)], "some guards at a time, and then the write, if all of them hold");
}
