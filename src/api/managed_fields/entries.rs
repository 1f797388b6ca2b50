//! The entries of `metadata.managedFields`: one for each manager, operation, version and subresource.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::set::Set;
use crate::Object;

/// How a manager acquired its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// The manager of a write, and the operation. An applier is the same in all versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    pub manager: String,
    pub operation: Operation,
    pub api_version: String,
    /// "" for the object itself.
    pub subresource: String,
}

impl Who {
    pub fn is(&self, other: &Who) -> bool {
        let alike = self.manager == other.manager && self.operation == other.operation;
        let version = self.operation == Operation::Apply || self.api_version == other.api_version;
        alike && version && self.subresource == other.subresource
    }

    /// In the form of conflicts: `"kubectl" using apps/v1`.
    pub fn shown(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == Operation::Update {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }
}

/// One manager's fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub who: Who,
    /// When the set last changed, RFC 3339; "" if unknown.
    pub time: String,
    pub set: Set,
}

/// All managers of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Managed(pub Vec<Entry>);

/// From this many managers on, new ones cannot apply. Each write processes all of them, and appliers are never merged.
pub const MAX_MANAGERS: usize = 256;
/// Beyond those, and all updaters, only appliers are kept, up to this many.
const MAX_KNOWN: usize = 300;
/// How many updaters are distinguished; the oldest are merged.
const MAX_UPDATERS: usize = 10;
const ANCIENT: &str = "ancient-changes";

impl Managed {
    /// The entries of an object; `None` if they are malformed.
    pub fn of(object: &Object) -> Option<Managed> {
        match &object.0["metadata"]["managedFields"] {
            Value::Null => Some(Managed::default()),
            Value::Array(entries) if entries.len() > MAX_KNOWN => {
                let applying = entries.iter().filter(|entry| entry["operation"] == "Apply").take(MAX_KNOWN);
                applying.map(Entry::from_json).collect::<Option<_>>().map(Managed)
            }
            Value::Array(entries) => entries.iter().map(Entry::from_json).collect::<Option<_>>().map(Managed),
            _ => None,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn find(&self, who: &Who) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.who.is(who))
    }

    /// Sets a manager's fields; an empty set removes its entry.
    pub fn set(&mut self, who: &Who, set: Set, now: &str) {
        match self.0.iter_mut().find(|entry| entry.who.is(who)) {
            Some(entry) => {
                if entry.set != set || entry.who != *who {
                    *entry = Entry { who: who.clone(), time: now.to_owned(), set };
                }
            }
            None => self.0.push(Entry { who: who.clone(), time: now.to_owned(), set }),
        }
        self.0.retain(|entry| !entry.set.is_empty());
    }

    /// Merges the oldest updaters if there are too many, and sorts the entries in upstream's order.
    pub fn finish(&mut self) {
        let order = |e: &Entry| (e.who.operation, e.time.clone(), e.who.manager.clone(), e.who.subresource.clone());
        self.0.sort_by_cached_key(order);
        let updaters = self.0.iter().filter(|e| e.who.operation == Operation::Update).count();
        if updaters <= MAX_UPDATERS {
            return;
        }
        let (mut many, mut rest): (Vec<Entry>, Vec<Entry>) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|e| e.who.operation == Operation::Update && e.who.subresource.is_empty());
        let surplus = (updaters - MAX_UPDATERS + 1).min(many.len());
        // They differ only in version, so one for each remains.
        let mut ancient: BTreeMap<String, Entry> = BTreeMap::new();
        for old in many.drain(..surplus) {
            match ancient.get_mut(&old.who.api_version) {
                Some(entry) => {
                    entry.set = std::mem::take(&mut entry.set).union(&old.set);
                    entry.time = old.time;
                }
                None => {
                    let who = Who { manager: ANCIENT.into(), ..old.who };
                    ancient.insert(who.api_version.clone(), Entry { who, time: old.time, set: old.set });
                }
            }
        }
        rest.extend(ancient.into_values());
        rest.extend(many);
        rest.sort_by_cached_key(order);
        self.0 = rest;
    }

    /// As `metadata.managedFields`; `None` without managers.
    pub fn to_json(&self) -> Option<Value> {
        (!self.0.is_empty()).then(|| Value::Array(self.0.iter().map(Entry::to_json).collect()))
    }
}

impl Entry {
    fn from_json(entry: &Value) -> Option<Entry> {
        let text = |field: &str| entry[field].as_str().unwrap_or("").to_owned();
        let operation = match entry["operation"].as_str()? {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        let empty = Value::Object(Map::new());
        let fields = if entry["fieldsV1"].is_null() { &empty } else { &entry["fieldsV1"] };
        if !matches!(entry["fieldsType"].as_str(), Some("FieldsV1")) {
            return None;
        }
        let who = Who {
            manager: text("manager"),
            operation,
            api_version: text("apiVersion"),
            subresource: text("subresource"),
        };
        Some(Entry { who, time: text("time"), set: Set::from_json(fields)? })
    }

    fn to_json(&self) -> Value {
        let mut out = Map::new();
        let mut put = |field: &str, value: &str| {
            if !value.is_empty() {
                out.insert(field.to_owned(), value.into());
            }
        };
        put("apiVersion", &self.who.api_version);
        put("fieldsType", "FieldsV1");
        put("manager", &self.who.manager);
        put("operation", self.who.operation.name());
        put("subresource", &self.who.subresource);
        put("time", &self.time);
        out.insert("fieldsV1".into(), self.set.to_json());
        Value::Object(out)
    }
}
