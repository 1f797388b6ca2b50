//! Pruning: drops fields that a schema does not know; embedded objects keep their type and metadata.

use serde_json::{Map, Value};

use super::Schema;
use crate::field_path;

/// How many unknown fields of an object are reported, upstream's limit.
pub const MAX_UNKNOWN: usize = 100;

/// Fields of every object, whatever its schema.
const OF_OBJECTS: &[&str] = &["apiVersion", "kind", "metadata"];

/// Drops unknown fields of a whole object; returns their paths in upstream's format. An invalid null without a default is dropped,
/// too: clients send one for an empty list.
pub fn prune(schema: &Schema, object: &mut Value) -> Vec<String> {
    let mut dropped = Vec::new();
    walk(schema, object, true, "", &mut dropped);
    nulls(schema, object);
    dropped
}

fn nulls(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|name, value| {
            let Some(of) = schema.field(name) else { return true };
            if value.is_null() && !of.nullable && of.default.is_none() {
                return false;
            }
            nulls(of, value);
            true
        }),
        Value::Array(items) => {
            if let Some(of) = &schema.items {
                items.iter_mut().for_each(|item| nulls(of, item));
            }
        }
        _ => {}
    }
}

/// The same for a value within an object.
pub fn within(schema: &Schema, value: &mut Value) -> Vec<String> {
    let mut dropped = Vec::new();
    walk(schema, value, false, "", &mut dropped);
    dropped
}

fn walk(schema: &Schema, value: &mut Value, is_object: bool, path: &str, dropped: &mut Vec<String>) {
    match value {
        Value::Object(map) => fields(schema, map, is_object || schema.is_embedded, path, dropped),
        Value::Array(items) => {
            let Some(of) = &schema.items else { return };
            for (i, item) in items.iter_mut().enumerate() {
                walk(of, item, false, &field_path::index(path, i), dropped);
            }
        }
        _ => {}
    }
}

fn fields(schema: &Schema, map: &mut Map<String, Value>, is_object: bool, path: &str, dropped: &mut Vec<String>) {
    let keep_all = schema.is_open();
    map.retain(|name, value| {
        if is_object && OF_OBJECTS.contains(&name.as_str()) {
            return true;
        }
        let here = field_path::field(path, name);
        match schema.field(name) {
            Some(of) => walk(of, value, false, &here, dropped),
            None if keep_all => {}
            None => {
                if dropped.len() < MAX_UNKNOWN {
                    dropped.push(here);
                }
                return false;
            }
        }
        true
    });
}

/// All embedded objects within a value, with their paths.
pub fn embedded<'a>(schema: &Schema, value: &'a mut Value, path: &str, tell: &mut dyn FnMut(String, &'a mut Value)) {
    match value {
        Value::Object(_) if schema.is_embedded => tell(path.to_owned(), value),
        Value::Object(map) => {
            for (name, value) in map {
                if let Some(of) = schema.field(name) {
                    embedded(of, value, &field_path::field(path, name), tell);
                }
            }
        }
        Value::Array(items) => {
            if let Some(of) = &schema.items {
                for (i, item) in items.iter_mut().enumerate() {
                    embedded(of, item, &field_path::index(path, i), tell);
                }
            }
        }
        _ => {}
    }
}
