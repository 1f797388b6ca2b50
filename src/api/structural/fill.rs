//! Defaulting: sets the schema's defaults for absent fields, at all levels of existing content.

use serde_json::Value;

use super::Schema;

/// Sets defaults, after dropping invalid nulls: if there is a default, null is ignored.
pub fn defaults(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, of) in &schema.properties {
                let Some(default) = &of.default else { continue };
                match map.get(name) {
                    Some(Value::Null) if !of.nullable => drop(map.insert(name.clone(), default.clone())),
                    Some(_) => {}
                    None => drop(map.insert(name.clone(), default.clone())),
                }
            }
            for (name, value) in map.iter_mut() {
                if let Some(of) = schema.field(name) {
                    if value.is_null()
                        && !of.nullable
                        && let Some(default) = &of.default
                    {
                        *value = default.clone();
                    }
                    defaults(of, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(of) = &schema.items {
                for item in items {
                    if item.is_null()
                        && !of.nullable
                        && let Some(default) = &of.default
                    {
                        *item = default.clone();
                    }
                    defaults(of, item);
                }
            }
        }
        _ => {}
    }
}
