//! The same schemas for OpenAPI documents: definitions by name, with upstream's `x-kubernetes-*` extensions.

use serde_json::{Map, Value, json};

use super::{Topology, definitions, merge_keys};
use crate::kinds::Source;

/// The definitions that sources need, by name. References start with `prefix`: `#/components/schemas/`. `wrap`: those with a
/// description are wrapped in `allOf`, as OpenAPI v3 requires.
pub fn definitions<'a>(sources: impl IntoIterator<Item = &'a Source>, prefix: &str, wrap: bool) -> Map<String, Value> {
    let mut all = Map::new();
    let mut wanted: Vec<String> = sources.into_iter().map(name_of).collect();
    while let Some(name) = wanted.pop() {
        if all.contains_key(&name) {
            continue;
        }
        let Some(definition) = definitions::get(&name) else { continue };
        references(&definition, &mut wanted);
        all.insert(name, definition);
    }
    for (name, definition) in &mut all {
        finish(name, definition, prefix, wrap);
    }
    all.sort_keys();
    all
}

/// The name of a source's own definition.
pub fn name_of(source: &Source) -> String {
    match source {
        Source::Defined(name) => (*name).to_owned(),
        Source::Custom(custom) => custom.definition_name(),
    }
}

/// Adds the names that a schema refers to.
fn references(schema: &Value, to: &mut Vec<String>) {
    to.extend(definitions::referred(schema).map(str::to_owned));
    match schema {
        Value::Array(items) => items.iter().for_each(|item| references(item, to)),
        Value::Object(map) => map.values().for_each(|value| references(value, to)),
        _ => {}
    }
}

fn finish(name: &str, definition: &mut Value, prefix: &str, wrap: bool) {
    let short = name.rsplit('.').next().unwrap_or(name).to_owned();
    match short.as_str() {
        "IntOrString" => {
            let description = definition["description"].take();
            *definition = json!({"type": "string", "format": "int-or-string", "description": description});
        }
        "Quantity" => {
            let description = definition["description"].take();
            *definition = json!({"type": "string", "description": description});
        }
        // Has several types: upstream specifies none, so clients accept anything.
        "JSON" | "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrBool" | "JSONSchemaPropsOrStringArray" => {
            *definition = json!({"description": definition["description"].take()});
        }
        _ => {}
    }
    refer(definition, prefix, wrap);
    if merge_keys::is_atomic(&short) {
        definition["x-kubernetes-map-type"] = "atomic".into();
    }
    let properties = definition.get_mut("properties").and_then(Value::as_object_mut);
    for (field, property) in properties.into_iter().flatten() {
        extend(&short, field, property);
    }
}

/// Rewrites references to the prefix.
fn refer(value: &mut Value, prefix: &str, wrap: bool) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| refer(item, prefix, wrap)),
        Value::Object(map) => {
            if let Some(name) = map.get("$ref").and_then(Value::as_str).and_then(|r| r.rsplit('/').next()) {
                let reference = json!({"$ref": format!("{prefix}{name}")});
                if !wrap {
                    map["$ref"] = reference["$ref"].clone();
                } else if map.len() == 1 {
                    *value = reference;
                } else {
                    map.shift_remove("$ref");
                    map.insert("allOf".into(), json!([reference]));
                }
                return;
            }
            map.values_mut().for_each(|value| refer(value, prefix, wrap));
        }
        _ => {}
    }
}

/// Adds the merge extensions of a list or struct.
fn extend(parent: &str, field: &str, property: &mut Value) {
    let rule = merge_keys::of(parent, field);
    let is_list = property["type"] == "array";
    let Some(property) = property.as_object_mut() else { return };
    let mut set = |key: &str, value: Value| drop(property.insert(format!("x-kubernetes-{key}"), value));
    let words = [(rule.list.merge_key.is_some(), "merge"), (rule.replace, "replace"), (rule.retain_keys, "retainKeys")];
    let words: Vec<&str> = words.iter().filter(|(holds, _)| *holds).map(|(_, word)| *word).collect();
    if !words.is_empty() {
        set("patch-strategy", words.join(",").into());
    }
    if let Some(key) = rule.list.merge_key.filter(|key| !key.is_empty()) {
        set("patch-merge-key", key.into());
    }
    match rule.list.topology {
        _ if !is_list && rule.atomic => set("map-type", "atomic".into()),
        _ if !is_list => {}
        Topology::Atomic => set("list-type", "atomic".into()),
        Topology::Set => set("list-type", "set".into()),
        // For a CRD: its schema has them already.
        Topology::Own => {}
        Topology::Map(keys) => {
            set("list-type", "map".into());
            set("list-map-keys", keys.into());
        }
    }
}
