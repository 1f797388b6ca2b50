//! An API object as an untyped JSON tree, with accessors for its metadata.

use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::status::Status;

/// An API object: a JSON object with `apiVersion`, `kind` and `metadata`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Object(pub Value);

/// One entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    #[serde(default)]
    pub controller: Option<bool>,
    #[serde(default)]
    pub block_owner_deletion: Option<bool>,
}

impl Object {
    /// Decodes stored or received JSON bytes. No schema is applied.
    pub fn from_slice(bytes: &[u8]) -> Result<Object, Status> {
        match serde_json::from_slice(bytes) {
            Ok(value @ Value::Object(_)) => Ok(Object(value)),
            Ok(_) => Err(Status::bad_request("the object is not a JSON object")),
            Err(e) => Err(Status::bad_request(format!("the object is not valid JSON: {e}"))),
        }
    }

    /// Converts a typed object to the untyped form.
    pub fn from_typed<T: Serialize>(typed: &T) -> Result<Object, Status> {
        serde_json::to_value(typed).map(Object).map_err(|e| Status::bad_request(e.to_string()))
    }

    /// The typed view; unknown fields are dropped.
    pub fn typed<T: DeserializeOwned>(&self) -> Result<T, Status> {
        T::deserialize(&self.0).map_err(|e| Status::bad_request(e.to_string()))
    }

    /// Compact JSON.
    pub fn to_vec(&self) -> Vec<u8> {
        // A `Value` always encodes: its keys are strings and its numbers finite.
        serde_json::to_vec(&self.0).unwrap_or_default()
    }

    pub fn api_version(&self) -> &str {
        self.0["apiVersion"].as_str().unwrap_or("")
    }
    pub fn kind(&self) -> &str {
        self.0["kind"].as_str().unwrap_or("")
    }
    pub fn name(&self) -> &str {
        self.meta_str("name")
    }
    pub fn namespace(&self) -> Option<&str> {
        self.0["metadata"]["namespace"].as_str().filter(|s| !s.is_empty())
    }
    pub fn uid(&self) -> &str {
        self.meta_str("uid")
    }
    pub fn resource_version(&self) -> &str {
        self.meta_str("resourceVersion")
    }
    pub fn generation(&self) -> i64 {
        self.0["metadata"]["generation"].as_i64().unwrap_or(0)
    }
    pub fn labels(&self) -> Option<&Map<String, Value>> {
        self.0["metadata"]["labels"].as_object()
    }
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels()?.get(key)?.as_str()
    }
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.0["metadata"]["annotations"][key].as_str()
    }
    pub fn finalizers(&self) -> Vec<&str> {
        self.0["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }
    pub fn is_terminating(&self) -> bool {
        self.0["metadata"]["deletionTimestamp"].is_string()
    }
    pub fn deletion_timestamp(&self) -> Option<Timestamp> {
        self.0["metadata"]["deletionTimestamp"].as_str()?.parse().ok()
    }
    pub fn owner_references(&self) -> Vec<OwnerReference> {
        self.0["metadata"]["ownerReferences"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|v| OwnerReference::deserialize(v).ok())
            .collect()
    }
    /// The owner with `controller: true`, if any.
    pub fn controller(&self) -> Option<OwnerReference> {
        self.owner_references().into_iter().find(|o| o.controller == Some(true))
    }

    /// `metadata` as a mutable map, created if missing.
    pub fn metadata_mut(&mut self) -> &mut Map<String, Value> {
        if !self.0.is_object() {
            self.0 = Value::Object(Map::new());
        }
        if !self.0["metadata"].is_object() {
            self.0["metadata"] = Value::Object(Map::new());
        }
        match &mut self.0["metadata"] {
            Value::Object(map) => map,
            _ => unreachable!("made an object just above"),
        }
    }
    /// Sets a metadata field; a `None` removes it.
    pub fn set_meta(&mut self, field: &str, value: impl Into<Option<Value>>) {
        match value.into() {
            Some(v) => self.metadata_mut().insert(field.to_owned(), v),
            None => self.metadata_mut().shift_remove(field),
        };
    }

    /// The value at a dotted path of plain keys (`spec.nodeName`), if present and not null.
    pub fn at(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.0, |v, key| v.get(key)).filter(|v| !v.is_null())
    }

    fn meta_str(&self, field: &str) -> &str {
        self.0["metadata"][field].as_str().unwrap_or("")
    }
}

/// The maximum nesting of an object, from any face. JSON is parsed up to 127 levels, including those of a call or a review around
/// an object.
pub const MAX_NESTED: usize = 112;

/// Refuses a more deeply nested body: stored objects must be parsed as JSON again.
pub fn check_nesting(body: &Value) -> Result<(), Status> {
    match nests_within(body, MAX_NESTED) {
        true => Ok(()),
        false => Err(Status::bad_request(format!("the body is nested more than {MAX_NESTED} levels deep"))),
    }
}

/// Whether a value nests at most this many lists and maps.
pub fn nests_within(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(|item| nests_within(item, levels - 1)),
        Value::Object(map) => levels > 0 && map.values().all(|value| nests_within(value, levels - 1)),
        _ => true,
    }
}

/// The approximate length of a value as JSON.
pub fn length(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 3,
        Value::Array(items) => 2 + items.iter().map(length).sum::<usize>(),
        Value::Object(map) => 2 + map.iter().map(|(key, value)| key.len() + 4 + length(value)).sum::<usize>(),
        _ => 6,
    }
}
