//! Plain objects: what was written, and so what may be read.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};

use super::{Dice, Outcome, list, write};
use crate::support::TestNode;

const NAMES: u64 = 12;

/// The possible values of an object: one, but more after an unanswered write. `None`: it does not exist.
type Allowed = Vec<Option<u64>>;

pub struct Facts {
    socket: PathBuf,
    maps: BTreeMap<String, Allowed>,
    replicas: Allowed,
    next: u64,
    acknowledged: u64,
}

impl Facts {
    pub fn new(node: &TestNode) -> Facts {
        Facts { socket: node.socket(), maps: BTreeMap::new(), replicas: vec![Some(0)], next: 0, acknowledged: 0 }
    }

    /// The Deployment's size, known after a check.
    pub fn replicas(&self) -> u64 {
        self.replicas[0].expect("it is never deleted")
    }

    /// Reads everything; it must match what was written.
    pub fn check(&mut self) {
        let maps = list(&self.socket, "configmaps").unwrap_or_else(|e| panic!("{e:?}"));
        let value = |object: &Value| object["data"]["value"].as_str().and_then(|text| text.parse::<u64>().ok());
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let mut found: BTreeMap<String, Option<u64>> = maps.iter().map(|o| (name(o), value(o))).collect();
        for (name, allowed) in &mut self.maps {
            let now = found.remove(name).flatten();
            assert!(allowed.contains(&now), "ConfigMap {name} is {now:?}, but was written as {allowed:?}");
            *allowed = vec![now];
        }
        found.remove("kube-root-ca.crt"); // every namespace has it from its controller
        found.remove("pair");
        let torn =
            |object: &&Value| object["metadata"]["name"] == "pair" && object["data"]["one"] != object["data"]["two"];
        assert!(maps.iter().find(torn).is_none(), "half a write: {maps:?}");
        assert!(found.is_empty(), "nobody made {found:?}");
        let deployments = list(&self.socket, "deployments").unwrap_or_else(|e| panic!("{e:?}"));
        let now = deployments.first().and_then(|d| d["spec"]["replicas"].as_u64());
        assert!(self.replicas.contains(&now), "the Deployment has {now:?} replicas, not {:?}", self.replicas);
        self.replicas = vec![now];
    }

    /// Creates, updates and deletes until the server dies.
    pub fn write(&mut self, mut dice: Dice, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let done = match dice.roll(8) {
                0 => self.scale(dice.roll(4)),
                1 => self.pair(if dice.roll(2) == 0 { "configmaps" } else { "secrets" }),
                _ => {
                    let name = format!("map-{}", dice.roll(NAMES));
                    self.change(name, dice.roll(3) == 0)
                }
            };
            if !done {
                return;
            }
            self.acknowledged += 1;
            dice.pause(20);
        }
    }

    fn change(&mut self, name: String, delete: bool) -> bool {
        self.next += 1;
        let allowed = self.maps.entry(name.clone()).or_insert_with(|| vec![None]);
        let wanted = Some(self.next).filter(|_| !delete || allowed[0].is_none());
        let mut params = json!({"resource": "configmaps", "namespace": "default", "name": name});
        let method = match (allowed[0], wanted) {
            (_, None) => "delete",
            (None, _) => "create",
            (Some(_), _) => "update",
        };
        if let Some(value) = wanted {
            params["body"] = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": "default"}, "data": {"value": value.to_string()}});
        }
        allowed.push(wanted);
        acknowledge(allowed, write(&self.socket, method, params))
    }

    /// For volumes: large enough that writing takes a moment.
    fn pair(&mut self, resource: &str) -> bool {
        self.next += 1;
        let value = format!("{}{}", self.next, "=".repeat(20_000));
        let field = if resource == "secrets" { "stringData" } else { "data" };
        let params = json!({"resource": resource, "namespace": "default", "name": "pair",
            "body": {field: {"one": value, "two": value}}, "options": {"patchType": "application/merge-patch+json"}});
        matches!(write(&self.socket, "patch", params), Outcome::Done(_))
    }

    fn scale(&mut self, replicas: u64) -> bool {
        self.replicas.push(Some(replicas));
        let params = json!({"resource": "deployments", "namespace": "default", "name": "app",
            "body": {"spec": {"replicas": replicas}},
            "options": {"patchType": "application/merge-patch+json"}});
        acknowledge(&mut self.replicas, write(&self.socket, "patch", params))
    }
}

/// An acknowledged write leaves only its value.
fn acknowledge(allowed: &mut Allowed, outcome: Outcome) -> bool {
    let done = matches!(outcome, Outcome::Done(_));
    if done {
        allowed.drain(..allowed.len() - 1);
    }
    done
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} plain writes acknowledged", self.acknowledged)
    }
}
