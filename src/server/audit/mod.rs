//! The audit log: who requested what, when, from where, and the response, as a [`policy`] says.
//!
//! Each request that enters the pipeline ([`super::Server::handle`], [`super::Server::watch`]) has an [`Entry`], which becomes
//! [`event`]s at its stages; faces report what they answer themselves (non-resource paths, refusals before the pipeline) with
//! [`Audit::face`]. A [`writer`] thread writes the events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::authorize::attributes::Attributes;
use podwright_api::kinds::registry::Kinds;
use podwright_api::request::{Body, Origin};
use podwright_api::{Env, Request, Response, Status, User, Verb};

mod event;
mod policy;
mod writer;

use event::{Answer, Event, Subject};
pub use policy::Policy;
use policy::{Level, Stage};
pub use writer::LogTarget;
use writer::Writer;

/// Upstream's annotation of a truncated event.
const TRUNCATED: &str = "audit.k8s.io/truncated";

/// What a policy looks at. Unset strings are empty; a bare path is a non-resource request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    pub user: Option<&'a User>,
    pub verb: &'a str,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub path: &'a str,
    /// The impersonated user, if any.
    pub acting: Option<&'a User>,
}

/// A policy and where its events go.
pub struct Audit {
    policy: Policy,
    writer: Writer,
    env: Env,
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an audit log")
    }
}

/// The events of one request; none after it is dropped.
pub(super) struct Entry {
    audit: Arc<Audit>,
    subject: Arc<Subject>,
    omit: Vec<Stage>,
    annotations: Mutex<BTreeMap<String, String>>,
    request: Option<Bytes>,
    /// The final event, if still due.
    ending: Option<(u16, Option<Status>)>,
}

impl Audit {
    pub fn open(policy: Policy, place: LogTarget, env: Env) -> std::io::Result<Audit> {
        Ok(Audit { policy, writer: Writer::start(place)?, env })
    }

    /// The entry of a request to the pipeline; `None` if the policy does not log it.
    pub(super) fn begin(self: &Arc<Audit>, request: &Request, kinds: &Kinds) -> Option<Entry> {
        self.entry(request, kinds, request.body.as_ref())
    }

    /// Logs a request to the pipeline that is refused for lack of room, so its body is not copied.
    pub(super) fn turned_away(self: &Arc<Audit>, request: &Request, kinds: &Kinds, why: &Status) {
        if let Some(entry) = self.entry(request, kinds, None) {
            entry.end(&Err(why.clone()));
        }
    }

    /// `body`: what is logged of it, if the policy asks for it.
    fn entry(self: &Arc<Audit>, request: &Request, kinds: &Kinds, body: Option<&Value>) -> Option<Entry> {
        let kind = kinds.lookup(&request.resource);
        let named = match kind {
            Some(kind) => Named { group: kind.group, version: kind.version, plural: kind.plural },
            None => Named::of_others(&request.resource),
        };
        let origin = request.origin.as_deref();
        if let Some(origin) = origin {
            origin.told();
        }
        let of_body = |field: &str| request.body.as_ref().and_then(|body| body["metadata"][field].as_str());
        let created = request.verb == Verb::Create && request.subresource.is_none();
        let namespace = request.namespace.as_deref().or(of_body("namespace").filter(|_| created)).unwrap_or("");
        let name = request.name.as_deref().or(of_body("name").filter(|_| created)).unwrap_or("");
        let subresource = request.subresource.as_deref().unwrap_or("");
        let caller = origin.and_then(|origin| origin.caller.get()).filter(|caller| **caller != request.user);
        let facts = Facts {
            // Upstream's rules match the user before impersonation.
            user: Some(caller.unwrap_or(&request.user)),
            verb: verb(request),
            group: named.group,
            version: named.version,
            resource: named.plural,
            subresource,
            namespace: if kind.is_some_and(|kind| !kind.namespaced) { "" } else { namespace },
            name,
            path: "",
            acting: None,
        };
        let verdict = self.policy.of(&facts);
        if verdict.level == Level::None {
            return None;
        }
        let own = || match named.version {
            "" => query(request),
            _ => format!("{}{}", path(&named, &facts), query(request)),
        };
        let subject = Subject {
            uri: origin.filter(|o| !o.uri.is_empty()).map_or_else(own, |origin| origin.uri.clone()),
            level: verdict.level,
            omit_managed_fields: verdict.omit_managed_fields,
            ..self.subject(origin, &facts, caller.map(|_| &request.user))
        };
        let request = body.filter(|_| verdict.level >= Level::Request).map(|body| Bytes::from(body.to_string()));
        let entry = Entry {
            audit: self.clone(),
            subject: Arc::new(subject),
            omit: verdict.omit_stages,
            annotations: Mutex::new(cut(origin)),
            request,
            ending: None,
        };
        // RequestReceived is logged together with the response.
        entry.tell(Stage::RequestReceived, entry.subject.received, 0, None, None);
        Some(entry)
    }

    /// Logs what a face answered itself.
    pub(super) fn face(self: &Arc<Audit>, origin: &Origin, facts: &Facts<'_>, code: u16, failure: Option<&Status>) {
        let verdict = self.policy.of(facts);
        if verdict.level == Level::None {
            return;
        }
        let subject = Subject { level: verdict.level, ..self.subject(Some(origin), facts, facts.acting) };
        let entry = Entry {
            audit: self.clone(),
            subject: Arc::new(subject),
            omit: verdict.omit_stages,
            annotations: Mutex::new(cut(Some(origin))),
            request: None,
            ending: None,
        };
        if facts.user.is_some() {
            let allowed = code != 403;
            entry.decided(allowed, failure.filter(|_| !allowed).map_or("", |status| &status.message));
        }
        entry.tell(Stage::RequestReceived, entry.subject.received, 0, None, None);
        entry.tell(Stage::ResponseComplete, self.env.now(), code, failure.cloned(), None);
    }

    fn subject(&self, origin: Option<&Origin>, facts: &Facts<'_>, impersonated: Option<&User>) -> Subject {
        let own = "127.0.0.1".to_owned();
        Subject {
            id: origin.map_or_else(|| self.env.uid(), |origin| origin.id.clone()),
            received: origin.map_or_else(|| self.env.now(), |origin| origin.received),
            uri: origin.map_or_else(String::new, |origin| origin.uri.clone()),
            verb: facts.verb.to_owned(),
            user: facts.user.cloned(),
            impersonated: impersonated.cloned(),
            sources: origin.map_or_else(|| vec![own], |origin| origin.sources.clone()),
            user_agent: origin.map_or_else(|| "podwright".to_owned(), |origin| origin.user_agent.clone()),
            object: if facts.resource.is_empty() { Value::Null } else { object_ref(facts) },
            ..Subject::default()
        }
    }
}

impl Entry {
    /// Records the authorizers' decision.
    pub fn decided(&self, allowed: bool, reason: &str) {
        let mut annotations = self.annotations.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let decision = if allowed { "allow" } else { "forbid" };
        annotations.insert("authorization.k8s.io/decision".into(), decision.into());
        annotations.insert("authorization.k8s.io/reason".into(), reason.into());
    }

    /// Records admission's annotations.
    pub fn annotate(&self, more: BTreeMap<String, String>) {
        self.annotations.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).extend(more);
    }

    /// Logs the response of a request.
    pub fn end(self, outcome: &Result<Response, Status>) {
        let now = self.audit.env.now();
        let whole = self.subject.level >= Level::RequestResponse;
        match outcome {
            Ok(response) => {
                let code = match &response.body {
                    Body::Object { created: true, .. } => 201,
                    Body::Status(status) => status.http_code(),
                    _ => 200,
                };
                let answer = match &response.body {
                    _ if !whole => None,
                    Body::Object { bytes, .. } => Some(Answer::Object(bytes.clone())),
                    Body::List(list) => Some(Answer::List(list.clone())),
                    Body::Status(status) => Some(Answer::Status((**status).clone())),
                    Body::Stream { .. } => None,
                };
                self.tell(Stage::ResponseComplete, now, code, None, answer);
            }
            Err(status) => {
                let answer = whole.then(|| Answer::Status(status.clone()));
                self.tell(Stage::ResponseComplete, now, status.code, Some(status.clone()), answer);
            }
        }
    }

    /// The response has started and continues: its end is logged when this is dropped.
    pub fn goes_on(mut self, code: u16, origin: Option<&Origin>) {
        self.tell(Stage::ResponseStarted, self.audit.env.now(), code, None, None);
        self.ending = Some((code, None));
        if let Some(origin) = origin {
            origin.hold(Box::new(self));
        }
    }

    fn tell(&self, stage: Stage, at: Timestamp, code: u16, failure: Option<Status>, response: Option<Answer>) {
        if self.omit.contains(&stage) {
            return;
        }
        let annotations = self.annotations.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let request = self.request.clone().filter(|_| stage != Stage::RequestReceived);
        let subject = self.subject.clone();
        self.audit.writer.write(Event { subject, stage, at, annotations, code, failure, request, response });
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some((code, failure)) = self.ending.take() {
            self.tell(Stage::ResponseComplete, self.audit.env.now(), code, failure, None);
        }
    }
}

/// The initial annotations: whether the event is truncated.
fn cut(origin: Option<&Origin>) -> BTreeMap<String, String> {
    origin.filter(|origin| origin.more_sources).map(|_| (TRUNCATED.to_owned(), "true".to_owned())).into_iter().collect()
}

/// The verb as rules name it: sessions use get or create.
fn verb(request: &Request) -> &'static str {
    match (request.verb, request.subresource.as_deref()) {
        (Verb::Connect, Some("exec" | "attach" | "portforward")) => "create",
        (Verb::Connect, _) => "get",
        (verb, _) => verb.as_str(),
    }
}

/// The names of a resource.
struct Named<'a> {
    group: &'a str,
    version: &'a str,
    plural: &'a str,
}

impl Named<'_> {
    /// A resource that is no kind here: those of other servers are named `things.ext.example.com/v1`.
    fn of_others(resource: &str) -> Named<'_> {
        let split = resource.rsplit_once('/').and_then(|(named, version)| Some((named.split_once('.')?, version)));
        match split {
            Some(((plural, group), version)) => Named { group, version, plural },
            None => Named { group: "", version: "", plural: resource },
        }
    }
}

/// The REST path of a request from another face or the server itself.
fn path(named: &Named<'_>, facts: &Facts<'_>) -> String {
    let mut path = match named.group {
        "" => format!("/api/{}", named.version),
        group => format!("/apis/{group}/{}", named.version),
    };
    if !facts.namespace.is_empty() {
        path = format!("{path}/namespaces/{}", facts.namespace);
    }
    path = format!("{path}/{}", named.plural);
    // On create the name is in the body.
    let name = if facts.verb == "create" && facts.subresource.is_empty() { "" } else { facts.name };
    for part in [name, facts.subresource].into_iter().filter(|part| !part.is_empty()) {
        path = format!("{path}/{part}");
    }
    path
}

fn query(request: &Request) -> String {
    if request.verb == Verb::Watch { "?watch=true".to_owned() } else { String::new() }
}

fn object_ref(facts: &Facts<'_>) -> Value {
    let mut told = json!({"resource": facts.resource});
    for (field, word) in [
        ("namespace", facts.namespace),
        ("name", facts.name),
        ("apiGroup", facts.group),
        ("apiVersion", facts.version),
        ("subresource", facts.subresource),
    ] {
        if !word.is_empty() {
            told[field] = word.into();
        }
    }
    told
}

/// The reason in a refusal, beyond the standard sentence.
pub(super) fn reason_of<'a>(status: &'a Status, asked: &Attributes<'_>) -> &'a str {
    let all = status.message.as_str();
    all.split_once(&format!("{}: ", asked.refusal())).map_or("", |(_, reason)| reason)
}
