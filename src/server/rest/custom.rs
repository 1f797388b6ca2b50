//! The OpenAPI definition of a custom resource, from the schema of its CustomResourceDefinition.

use serde_json::{Map, Value, json};

/// What OpenAPI v2 has no words for; kubectl reads a schema with them as one that says less.
const NOT_IN_V2: &[&str] = &["oneOf", "anyOf", "not", "nullable"];

/// The definition; `metadata` refers to every object's.
pub fn definition(schema: &Value, v2: bool, metadata: Value) -> Value {
    let mut out = schema.clone();
    if v2 {
        reduce(&mut out);
    }
    if !out.is_object() {
        out = json!({"type": "object"});
    }
    if out["x-kubernetes-preserve-unknown-fields"] == true && v2 {
        // What may hold anything is told without fields.
        if let Some(map) = out.as_object_mut() {
            map.shift_remove("properties");
        }
    }
    let own = out["properties"].take();
    let text = |description: &str| json!({"type": "string", "description": description});
    let metadata = match v2 {
        true => metadata,
        false => json!({"description": "Standard object's metadata.", "allOf": [metadata]}),
    };
    let mut properties = Map::new();
    properties.insert(
        "apiVersion".into(),
        text("APIVersion defines the versioned schema of this representation of an object."),
    );
    properties
        .insert("kind".into(), text("Kind is a string value representing the REST resource this object represents."));
    properties.insert("metadata".into(), metadata);
    for (name, property) in own.as_object().into_iter().flatten() {
        if !properties.contains_key(name) {
            properties.insert(name.clone(), property.clone());
        }
    }
    out["properties"] = properties.into();
    out
}

fn reduce(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    let preserves = map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    let nullable = map.get("nullable") == Some(&Value::Bool(true));
    let either = map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true));
    for word in NOT_IN_V2 {
        map.shift_remove(*word);
    }
    // Who checks against v2 would refuse what is allowed.
    if nullable || either {
        for word in ["type", "properties", "items", "additionalProperties", "enum"] {
            map.shift_remove(word);
        }
    } else if preserves {
        for word in ["items", "properties"] {
            map.shift_remove(word);
        }
    }
    for property in
        map.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(|all| all.values_mut())
    {
        reduce(property);
    }
    for field in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(field) {
            reduce(inner);
        }
    }
}
