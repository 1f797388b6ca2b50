//! What an agent has reported about its Node, to compare it with the current object.

use k8s_openapi::api::core::v1::Node;
use serde_json::{Map, Value};

use podwright_api::protections::CONFLICTING_TABLES;

/// The conditions that the agent owns.
const CONDITIONS: [&str; 5] = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready", CONFLICTING_TABLES];

/// The Node after this agent's last report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    pub uid: String,
    pub revision: u64,
    /// The status reported by the agent, without times.
    status: Value,
}

/// How a Node differs from the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amiss {
    /// It was recreated.
    Object,
    Labels,
    Status,
}

impl Told {
    /// After the report `said`, which the server answered with `node`.
    pub fn of(said: &Value, node: &Node) -> Told {
        let status = serde_json::to_value(&node.status).unwrap_or_default();
        Told {
            uid: node.metadata.uid.clone().unwrap_or_default(),
            revision: revision(node),
            status: part(said, &status),
        }
    }

    /// Compares it with this version or a newer one; an older one is ignored. (What others have written just before a report is in the
    /// version that it has made, and was not known to who made it.)
    pub fn amiss(&self, node: &Node) -> Option<Amiss> {
        if self.uid.is_empty() {
            return None;
        }
        if node.metadata.uid.as_ref() != Some(&self.uid) {
            return Some(Amiss::Object);
        }
        let status = serde_json::to_value(&node.status).unwrap_or_default();
        let differs =
            || part(&self.status, &status) != self.status || !handed_on(&self.status["capacity"], node).is_empty();
        (revision(node) >= self.revision && differs()).then_some(Amiss::Status)
    }
}

/// A Node's extended resources, set by others, if allocatable lacks them: the agent copies them, as kubelet does, and removes those
/// no longer set (null). `own`: the capacity that the agent reports.
pub fn handed_on(own: &Value, node: &Node) -> Map<String, Value> {
    let resources = |field: &str| match serde_json::to_value(&node.status).unwrap_or_default().get_mut(field) {
        Some(Value::Object(all)) => std::mem::take(all),
        _ => Map::new(),
    };
    let (mut capacity, allocatable) = (resources("capacity"), resources("allocatable"));
    capacity.retain(|name, _| own.get(name).is_none());
    let gone = allocatable.keys().filter(|name| own.get(name.as_str()).is_none() && !capacity.contains_key(*name));
    let gone: Vec<_> = gone.map(|name| (name.clone(), Value::Null)).collect();
    capacity.into_iter().filter(|(name, there)| allocatable.get(name) != Some(there)).chain(gone).collect()
}

/// `metadata.resourceVersion` as a number; 0 for an object not stored on a server.
pub fn revision(node: &Node) -> u64 {
    node.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// The fields of a status that `said` has too: the rest belongs to others, as do resources that the agent does not know. Conditions
/// are compared without times.
fn part(said: &Value, there: &Value) -> Value {
    let Some(said) = said.as_object() else { return there.clone() };
    let mut part = Map::new();
    for (field, said) in said {
        let there = &there[field];
        let value = match field.as_str() {
            "conditions" => {
                Value::Object(CONDITIONS.iter().map(|kind| ((*kind).to_owned(), condition(there, kind))).collect())
            }
            _ => self::part(said, there),
        };
        part.insert(field.clone(), value);
    }
    Value::Object(part)
}

/// The status and reason of a condition, in a list or in the result of [`part`].
fn condition(list: &Value, kind: &str) -> Value {
    let all = list.as_array().into_iter().flatten();
    let found = all.into_iter().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null);
    Value::Array(vec![found["status"].clone(), found["reason"].clone()])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(uid: &str, revision: u64, status: Value) -> Node {
        let node = json!({ "metadata": { "name": "n", "uid": uid, "resourceVersion": revision.to_string() }, "status": status });
        serde_json::from_value(node).unwrap()
    }

    fn status(ready: &str, at: &str) -> Value {
        let of = |kind: &str, status: &str| json!({ "type": kind, "status": status, "reason": "R", "lastHeartbeatTime": at, "lastTransitionTime": at });
        json!({
            "capacity": { "cpu": "2", "memory": "1Ki" },
            "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }],
            "conditions": [of("MemoryPressure", "False"), of("DiskPressure", "False"), of("PIDPressure", "False"), of("Ready", ready)],
        })
    }

    #[test]
    fn what_others_say_that_a_node_has_is_handed_on() {
        let own = json!({"cpu": "2"});
        let of = |capacity: Value, allocatable: Value| {
            Value::Object(handed_on(&own, &node("a", 1, json!({"capacity": capacity, "allocatable": allocatable}))))
        };
        assert_eq!(of(json!({"cpu": "2", "a/b": "4"}), json!({"cpu": "1"})), json!({"a/b": "4"}));
        assert_eq!(of(json!({"cpu": "2", "a/b": "5"}), json!({"cpu": "1", "a/b": "4"})), json!({"a/b": "5"}));
        assert_eq!(of(json!({"cpu": "2", "a/b": "4"}), json!({"cpu": "1", "a/b": "4"})), json!({}));
        assert_eq!(of(json!({"cpu": "2"}), json!({"cpu": "1", "a/b": "4"})), json!({"a/b": null}));
    }

    #[test]
    fn what_others_make_of_the_node_is_seen_and_what_is_theirs_is_not() {
        let (now, later) = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z");
        let said = status("True", now);
        let told = Told::of(&said, &node("a", 10, said.clone()));
        let changed = |change: fn(&mut Value)| {
            let mut status = status("True", later);
            change(&mut status);
            told.amiss(&node("a", 11, status))
        };
        assert_eq!(changed(|_| {}), None, "times alone");
        assert_eq!(
            changed(|s| s["conditions"].as_array_mut().unwrap().push(json!({"type": "Mine", "status": "True"}))),
            None
        );
        let hands_on = |s: &mut Value| {
            s["capacity"]["example.com/dongle"] = "4".into();
            s["allocatable"] = json!({"example.com/dongle": "4"});
        };
        assert_eq!(changed(hands_on), None);
        assert_eq!(changed(|s| s["images"] = json!([])), None);
        let changes: [fn(&mut Value); 8] = [
            |s| s["capacity"]["example.com/dongle"] = "4".into(),
            |s| s["allocatable"] = json!({"example.com/dongle": "4"}),
            |s| s["conditions"][3]["status"] = "Unknown".into(),
            |s| s["conditions"] = json!([]),
            |s| s["addresses"] = json!([]),
            |s| s["capacity"]["cpu"] = "3".into(),
            |s| s["capacity"] = Value::Null,
            |s| *s = Value::Null,
        ];
        for change in changes {
            assert_eq!(changed(change), Some(Amiss::Status));
        }
        // What was written between what the report goes by and the report is in its answer.
        let mut answer = said.clone();
        answer["capacity"]["example.com/dongle"] = "4".into();
        answer["allocatable"] = json!({"example.com/dongle": "3"});
        let overtaken = node("a", 10, answer);
        assert_eq!(Told::of(&said, &overtaken).amiss(&overtaken), Some(Amiss::Status));
        assert_eq!(told.amiss(&node("a", 10, said.clone())), None, "the answer itself");
        // A version from before the report that the watch delivers late.
        assert_eq!(told.amiss(&node("a", 9, status("Unknown", now))), None);
        assert_eq!(told.amiss(&node("b", 12, said)), Some(Amiss::Object));
        assert_eq!(Told::default().amiss(&node("b", 12, Value::Null)), None, "nothing was told yet");
    }
}
