//! The OpenAPI definition of a custom resource, from the schema of its CustomResourceDefinition. Upstream:
//! `apiextensions/controller/openapi/builder`.

use serde_json::{Map, Value, json};

use podwright_api::kinds::custom::Version;

/// The keywords of a schema that are published unchanged; the others mean nothing to clients.
const WORDS: &[&str] = &[
    "type",
    "description",
    "title",
    "default",
    "format",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "enum",
    "maxProperties",
    "minProperties",
    "required",
    "nullable",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
];
const LOGIC: &[&str] = &["allOf", "anyOf", "oneOf"];

const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should \
                           convert recognized schemas to the latest internal value, and may reject unrecognized values. \
                           More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from \
                    the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: \
                    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const METADATA: &str = "Standard object's metadata. More info: \
                        https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
/// For embedded objects.
const OWN_API_VERSION: &str = "apiVersion defines the versioned schema of this representation of an object. More info: \
                               https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const OWN_KIND: &str = "kind is a string value representing the type of this object. In CamelCase. More info: \
                        https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const LIST: &str = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";

/// How references are written: OpenAPI v3 wraps one with a description.
#[derive(Clone, Copy)]
pub struct Refs<'a> {
    pub v2: bool,
    /// A reference to a definition by its name.
    pub to: &'a dyn Fn(&str) -> Value,
}

impl Refs<'_> {
    fn described(&self, name: &str, description: &str) -> Value {
        let mut reference = (self.to)(name);
        if self.v2 {
            reference["description"] = description.into();
            return reference;
        }
        json!({"description": description, "allOf": [reference]})
    }
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

/// The definition of a version's objects.
pub fn definition(version: &Version, refs: Refs<'_>) -> Value {
    let mut out = match (refs.v2 && version.schema.preserves_unknown, version.json.is_object()) {
        // Clients that know any field of it would refuse all others.
        (true, _) | (_, false) => return json!({"type": "object"}),
        _ => published(&version.json, false),
    };
    if refs.v2 {
        reduce(&mut out);
    }
    let mut own = match out["properties"].take() {
        Value::Object(own) => own,
        _ => Map::new(),
    };
    own.values_mut().for_each(|property| embed(property, refs));
    for (name, property) in [
        ("metadata", refs.described(&format!("{}.ObjectMeta", super::META), METADATA)),
        ("kind", text(KIND)),
        ("apiVersion", text(API_VERSION)),
    ] {
        own.shift_remove(name);
        own.shift_insert(0, name.to_owned(), property);
    }
    out["properties"] = own.into();
    out
}

/// The definition of their list.
pub fn list(kind: &str, list_kind: &str, plural: &str, item: Value, refs: Refs<'_>) -> Value {
    let metadata = format!("Standard list metadata. More info: {LIST}#types-kinds");
    json!({
        "description": format!("{list_kind} is a list of {kind}"),
        "type": "object", "required": ["items"],
        "properties": {
            "apiVersion": text(API_VERSION),
            "items": {"type": "array", "description": format!("List of {plural}. More info: {LIST}"), "items": item},
            "kind": text(KIND),
            "metadata": refs.described(&format!("{}.ListMeta", super::META), &metadata),
        },
    })
}

/// The published part of a schema node. `nested`: it is inside a logical junctor.
fn published(schema: &Value, nested: bool) -> Value {
    let mut out = Map::new();
    for word in WORDS {
        match &schema[*word] {
            Value::Null | Value::Bool(false) if *word != "default" => {}
            Value::Null => {}
            value => drop(out.insert((*word).to_owned(), value.clone())),
        }
    }
    if let Some(properties) = schema["properties"].as_object() {
        let each = properties.iter().map(|(name, of)| (name.clone(), published(of, nested)));
        out.insert("properties".into(), Value::Object(each.collect()));
    }
    for field in ["items", "additionalProperties", "not"] {
        match &schema[field] {
            of @ Value::Object(_) => drop(out.insert(field.to_owned(), published(of, nested || field == "not"))),
            Value::Bool(true) if field == "additionalProperties" => drop(out.insert(field.to_owned(), true.into())),
            _ => {}
        }
    }
    for field in LOGIC {
        if let Some(parts) = schema[*field].as_array().filter(|parts| !parts.is_empty()) {
            out.insert((*field).to_owned(), parts.iter().map(|part| published(part, true)).collect());
        }
    }
    if !nested && schema["x-kubernetes-int-or-string"] == true {
        unfold(&mut out);
    }
    out.into()
}

/// Expands `x-kubernetes-int-or-string`.
fn unfold(out: &mut Map<String, Value>) {
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    let spelled = |any: Option<&Value>| any == Some(&either);
    let first = out.get("allOf").and_then(|all| all[0].get("anyOf"));
    if spelled(out.get("anyOf")) || spelled(first) {
        return;
    }
    if !out.contains_key("anyOf") {
        out.insert("anyOf".into(), either);
        return;
    }
    let mut all = vec![json!({"anyOf": either})];
    if let Some(Value::Array(parts)) = out.shift_remove("allOf") {
        all.extend(parts);
    }
    out.insert("allOf".into(), all.into());
}

/// Removes what OpenAPI v2 cannot express, or what kubectl would validate too strictly.
fn reduce(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    for word in LOGIC.iter().chain(&["not"]) {
        map.shift_remove(*word);
    }
    let nullable = map.shift_remove("nullable").is_some();
    let preserves = map.contains_key("x-kubernetes-preserve-unknown-fields");
    if nullable || preserves {
        map.shift_remove("items");
        map.shift_remove("properties");
    }
    let of = map.get("type").and_then(Value::as_str).unwrap_or("");
    if nullable || (of == "array" && !map.contains_key("items")) || (preserves && of == "object") {
        map.shift_remove("type");
    }
    let is_nullable = |of: &Value| of["nullable"] == true;
    if let Some(Value::Array(required)) = map.get("required") {
        let keeps = |name: &&Value| !is_nullable(&map["properties"][name.as_str().unwrap_or("")]);
        let all = map.get("additionalProperties").is_some_and(is_nullable);
        let kept: Vec<Value> = match map.get("properties") {
            _ if all => Vec::new(),
            Some(_) => required.iter().filter(keeps).cloned().collect(),
            None => required.clone(),
        };
        match kept.is_empty() {
            true => drop(map.shift_remove("required")),
            false => drop(map.insert("required".into(), kept.into())),
        }
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(reduce);
    }
    for field in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(field) {
            reduce(inner);
        }
    }
}

/// Adds the common object fields to embedded objects.
fn embed(schema: &mut Value, refs: Refs<'_>) {
    let Some(map) = schema.as_object_mut() else { return };
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(|property| embed(property, refs));
    }
    for field in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(field) {
            embed(inner, refs);
        }
    }
    let says = |word: &str| map.contains_key(word);
    if !says("x-kubernetes-embedded-resource") || (refs.v2 && says("x-kubernetes-preserve-unknown-fields")) {
        return;
    }
    let properties = map.entry("properties").or_insert_with(|| json!({}));
    properties["apiVersion"] = text(OWN_API_VERSION);
    properties["kind"] = text(OWN_KIND);
    properties["metadata"] = refs.described(&format!("{}.ObjectMeta", super::META), METADATA);
    let required = map.entry("required").or_insert_with(|| json!([]));
    if let Some(required) = required.as_array_mut() {
        for field in ["kind", "apiVersion"] {
            if !required.iter().any(|name| name == field) {
                required.push(field.into());
            }
        }
    }
}
