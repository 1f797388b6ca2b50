//! The events recorder: repeated events are counted, similar ones combined, excess ones dropped and counted.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{Event, Namespace, ObjectReference},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use podwright::{
    api::{Env, Options},
    client::{Client, Recorder, local},
    server::{Config, Server},
    store::Memory,
};

struct World {
    client: Client,
    env: Env,
}

async fn world() -> World {
    let env = Env::simulated("2026-11-20T17:00:00Z".parse().unwrap(), 1);
    let server = Server::open(Arc::new(Memory::new()), env.clone(), Config::default()).await.unwrap();
    World { client: local::client(server, "test"), env }
}

impl World {
    fn recorder(&self) -> Recorder {
        Recorder::new(self.client.clone(), self.env.clone(), "kubelet", Some("n1"))
    }

    async fn events(&self) -> Vec<Event> {
        self.client.list::<Event>(Some("default"), Options::default()).await.unwrap().items
    }

    /// The events, once they satisfy the condition.
    async fn until(&self, what: &str, right: impl Fn(&[Event]) -> bool) -> Vec<Event> {
        for _ in 0..1000 {
            let events = self.events().await;
            if right(&events) {
                return events;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never {what}: {:#?}", messages(&self.events().await));
    }
}

/// Messages with their counts.
fn messages(events: &[Event]) -> BTreeMap<String, i32> {
    events.iter().map(|e| (e.message.clone().unwrap_or_default(), e.count.unwrap_or(0))).collect()
}

fn about(name: &str) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: Some("default".into()),
        name: Some(name.into()),
        uid: Some(format!("uid-{name}")),
        ..ObjectReference::default()
    }
}

#[tokio::test(start_paused = true)]
async fn what_repeats_is_counted_and_what_is_similar_combined() {
    let world = world().await;
    let recorder = world.recorder();
    for _ in 0..3 {
        recorder.warning(about("a"), "BackOff", "again");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let thrice = BTreeMap::from([("again".to_owned(), 3)]);
    let event = world.until("one event three times", |events| messages(events) == thrice).await.remove(0);
    let (first, last) = (event.first_timestamp.unwrap().0, event.last_timestamp.unwrap().0);
    assert_eq!(last.duration_since(first).as_secs(), 2);
    // Another reason, type or object: events of their own.
    recorder.warning(about("a"), "Failed", "again");
    recorder.normal(about("a"), "BackOff", "again");
    recorder.warning(about("b"), "BackOff", "again");
    let counts = |events: &[Event]| events.iter().map(|e| e.count.unwrap()).collect::<Vec<_>>();
    world.until("four events", |events| counts(events).len() == 4 && counts(events).iter().sum::<i32>() == 6).await;

    // From the tenth message within ten minutes on they are combined into one event, which says so; after a pause they are not.
    for n in 0..12 {
        recorder.warning(about("c"), "Unhealthy", format!("probe {n}"));
    }
    let mut wanted: BTreeMap<String, i32> = (0..9).map(|n| (format!("probe {n}"), 1)).collect();
    wanted.insert("(combined from similar events): probe 11".to_owned(), 3);
    let probes = |events: &[Event]| {
        let all = messages(events).into_iter();
        all.filter(|(message, _)| message.contains("probe")).collect::<BTreeMap<String, i32>>()
    };
    world.until("nine probes and the combined ones", |events| probes(events) == wanted).await;
    tokio::time::sleep(Duration::from_secs(601)).await;
    recorder.warning(about("c"), "Unhealthy", "probe later");
    wanted.insert("probe later".to_owned(), 1);
    world.until("one more by itself", |events| probes(events) == wanted).await;
}

#[tokio::test(start_paused = true)]
async fn one_object_does_not_fill_the_store() {
    let world = world().await;
    let recorder = world.recorder();
    let has = |reason: &'static str| move |events: &[Event]| events.iter().any(|e| e.reason.as_deref() == Some(reason));
    // A burst of any kind is limited; another object has its own budget.
    (0..60).for_each(|n| recorder.normal(about("a"), &format!("Reason{n}"), "x"));
    recorder.normal(about("b"), "Other", "y");
    assert_eq!(world.until("the other object's event", has("Other")).await.len(), 25 + 1);
    // One more for every five minutes.
    tokio::time::sleep(Duration::from_secs(601)).await;
    (60..70).for_each(|n| recorder.normal(about("a"), &format!("Reason{n}"), "x"));
    recorder.normal(about("b"), "Last", "y");
    assert_eq!(world.until("the other object's event", has("Last")).await.len(), 26 + 2 + 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_out_is_counted_by_the_next() {
    let world = world().await;
    let recorder = world.recorder();
    (0..40).for_each(|_| recorder.warning(about("a"), "BackOff", "again"));
    recorder.normal(about("b"), "Other", "y");
    let wanted = |again| BTreeMap::from([("again".to_owned(), again), ("y".to_owned(), 1)]);
    world.until("as many as are let through", |events| messages(events) == wanted(25)).await;
    tokio::time::sleep(Duration::from_secs(301)).await;
    recorder.warning(about("a"), "BackOff", "again");
    world.until("all of them", |events| messages(events) == wanted(41)).await;
}

/// Captured log output.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_backlog_does_not_hold_is_dropped_counted_and_logged() {
    let world = world().await;
    let recorder = world.recorder();
    let log = Log::default();
    let kept = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || kept.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    // The writer shares this thread: until this task yields, all of them wait.
    (0..1007).for_each(|n| recorder.normal(about(&format!("p{n}")), "Started", "x"));
    assert_eq!(recorder.dropped(), 7);
    world.until("all that waited", |events| events.len() == 1000).await;
    let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].contains("dropping an event: 1000 already wait for the server"), "{said}");
    assert!(lines[1].contains("dropped events: too many were waiting now=7 altogether=7"), "{said}");
    // There is room again.
    recorder.normal(about("late"), "Started", "x");
    world.until("one more", |events| events.len() == 1001).await;
    assert_eq!(recorder.dropped(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_namespace_does_not_wait_behind_a_noisy_one() {
    let world = world().await;
    for name in ["noisy", "quiet"] {
        let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
        world.client.create(&Namespace { metadata, ..Namespace::default() }).await.unwrap();
    }
    let recorder = world.recorder();
    let within = |namespace: &str, name: &str| ObjectReference { namespace: Some(namespace.into()), ..about(name) };
    (0..1200).for_each(|n| recorder.normal(within("noisy", &format!("p{n}")), "Started", "x"));
    recorder.normal(within("quiet", "q"), "Started", "x");
    let list = async |namespace| world.client.list::<Event>(Some(namespace), Options::default()).await.unwrap().items;
    for _ in 0..1000 {
        if !list("quiet").await.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (quiet, noisy) = (list("quiet").await, list("noisy").await);
    assert_eq!(quiet.len(), 1, "it is not dropped");
    let revision = |event: &Event| event.metadata.resource_version.as_ref().unwrap().parse::<u64>().unwrap();
    let before = noisy.iter().filter(|event| revision(event) < revision(&quiet[0])).count();
    assert!(before < 10, "{before} of the noisy one came first");
    assert_eq!(recorder.dropped(), 201);
    for _ in 0..1000 {
        if list("noisy").await.len() == 999 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("of the noisy one's there are {}", list("noisy").await.len());
}
