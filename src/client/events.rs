//! The event recorder: emits upstream's `Event` objects, counting repeated ones and combining similar ones. Namespaces take turns,
//! so a busy one does not delay others' events.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::{StreamExt, stream::FuturesUnordered};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde_json::json;
use tokio::sync::mpsc;

use super::{Client, Typed};
use backlog::{Backlog, MOST};

mod backlog;

use podwright_api::Env;

/// How many namespaces' events are written concurrently, one from each.
const AT_ONCE: usize = 8;
/// How many recent events are remembered for counting repetitions.
const REMEMBERED: usize = 4096;
/// Events that differ only in their message are combined into one from this many on, like in upstream's correlator; this is reset
/// after a period without any.
const SIMILAR: usize = 10;
const SILENCE: SignedDuration = SignedDuration::from_mins(10);
const COMBINED: &str = "(combined from similar events): ";
/// The events per object: a burst, and one more after each period, as in upstream's spam filter.
const BURST: f64 = 25.0;
const REFILL: SignedDuration = SignedDuration::from_mins(5);
/// The most bytes of a message, as in upstream's notes; truncated ones are marked.
const LONGEST: usize = 1024;
const MORE: &str = " ...";
/// How often another name is tried if an event's name is taken.
const NAMES: usize = 5;

/// Records events in the background. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    backlog: Arc<Mutex<Backlog>>,
    /// Wakes the writer; it ends once all senders are dropped.
    wake: mpsc::Sender<()>,
    dropped: Arc<AtomicU64>,
}

struct Told {
    about: ObjectReference,
    kind: &'static str,
    reason: String,
    message: String,
}

/// A reference to `object` for events.
pub fn reference<K: Typed>(object: &K) -> ObjectReference {
    let meta = object.metadata();
    ObjectReference {
        api_version: Some(K::API_VERSION.to_owned()),
        kind: Some(K::KIND.to_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

impl Recorder {
    /// `component` is upstream's name of the component (`kubelet`, `default-scheduler`); `host` the node, for node components.
    pub fn new(client: Client, env: Env, component: &str, host: Option<&str>) -> Recorder {
        let (wake, woken) = mpsc::channel(1);
        let source = EventSource { component: Some(component.to_owned()), host: host.map(str::to_owned) };
        let (dropped, backlog) = (Arc::<AtomicU64>::default(), Arc::<Mutex<Backlog>>::default());
        let known = Mutex::new(Known::new(env.clone()));
        let writer = Writer { client, env, source, known, backlog: backlog.clone(), dropped: dropped.clone() };
        tokio::spawn(async move { writer.run(woken).await });
        Recorder { backlog, wake, dropped }
    }

    /// How many events were dropped because too many were queued.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub fn normal(&self, about: ObjectReference, reason: &str, message: impl Into<String>) {
        self.tell("Normal", about, reason, message.into());
    }

    pub fn warning(&self, about: ObjectReference, reason: &str, message: impl Into<String>) {
        self.tell("Warning", about, reason, message.into());
    }

    fn tell(&self, kind: &'static str, about: ObjectReference, reason: &str, message: String) {
        let namespace = namespace_of(&about).to_owned();
        let told = Told { about, kind, reason: reason.to_owned(), message: cut(message) };
        let lost = lock(&self.backlog).push(namespace, told);
        // If it is full the writer is awake already.
        let _ = self.wake.try_send(());
        if let Some(lost) = lost.filter(|_| self.dropped.fetch_add(1, Ordering::Relaxed) == 0) {
            let reason = lost.reason;
            tracing::warn!(reason, "dropping an event: {MOST} already wait for the server");
        }
    }
}

/// The key of similar events: the object and its part, the type and the reason.
type Similar = (String, String, &'static str, String);
/// The key of equal events: including the message; `None`: they were combined.
type Same = (Similar, Option<String>);

struct Writer {
    client: Client,
    env: Env,
    source: EventSource,
    known: Mutex<Known>,
    backlog: Arc<Mutex<Backlog>>,
    dropped: Arc<AtomicU64>,
}

/// The state of written events. An object's are written one after the other.
struct Known {
    env: Env,
    /// The event's name and count.
    seen: HashMap<Same, (String, i32)>,
    /// The messages of similar events, and the time of the last one.
    similar: HashMap<Similar, (HashSet<String>, Timestamp)>,
    /// How many events each object may still have, and since when.
    allowed: HashMap<String, (f64, Timestamp)>,
    /// The number in the last event's name.
    last: i128,
}

impl Writer {
    async fn run(&self, mut woken: mpsc::Receiver<()>) {
        let (mut known, mut open, mut writing) = (0, true, FuturesUnordered::new());
        loop {
            while writing.len() < AT_ONCE {
                let Some((namespace, told)) = lock(&self.backlog).next() else { break };
                writing.push(async move {
                    if let Err(status) = self.write(told).await {
                        tracing::debug!(%status, "an event was not written");
                    }
                    namespace
                });
            }
            if writing.is_empty() && !open {
                return;
            }
            tokio::select! {
                biased;
                Some(namespace) = writing.next() => lock(&self.backlog).done(namespace),
                more = woken.recv(), if open => open = more.is_some(),
            }
            let dropped = self.dropped.load(Ordering::Relaxed);
            if dropped > known {
                tracing::warn!(now = dropped - known, altogether = dropped, "dropped events: too many were waiting");
                known = dropped;
            }
        }
    }

    async fn write(&self, mut told: Told) -> Result<(), podwright_api::Status> {
        let (same, known) = match lock(&self.known).take_in(&mut told) {
            Some(known) => known,
            None => return Ok(()),
        };
        let now = Time(self.env.now());
        let namespace = namespace_of(&told.about).to_owned();
        if let Some((name, count)) = known {
            let patch = json!({ "count": count, "lastTimestamp": now, "message": told.message });
            match self.client.merge::<Event>(Some(&namespace), &name, None, patch).await {
                Err(status) if status.is_not_found() => lock(&self.known).seen.remove(&same),
                other => return other.map(drop),
            };
        }
        let name = self.create(told, namespace, now).await?;
        lock(&self.known).remember(same, name);
        Ok(())
    }

    /// Creates an event; returns its name.
    async fn create(&self, told: Told, namespace: String, now: Time) -> Result<String, podwright_api::Status> {
        let object = told.about.name.clone().unwrap_or_else(|| "unknown".to_owned());
        let mut tries = 0;
        let mut event = Event {
            metadata: ObjectMeta { namespace: Some(namespace), ..ObjectMeta::default() },
            involved_object: told.about,
            type_: Some(told.kind.to_owned()),
            reason: Some(told.reason),
            message: Some(told.message),
            count: Some(1),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            source: Some(self.source.clone()),
            reporting_component: self.source.component.clone(),
            reporting_instance: self.source.host.clone(),
            ..Event::default()
        };
        loop {
            let name = lock(&self.known).name(&object);
            event.metadata.name = Some(name.clone());
            match self.client.create(&event).await {
                Ok(_) => return Ok(name),
                // Another recorder created one at the same moment.
                Err(status) if status.is_already_exists() && tries < NAMES => tries += 1,
                Err(status) => return Err(status),
            }
        }
    }
}

impl Known {
    fn new(env: Env) -> Known {
        Known { env, seen: HashMap::new(), similar: HashMap::new(), allowed: HashMap::new(), last: 0 }
    }

    /// Counts an event; returns its key, and the name and count of the written one. `None`: its object has too many.
    fn take_in(&mut self, told: &mut Told) -> Option<(Same, Option<(String, i32)>)> {
        let now = self.env.now();
        let same = self.correlate(told, now);
        let allowed = self.allow(&same.0.0, now);
        let known = self.seen.get_mut(&same).map(|(name, count)| {
            *count += 1;
            (name.clone(), *count)
        });
        if allowed {
            return Some((same, known));
        }
        // The next one that is written includes it in its count.
        tracing::debug!(object = same.0.0, reason = told.reason, "an event is left out: the object has too many");
        None
    }

    fn remember(&mut self, same: Same, name: String) {
        if self.seen.len() >= REMEMBERED {
            self.seen.clear();
        }
        self.seen.insert(same, (name, 1));
    }

    /// A name for an object's event, unique even within the same moment.
    fn name(&mut self, object: &str) -> String {
        self.last = self.env.now().as_nanosecond().max(self.last + 1);
        match format!("{object}.{:x}", self.last) {
            // As upstream for an object whose name leaves no room (client-go's GenerateEventName).
            name if name.len() > LONGEST_NAME => self.env.uid(),
            name => name,
        }
    }

    /// Whether an object may have another event now.
    fn allow(&mut self, object: &str, now: Timestamp) -> bool {
        let refilled = |(tokens, since): (f64, Timestamp)| {
            let gained = now.duration_since(since).as_secs_f64() / REFILL.as_secs_f64();
            (tokens + gained.max(0.0)).min(BURST)
        };
        if self.allowed.len() >= REMEMBERED {
            self.allowed.retain(|_, known| refilled(*known) < BURST);
            forget_if_many(&mut self.allowed);
        }
        let tokens = self.allowed.get(object).map_or(BURST, |known| refilled(*known));
        let allowed = tokens >= 1.0;
        self.allowed.insert(object.to_owned(), (if allowed { tokens - 1.0 } else { tokens }, now));
        allowed
    }

    /// Whether the event is one of many that differ only in their message: then its message says so.
    fn correlate(&mut self, told: &mut Told, now: Timestamp) -> Same {
        let about = &told.about;
        let object = about.uid.clone().or_else(|| about.name.clone()).unwrap_or_default();
        let similar: Similar = (object, about.field_path.clone().unwrap_or_default(), told.kind, told.reason.clone());
        if self.similar.len() >= REMEMBERED {
            self.similar.retain(|_, (_, last)| now.duration_since(*last) < SILENCE);
            forget_if_many(&mut self.similar);
        }
        let (messages, last) = self.similar.entry(similar.clone()).or_insert_with(|| (HashSet::new(), now));
        if now.duration_since(*last) >= SILENCE {
            messages.clear();
        }
        *last = now;
        if messages.len() < SIMILAR {
            messages.insert(told.message.clone());
        }
        if messages.len() < SIMILAR {
            return (similar, Some(told.message.clone()));
        }
        told.message = cut(format!("{COMBINED}{}", told.message));
        (similar, None)
    }
}

/// The limit of a DNS subdomain (RFC 1123).
const LONGEST_NAME: usize = 253;

/// The namespace of an object's events: `default` for cluster-scoped objects.
fn namespace_of(about: &ObjectReference) -> &str {
    about.namespace.as_deref().unwrap_or("default")
}

/// Consistent after a panic: each change is atomic.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Truncates a message to the limit.
fn cut(mut message: String) -> String {
    if message.len() > LONGEST {
        message.truncate(message.floor_char_boundary(LONGEST - MORE.len()));
        message.push_str(MORE);
    }
    message
}

/// A scan for expired entries is cheap if most are; otherwise everything is dropped.
fn forget_if_many<K, V>(known: &mut HashMap<K, V>) {
    if known.len() > REMEMBERED / 2 {
        known.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_an_end() {
        assert_eq!(cut("x".repeat(LONGEST)), "x".repeat(LONGEST));
        let long = cut("ä".repeat(LONGEST));
        assert!(long.len() <= LONGEST && long.ends_with("ä ..."), "{}", long.len());
    }
}
