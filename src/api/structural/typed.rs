//! Schemas for CEL: the types of values, values of these types, and the compiled rules of each node.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value as Json;

use super::{ListType, Of, Rule, RuleError, Schema};
use crate::cel::times;
use crate::cel::types::Fields;
use crate::cel::value::{List, ListKind};
use crate::cel::{Env, Type, Value, compile};

/// Reserved words, which need escaping as field names.
const WORDS: &[&str] = &[
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// A field's name in expressions; `None`: it cannot be expressed.
pub fn escaped(name: &str) -> Option<Cow<'_, str>> {
    if WORDS.contains(&name) {
        return Some(format!("__{name}__").into());
    }
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-' | b'/');
    if name.is_empty() || !name.bytes().all(fine) || name.as_bytes()[0].is_ascii_digit() {
        return None;
    }
    if !name.contains(['.', '-', '/']) && !name.contains("__") {
        return Some(name.into());
    }
    let name = name.replace("__", "__underscores__").replace('.', "__dot__").replace('-', "__dash__");
    Some(name.replace('/', "__slash__").into())
}

/// The fields of an object.
#[derive(Debug)]
struct Object {
    schema: Arc<Schema>,
    /// It has a type and metadata, whatever its schema.
    is_whole: bool,
}

impl Fields for Object {
    fn name(&self) -> String {
        "object".into()
    }
    fn field(&self, name: &str) -> Option<Type> {
        match name {
            "apiVersion" | "kind" if self.is_whole => return Some(Type::String),
            "metadata" if self.is_whole => return Some(Type::Object(Arc::new(Metadata))),
            _ => {}
        }
        let found = self.schema.properties.iter().find(|(known, _)| escaped(known).is_some_and(|known| known == name));
        found.map(|(_, of)| type_of(of, of.is_embedded))
    }
}

/// The metadata fields available to expressions.
#[derive(Debug)]
struct Metadata;

impl Fields for Metadata {
    fn name(&self) -> String {
        "object".into()
    }
    fn field(&self, name: &str) -> Option<Type> {
        matches!(name, "name" | "generateName").then_some(Type::String)
    }
}

/// The type of a node's values.
fn type_of(schema: &Arc<Schema>, is_whole: bool) -> Type {
    if schema.int_or_string {
        return Type::Dyn;
    }
    match schema.of {
        Some(Of::Boolean) => Type::Bool,
        Some(Of::Integer) => Type::Int,
        Some(Of::Number) => Type::Double,
        Some(Of::String) => match schema.format.as_str() {
            "date" | "date-time" => Type::Timestamp,
            "duration" => Type::Duration,
            "byte" => Type::Bytes,
            _ => Type::String,
        },
        Some(Of::Array) => Type::list(schema.items.as_ref().map_or(Type::Dyn, |of| type_of(of, of.is_embedded))),
        Some(Of::Object) => match &schema.additional {
            Some(of) => Type::Map(Arc::new(Type::String), Arc::new(type_of(of, of.is_embedded))),
            None => Type::Object(Arc::new(Object { schema: schema.clone(), is_whole })),
        },
        None => Type::Dyn,
    }
}

/// A JSON value, converted by its schema.
pub fn value(schema: &Schema, json: &Json, is_whole: bool) -> Value {
    if schema.int_or_string {
        return Value::from_json(json);
    }
    match (schema.of, json) {
        (Some(Of::Number), Json::Number(n)) => Value::Double(n.as_f64().unwrap_or_default()),
        (Some(Of::Integer), Json::Number(n)) => {
            // An integer may be written as 1.0.
            n.as_i64().or_else(|| n.as_f64().map(|f| f as i64)).map_or(Value::Null, Value::Int)
        }
        (Some(Of::String), Json::String(text)) => {
            let typed = match schema.format.as_str() {
                "date-time" => times::parse(text).map(Value::Timestamp),
                "date" => times::parse(&format!("{text}T00:00:00Z")).map(Value::Timestamp),
                "duration" => times::span(text).map(Value::Duration),
                "byte" => {
                    use base64::Engine;
                    base64::engine::general_purpose::STANDARD.decode(text).ok().map(|bytes| Value::Bytes(bytes.into()))
                }
                _ => None,
            };
            typed.unwrap_or_else(|| Value::string(text.as_str()))
        }
        (Some(Of::Array), Json::Array(items)) => {
            let item = |json: &Json| match &schema.items {
                Some(of) => value(of, json, of.is_embedded),
                None => Value::from_json(json),
            };
            let kind = match &schema.list_type {
                ListType::Atomic => ListKind::Atomic,
                ListType::Set => ListKind::Set,
                ListType::Map(keys) => ListKind::Map(keys.as_slice().into()),
            };
            Value::List(Arc::new(List::new(items.iter().map(item).collect(), kind)))
        }
        (Some(Of::Object), Json::Object(map)) => match &schema.additional {
            Some(of) => Value::map(map.iter().map(|(k, v)| (Arc::from(k.as_str()), value(of, v, of.is_embedded)))),
            None => Value::map(map.iter().filter_map(|(name, json)| {
                let typed = match (name.as_str(), schema.properties.get(name)) {
                    ("apiVersion" | "kind", _) if is_whole => Value::from_json(json),
                    ("metadata", _) if is_whole => metadata(json),
                    (_, of) => value(of?, json, of?.is_embedded),
                };
                Some((Arc::from(escaped(name)?), typed))
            })),
        },
        _ => Value::from_json(json),
    }
}

fn metadata(json: &Json) -> Value {
    let fields = ["name", "generateName"]
        .into_iter()
        .filter_map(|name| Some((Arc::from(name), Value::from_json(json.get(name)?))));
    Value::map(fields)
}

/// Compiles the rules of a node and its descendants. `is_whole`: it is the root of an object.
pub fn compile_rules(schema: &mut Schema, json: &Json, is_whole: bool) {
    if let Some(rules) = json["x-kubernetes-validations"].as_array().filter(|rules| !rules.is_empty()) {
        let of = type_of(&Arc::new(Schema::parse_plain(json)), is_whole || schema.is_embedded);
        schema.rules = rules.iter().map(|json| rule(json, &of)).collect();
    }
    for (name, of) in &mut schema.properties {
        // The invariant: a schema being parsed is not shared yet.
        if let Some(of) = Arc::get_mut(of) {
            compile_rules(of, &json["properties"][name], false);
        }
    }
    for (of, field) in [(&mut schema.additional, "additionalProperties"), (&mut schema.items, "items")] {
        if let Some(of) = of.as_mut().and_then(Arc::get_mut) {
            compile_rules(of, &json[field], false);
        }
    }
}

fn rule(json: &Json, of: &Type) -> Rule {
    let text = |field: &str| json[field].as_str().unwrap_or("").to_owned();
    let optional_old = json["optionalOldSelf"] == true;
    let old = if optional_old { Type::optional(of.clone()) } else { of.clone() };
    let env = Env::new([("self", of.clone()), ("oldSelf", old)]);
    let compiled = |source: &str, wanted: &Type| match compile(source, &env) {
        Err(why) => Err(RuleError::from(why)),
        Ok(program) if program.result.fits(wanted) => Ok(program),
        Ok(_) if matches!(wanted, Type::Bool) => Err(RuleError::NotBool),
        Ok(_) => Err(RuleError::NotString),
    };
    let message = text("messageExpression");
    Rule {
        program: compiled(&text("rule"), &Type::Bool),
        message_program: (!message.is_empty()).then(|| compiled(&message, &Type::String)),
        rule: text("rule"),
        message: text("message"),
        reason: text("reason"),
        field_path: text("fieldPath"),
        optional_old,
    }
}
