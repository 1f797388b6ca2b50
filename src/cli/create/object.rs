//! The skeleton of an object, like upstream's generators'.

use serde_json::{Value, json};

/// As upstream's generators: creationTimestamp is present and null.
pub(super) fn named(api_version: &str, kind: &str, name: &str) -> Value {
    json!({ "apiVersion": api_version, "kind": kind, "metadata": { "creationTimestamp": null, "name": name } })
}

/// Adds fields to an object.
pub(super) fn with(mut object: Value, fields: Value) -> Value {
    if let (Value::Object(into), Value::Object(fields)) = (&mut object, fields) {
        into.extend(fields);
    }
    object
}
