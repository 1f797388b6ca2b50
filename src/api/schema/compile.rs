//! Compiles JSON schemas to the compact tree.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::{Field, List, Struct, Type, definitions, merge_keys};

/// The state of a compilation.
struct Compiler<'a> {
    done: &'a mut HashMap<String, Arc<Struct>>,
}

/// Compiles the definition of `name` and everything that it refers to.
pub fn root(done: &mut HashMap<String, Arc<Struct>>, name: &str) -> Arc<Struct> {
    Compiler { done }.define(name, &definitions::get(name).unwrap_or_default())
}

impl Compiler<'_> {
    /// A named struct. It is registered before its fields are compiled, as it may be recursive.
    fn define(&mut self, name: &str, schema: &Value) -> Arc<Struct> {
        let short = name.rsplit('.').next().unwrap_or(name).to_owned();
        let package = name.rsplit('.').nth(1).unwrap_or("");
        let (go_type, atomic) = (format!("{package}.{short}"), merge_keys::is_atomic(&short));
        let package = format!("{}/{package}", name.rsplit('.').nth(2).unwrap_or(""));
        let it = Arc::new(Struct {
            name: short,
            go_type,
            package,
            atomic,
            open: false,
            fields: OnceLock::new(),
            inline: OnceLock::new(),
        });
        self.done.insert(name.to_owned(), it.clone());
        let mut fields: Vec<(Box<str>, Field)> = Vec::new();
        for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
            fields.push((field.as_str().into(), self.field(&it.name, field, schema)));
        }
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        // Set only here, on a struct created above.
        let _ = it.fields.set(fields.into());
        it
    }

    fn field(&mut self, parent: &str, name: &str, schema: &Value) -> Field {
        let rule = merge_keys::of(parent, name);
        let of = match self.compile(schema) {
            Type::List(list) => Type::List(Arc::new(List::of(list.item.clone(), rule.list))),
            other => other,
        };
        Field { of, retain_keys: rule.retain_keys, replace: rule.replace, atomic: rule.atomic, default: None }
    }

    fn compile(&mut self, schema: &Value) -> Type {
        if let Some(name) = definitions::referred(schema) {
            return self.named(name);
        }
        // A reference with a description is wrapped.
        if let Some([one]) = schema["allOf"].as_array().map(Vec::as_slice) {
            return self.compile(one);
        }
        match schema["type"].as_str() {
            Some("string") if schema["format"] == "byte" => Type::Bytes,
            Some("string") if schema["format"] == "date-time" => Type::Time { micro: false },
            Some("string") => Type::String,
            Some("boolean") => Type::Boolean,
            Some("integer") => Type::Integer { bits: if schema["format"] == "int32" { 32 } else { 64 } },
            Some("number") => Type::Number,
            Some("array") => Type::List(Arc::new(List::of(self.compile(&schema["items"]), Default::default()))),
            Some("object") if schema["additionalProperties"].is_object() => {
                Type::Map(Arc::new(self.compile(&schema["additionalProperties"])))
            }
            _ => Type::Any,
        }
    }

    fn named(&mut self, name: &str) -> Type {
        match name.rsplit('.').next().unwrap_or(name) {
            "Quantity" => return Type::Quantity,
            "IntOrString" => return Type::IntOrString,
            "Time" => return Type::Time { micro: false },
            "MicroTime" => return Type::Time { micro: true },
            _ => {}
        }
        if let Some(known) = self.done.get(name) {
            return Type::Struct(known.clone());
        }
        match definitions::get(name) {
            Some(schema) if schema["properties"].is_object() => Type::Struct(self.define(name, &schema)),
            Some(schema) if schema["type"] == "object" && !schema["additionalProperties"].is_object() => Type::Any,
            Some(schema) => self.compile(&schema),
            None => Type::Any,
        }
    }
}
