//! The events recorder: what a component did, told as upstream's `Event` objects, repeated ones counted, similar ones
//! combined.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde_json::json;
use tokio::sync::mpsc;

use super::{Client, Typed};
use crate::api::Env;

/// Events that may wait for the server; behind that new ones are dropped, as upstream does.
const BACKLOG: usize = 1000;
/// How many recent events are remembered for counting repetitions.
const REMEMBERED: usize = 4096;
/// Events that differ in their message alone are combined into one from this many on, as upstream's correlator does; and
/// forgotten after so long a silence.
const SIMILAR: usize = 10;
const SILENCE: SignedDuration = SignedDuration::from_mins(10);
const COMBINED: &str = "(combined from similar events): ";
/// One object's events: so many at once, and one more after each such while, as upstream's spam filter lets them through.
const BURST: f64 = 25.0;
const REFILL: SignedDuration = SignedDuration::from_mins(5);
/// A message has at most so many bytes, as upstream's notes have; what is cut off is marked.
const LONGEST: usize = 1024;
const MORE: &str = " ...";
/// How often another name is tried for an event whose name is taken.
const NAMES: usize = 5;

/// Records events in the background. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    backlog: mpsc::Sender<Told>,
    dropped: Arc<AtomicU64>,
}

struct Told {
    about: ObjectReference,
    kind: &'static str,
    reason: String,
    message: String,
}

/// A reference to `object`, as events carry it.
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
    /// `component` is upstream's name of who acts (`kubelet`, `default-scheduler`); `host` the node, for node components.
    pub fn new(client: Client, env: Env, component: &str, host: Option<&str>) -> Recorder {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let source = EventSource { component: Some(component.to_owned()), host: host.map(str::to_owned) };
        let dropped = Arc::<AtomicU64>::default();
        let (seen, similar, allowed) = (HashMap::new(), HashMap::new(), HashMap::new());
        let writer = Writer { client, env, source, seen, similar, allowed, dropped: dropped.clone(), last: 0 };
        tokio::spawn(writer.run(receiver));
        Recorder { backlog: sender, dropped }
    }

    /// How many events were dropped because too many waited.
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
        let told = Told { about, kind, reason: reason.to_owned(), message: cut(message) };
        if self.backlog.try_send(told).is_err() && self.dropped.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(reason, "an event is dropped, as {BACKLOG} wait for the server: others may follow");
        }
    }
}

/// What makes two events similar: the object and its part, the type and the reason.
type Similar = (String, String, &'static str, String);
/// What makes two events the same: the message too; `None`: they were combined.
type Same = (Similar, Option<String>);

struct Writer {
    client: Client,
    env: Env,
    source: EventSource,
    /// The event's name and how often it has happened.
    seen: HashMap<Same, (String, i32)>,
    /// The messages of similar events, and when the last one came.
    similar: HashMap<Similar, (HashSet<String>, Timestamp)>,
    /// How many events each object may still have, and since when that is so.
    allowed: HashMap<String, (f64, Timestamp)>,
    dropped: Arc<AtomicU64>,
    /// The number in the last event's name.
    last: i128,
}

impl Writer {
    async fn run(mut self, mut told: mpsc::Receiver<Told>) {
        let mut known = 0;
        while let Some(one) = told.recv().await {
            let dropped = self.dropped.load(Ordering::Relaxed);
            if dropped > known {
                tracing::warn!(now = dropped - known, altogether = dropped, "events were dropped: too many waited");
                known = dropped;
            }
            if let Err(status) = self.write(one).await {
                tracing::debug!(%status, "an event was not written");
            }
        }
    }

    /// Whether an object may have one more event now.
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

    /// Whether the event is one more of many that differ in their message alone: then its message says so.
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

    async fn write(&mut self, mut told: Told) -> Result<(), crate::api::Status> {
        let same = self.correlate(&mut told, self.env.now());
        if !self.allow(&same.0.0, self.env.now()) {
            tracing::debug!(object = same.0.0, reason = told.reason, "an event is left out: the object has too many");
            // The next one that is written counts it too.
            if let Some((_, count)) = self.seen.get_mut(&same) {
                *count += 1;
            }
            return Ok(());
        }
        let about = &told.about;
        let now = Time(self.env.now());
        let namespace = about.namespace.clone().unwrap_or_else(|| "default".into());
        if let Some((name, count)) = self.seen.get_mut(&same) {
            *count += 1;
            let patch = json!({ "count": *count, "lastTimestamp": now, "message": told.message });
            match self.client.merge::<Event>(Some(&namespace), name, None, patch).await {
                Err(status) if status.is_not_found() => self.seen.remove(&same),
                other => return other.map(drop),
            };
        }
        let object = about.name.clone().unwrap_or_else(|| "unknown".to_owned());
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
        let name = loop {
            // Events of one moment have names of their own all the same.
            self.last = self.env.now().as_nanosecond().max(self.last + 1);
            let name = match format!("{object}.{:x}", self.last) {
                // As upstream does for an object whose name leaves no room (client-go's GenerateEventName).
                name if name.len() > LONGEST_NAME => self.env.uid(),
                name => name,
            };
            event.metadata.name = Some(name.clone());
            match self.client.create(&event).await {
                Ok(_) => break name,
                // Another recorder's, of the same moment.
                Err(status) if status.is_already_exists() && tries < NAMES => tries += 1,
                Err(status) => return Err(status),
            }
        };
        if self.seen.len() >= REMEMBERED {
            self.seen.clear();
        }
        self.seen.insert(same, (name, 1));
        Ok(())
    }
}

/// A DNS subdomain, as names are (RFC 1123).
const LONGEST_NAME: usize = 253;

/// A message as an event may have it.
fn cut(mut message: String) -> String {
    if message.len() > LONGEST {
        message.truncate(message.floor_char_boundary(LONGEST - MORE.len()));
        message.push_str(MORE);
    }
    message
}

/// Looking through all for what has become old costs little where most is; so where most is not, all is forgotten.
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
