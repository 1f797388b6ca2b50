//! One event of the log, and its line: `Event` of audit.k8s.io/v1.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::policy::{Level, Stage};
use podwright_api::request::List;
use podwright_api::{Status, User};

/// The subject of one request and its user; the same in all of its events.
#[derive(Debug, Default)]
pub struct Subject {
    pub id: String,
    pub received: Timestamp,
    pub uri: String,
    pub verb: String,
    /// The authenticated user, if any.
    pub user: Option<User>,
    pub impersonated: Option<User>,
    pub sources: Vec<String>,
    pub user_agent: String,
    /// `objectRef`; null if the request is not about an object.
    pub object: Value,
    pub level: Level,
    pub omit_managed_fields: bool,
}

/// A response body, encoded only when it is written.
#[derive(Clone, Debug)]
pub enum Answer {
    Object(Bytes),
    List(List),
    Status(Status),
}

/// What is handed to the writer.
#[derive(Debug)]
pub struct Event {
    pub subject: Arc<Subject>,
    pub stage: Stage,
    pub at: Timestamp,
    pub annotations: BTreeMap<String, String>,
    /// The HTTP status code; 0 before there is one.
    pub code: u16,
    pub failure: Option<Status>,
    pub request: Option<Bytes>,
    pub response: Option<Answer>,
}

impl Subject {
    fn size(&self) -> usize {
        let all = |texts: &[String]| texts.iter().map(String::len).sum::<usize>();
        let of_user = |user: &User| {
            let extra: usize = user.extra.iter().map(|(key, values)| key.len() + all(values)).sum();
            user.name.len() + user.uid.len() + all(&user.groups) + extra
        };
        let users: usize = self.user.iter().chain(&self.impersonated).map(of_user).sum();
        self.uri.len() + self.user_agent.len() + all(&self.sources) + users
    }
}

impl Event {
    /// About how many bytes it holds.
    pub fn size(&self) -> usize {
        let response = match &self.response {
            Some(Answer::Object(bytes)) => bytes.len(),
            Some(Answer::List(list)) => list.items.iter().map(Bytes::len).sum(),
            _ => 0,
        };
        let annotations: usize = self.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        let failure = self.failure.as_ref().map_or(0, |status| status.message.len());
        let request = self.request.as_ref().map_or(0, Bytes::len);
        1024 + response + request + annotations + failure + self.subject.size()
    }

    /// Its JSON, without the newline.
    pub fn line(&self) -> String {
        let subject = &*self.subject;
        let mut event = Map::new();
        let mut put = |field: &str, value: Value| {
            let empty = match &value {
                Value::Null => true,
                Value::String(text) => text.is_empty(),
                Value::Array(items) => items.is_empty(),
                Value::Object(fields) => fields.is_empty(),
                _ => false,
            };
            if !empty {
                event.insert(field.to_owned(), value);
            }
        };
        put("kind", "Event".into());
        put("apiVersion", "audit.k8s.io/v1".into());
        put("level", subject.level.as_str().into());
        put("auditID", subject.id.as_str().into());
        put("stage", self.stage.as_str().into());
        put("requestURI", subject.uri.as_str().into());
        put("verb", subject.verb.as_str().into());
        put("user", subject.user.as_ref().map_or(json!({}), user));
        put("impersonatedUser", subject.impersonated.as_ref().map_or(Value::Null, user));
        put("sourceIPs", json!(subject.sources));
        put("userAgent", subject.user_agent.as_str().into());
        put("objectRef", subject.object.clone());
        put("responseStatus", self.status());
        put("requestObject", self.request.as_deref().map_or(Value::Null, |body| self.told(parsed(body))));
        put("responseObject", self.response.as_ref().map_or(Value::Null, |answer| self.told(value(answer))));
        put("requestReceivedTimestamp", micro(subject.received).into());
        put("stageTimestamp", micro(self.at).into());
        put("annotations", json!(self.annotations));
        Value::Object(event).to_string()
    }

    fn status(&self) -> Value {
        match &self.failure {
            _ if self.code == 0 => Value::Null,
            None => json!({"metadata": {}, "code": self.code}),
            Some(status) => {
                let mut told = serde_json::to_value(status).unwrap_or_default();
                if let Some(fields) = told.as_object_mut() {
                    fields.shift_remove("kind");
                    fields.shift_remove("apiVersion");
                }
                told
            }
        }
    }

    fn told(&self, mut body: Value) -> Value {
        if self.subject.omit_managed_fields {
            let strip = |object: &mut Value| {
                if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                    metadata.shift_remove("managedFields");
                }
            };
            strip(&mut body);
            body.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten().for_each(strip);
        }
        body
    }
}

fn user(user: &User) -> Value {
    // Only strings, which always encode.
    serde_json::to_value(user).unwrap_or_default()
}

fn value(answer: &Answer) -> Value {
    match answer {
        Answer::Object(bytes) => parsed(bytes),
        Answer::List(list) => parsed(&crate::rest::lists::list(list)),
        Answer::Status(status) => serde_json::to_value(status).unwrap_or_default(),
    }
}

/// Encoded by the server itself, so it decodes.
fn parsed(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_default()
}

/// RFC 3339 with microseconds, upstream's MicroTime.
fn micro(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_weighs_what_its_client_has_chosen() {
        let event = |subject: Subject, annotations: &[(&str, &str)]| Event {
            subject: Arc::new(subject),
            stage: Stage::RequestReceived,
            at: Timestamp::UNIX_EPOCH,
            annotations: annotations.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
            code: 0,
            failure: None,
            request: None,
            response: None,
        };
        let long = || "x".repeat(10_000);
        let user = |groups: Vec<String>| Some(User::new("ann", groups));
        let none = event(Subject::default(), &[]).size();
        for (heavy, what) in [
            (event(Subject { uri: long(), ..Subject::default() }, &[]), "its URI"),
            (event(Subject { user_agent: long(), ..Subject::default() }, &[]), "its agent"),
            (event(Subject { sources: vec![long()], ..Subject::default() }, &[]), "where it comes from"),
            (event(Subject { user: user(vec![long()]), ..Subject::default() }, &[]), "its user's groups"),
            (event(Subject { impersonated: user(vec![long()]), ..Subject::default() }, &[]), "whom it acts as"),
            (event(Subject::default(), &[("a", &long())]), "annotations"),
        ] {
            assert!(heavy.size() >= none + 10_000, "{what}");
        }
    }
}
