//! The events recorder: what a component did, told as upstream's `Event` objects, repeated ones counted.

use std::collections::HashMap;

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

/// Records events in the background. Cheap to clone.
#[derive(Clone)]
pub struct Recorder(mpsc::Sender<Told>);

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
        tokio::spawn(Writer { client, env, source, seen: HashMap::new() }.run(receiver));
        Recorder(sender)
    }

    pub fn normal(&self, about: ObjectReference, reason: &str, message: impl Into<String>) {
        self.tell("Normal", about, reason, message.into());
    }

    pub fn warning(&self, about: ObjectReference, reason: &str, message: impl Into<String>) {
        self.tell("Warning", about, reason, message.into());
    }

    fn tell(&self, kind: &'static str, about: ObjectReference, reason: &str, message: String) {
        let told = Told { about, kind, reason: reason.to_owned(), message };
        if self.0.try_send(told).is_err() {
            tracing::warn!(reason, "an event was dropped: the recorder is behind or has ended");
        }
    }
}

/// What makes two events the same: the object, the type, the reason and the message.
type Same = (String, String, &'static str, String, String);

struct Writer {
    client: Client,
    env: Env,
    source: EventSource,
    /// The event's name and how often it has happened.
    seen: HashMap<Same, (String, i32)>,
}

impl Writer {
    async fn run(mut self, mut told: mpsc::Receiver<Told>) {
        while let Some(one) = told.recv().await {
            if let Err(status) = self.write(one).await {
                tracing::debug!(%status, "an event was not written");
            }
        }
    }

    async fn write(&mut self, told: Told) -> Result<(), crate::api::Status> {
        let about = &told.about;
        let object = about.uid.clone().or_else(|| about.name.clone()).unwrap_or_default();
        let path = about.field_path.clone().unwrap_or_default();
        let same: Same = (object, path, told.kind, told.reason.clone(), told.message.clone());
        let now = Time(self.env.now());
        let namespace = about.namespace.clone().unwrap_or_else(|| "default".into());
        if let Some((name, count)) = self.seen.get_mut(&same) {
            *count += 1;
            let patch = json!({ "count": *count, "lastTimestamp": now });
            match self.client.merge::<Event>(Some(&namespace), name, None, patch).await {
                Err(status) if status.is_not_found() => self.seen.remove(&same),
                other => return other.map(drop),
            };
        }
        let name = format!("{}.{:x}", about.name.as_deref().unwrap_or("unknown"), self.env.now().as_nanosecond());
        let event = Event {
            metadata: ObjectMeta { name: Some(name.clone()), namespace: Some(namespace), ..ObjectMeta::default() },
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
        self.client.create(&event).await?;
        if self.seen.len() >= REMEMBERED {
            self.seen.clear();
        }
        self.seen.insert(same, (name, 1));
        Ok(())
    }
}
