//! Upstream's defaults: helpers for JSON trees, and the Pod template of many kinds.

use serde_json::{Map, Value};

pub mod pod;

/// Sets a field that is absent. Null and, for strings, "" count as absent.
pub fn fill(map: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    let absent = match map.get(field) {
        None | Some(Value::Null) => true,
        Some(Value::String(s)) => s.is_empty(),
        Some(_) => false,
    };
    if absent {
        map.insert(field.to_owned(), value.into());
    }
}

/// A struct field, if present.
pub fn object<'a>(map: &'a mut Map<String, Value>, field: &str) -> Option<&'a mut Map<String, Value>> {
    map.get_mut(field)?.as_object_mut()
}

/// A struct field, created if absent.
pub fn made<'a>(map: &'a mut Map<String, Value>, field: &str) -> &'a mut Map<String, Value> {
    let value = map.entry(field).or_insert_with(|| Value::Object(Map::new()));
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object just above"),
    }
}

/// The structs of a list field.
pub fn each<'a>(map: &'a mut Map<String, Value>, field: &str) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    map.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}
