//! An extension server's things, kept in memory: made, read, listed, watched (what has happened so far), patched and deleted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use hyper::{Method, Uri};
use podwright::server::SessionLimits;
use serde_json::{Value, json};

use super::world::{Answer, NAME, World};

#[derive(Default)]
struct Things {
    revision: u64,
    objects: BTreeMap<(String, String), Value>,
    events: Vec<(u64, Value)>,
}

impl Things {
    fn put(&mut self, kind: &str, namespace: &str, name: &str, mut thing: Value) -> (u16, Value) {
        self.revision += 1;
        thing["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let key = (namespace.to_owned(), name.to_owned());
        self.events.push((self.revision, json!({"type": kind, "object": thing})));
        match kind {
            "DELETED" => drop(self.objects.remove(&key)),
            _ => drop(self.objects.insert(key, thing.clone())),
        }
        (if kind == "ADDED" { 201 } else { 200 }, thing)
    }

    fn answer(&mut self, method: &Method, uri: &Uri, body: &str) -> (u16, Value) {
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        let rest = uri.path().strip_prefix("/apis/ext.example.com/v1").unwrap_or("");
        let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
        let (namespace, name) = match parts.as_slice() {
            ["namespaces", namespace, "things", name] => (Some(*namespace), Some(*name)),
            ["namespaces", namespace, "things"] => (Some(*namespace), None),
            ["things"] => (None, None),
            _ => return (404, failure(404, "NotFound", "")),
        };
        let Some(name) = name else {
            return match *method {
                Method::POST => {
                    let mut thing = body;
                    let (namespace, name) =
                        (namespace.unwrap(), thing["metadata"]["name"].as_str().unwrap().to_owned());
                    if self.objects.contains_key(&(namespace.to_owned(), name.clone())) {
                        return (409, failure(409, "AlreadyExists", &name));
                    }
                    thing["metadata"]["namespace"] = namespace.into();
                    thing["metadata"]["uid"] = format!("uid-{}", self.revision).into();
                    self.put("ADDED", namespace, &name, thing)
                }
                _ => {
                    let fits = |(of, _): &&(String, String)| namespace.is_none_or(|namespace| namespace == of);
                    let items: Vec<&Value> = self.objects.keys().filter(fits).map(|key| &self.objects[key]).collect();
                    let revision = self.revision.to_string();
                    (200, json!({"kind": "ThingList", "metadata": {"resourceVersion": revision}, "items": items}))
                }
            };
        };
        let namespace = namespace.unwrap();
        let Some(known) = self.objects.get(&(namespace.to_owned(), name.to_owned())).cloned() else {
            return (404, failure(404, "NotFound", name));
        };
        match *method {
            Method::GET => (200, known),
            Method::DELETE => self.put("DELETED", namespace, name, known),
            _ => {
                let mut new = known;
                json_patch::merge(&mut new, &body);
                self.put("MODIFIED", namespace, name, new)
            }
        }
    }
}

fn failure(code: u16, reason: &str, name: &str) -> Value {
    let details = json!({"group": "ext.example.com", "kind": "things", "name": name});
    json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": reason, "details": details})
}

/// A world whose extension server serves things with these verbs.
pub async fn world(verbs: &'static [&'static str]) -> World {
    let things: Arc<Mutex<Things>> = Arc::default();
    let answer: Answer = Arc::new(move |method, uri, body| {
        let mut things = things.lock().unwrap();
        let query = uri.query().unwrap_or("");
        match uri.path() {
            "/apis/ext.example.com/v1" => {
                let thing = json!({"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": verbs});
                (200, json!({"kind": "APIResourceList", "resources": [thing]}).to_string())
            }
            path if path.starts_with("/openapi") => (404, "{}".into()),
            // It tells what has happened, and ends.
            path if path.ends_with("/things") && query.contains("watch=true") => {
                let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
                let from: u64 = from.and_then(|text| text.parse().ok()).unwrap_or(0);
                let new = things.events.iter().filter(|(at, _)| *at > from);
                (200, new.map(|(_, event)| format!("{event}\n")).collect())
            }
            _ => {
                let (code, value) = things.answer(method, uri, body);
                (code, value.to_string())
            }
        }
    });
    let world = World::of(SessionLimits::default(), answer).await;
    world.serve().await;
    world.register(json!({})).await;
    world.until(NAME, "Passed").await;
    world
}

pub fn thing(name: &str) -> Value {
    json!({"apiVersion": "ext.example.com/v1", "kind": "Thing", "metadata": {"name": name}, "spec": {"size": 1}})
}
