//! Whether a manifest matches its schema's types and can be merged: list items must be distinguishable. Upstream:
//! structured-merge-diff, whose errors clients show.

use std::collections::HashSet;

use serde_json::Value;

use super::element;
use crate::field_path;
use crate::schema::{List, Struct, Topology, Type};
use crate::validation::MAX_MESSAGE;

/// The most errors that are reported.
const MOST: usize = 100;

/// Why a manifest cannot be applied: the path of each error, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", together(.0))]
pub struct TypedErrors(pub Vec<String>);

fn together(all: &[String]) -> String {
    match all {
        [one] => one.clone(),
        all => format!("errors:\n  {}", all.join("\n  ")),
    }
}

/// Whether a manifest can be applied.
///
/// # Errors
///
/// It has values of other types, fields that the schema does not declare, or list items with missing or duplicate keys: the first
/// hundred of all these.
pub fn check(schema: &Struct, config: &Value) -> Result<(), TypedErrors> {
    let mut walk = Walk { path: Vec::new(), found: Vec::new() };
    walk.fields(schema, config);
    if walk.found.is_empty() { Ok(()) } else { Err(TypedErrors(walk.found)) }
}

struct Walk {
    /// The current path, for errors.
    path: Vec<Step>,
    found: Vec<String>,
}

enum Step {
    Field(String),
    /// The item of a list with keys.
    Item(Box<str>),
    Index(usize),
}

impl Walk {
    fn wrong(&mut self, why: String) {
        if self.found.len() >= MOST {
            return;
        }
        let step = |step: &Step| match step {
            Step::Field(name) => format!(".{name}"),
            Step::Item(element) => element::shown(element),
            Step::Index(at) => format!("[{at}]"),
        };
        let path: String = self.path.iter().map(step).collect();
        let all = if path.is_empty() { why } else { format!("{path}: {why}") };
        self.found.push(match all.len() > MAX_MESSAGE {
            true => format!("{}...", field_path::head(&all, MAX_MESSAGE)),
            false => all,
        });
    }

    fn at(&mut self, step: Step, look: impl FnOnce(&mut Walk)) {
        self.path.push(step);
        look(self);
        self.path.pop();
    }

    fn value(&mut self, of: &Type, value: &Value) {
        let scalar = !matches!(value, Value::Array(_) | Value::Object(_));
        match of {
            _ if value.is_null() => {}
            Type::Any | Type::Unknown => {}
            Type::Struct(schema) if value.is_object() => self.fields(schema, value),
            Type::Map(of) if value.is_object() => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    self.at(Step::Field(name.clone()), |walk| walk.value(of, value));
                }
            }
            Type::List(list) if value.is_array() => self.items(list, value),
            Type::Struct(_) | Type::Map(_) => self.wrong(format!("expected map, got &{{{}}}", plain(value))),
            Type::List(_) => self.wrong(format!("expected list, got &{{{}}}", plain(value))),
            Type::Integer { .. } | Type::Number if !value.is_number() => {
                self.wrong(format!("expected numeric (int or float), got {}", type_of(value)));
            }
            Type::String | Type::Bytes if !value.is_string() => {
                self.wrong(format!("expected string, got &value.valueUnstructured{{Value:{}}}", syntax(value)));
            }
            Type::Boolean if !value.is_boolean() => {
                self.wrong(format!("expected boolean, got &{{{}}}", plain(value)));
            }
            Type::Quantity | Type::IntOrString | Type::Time { .. } if !scalar => {
                self.wrong(format!("expected any scalar, got &{{{}}}", plain(value)));
            }
            _ => {}
        }
    }

    fn fields(&mut self, schema: &Struct, value: &Value) {
        // A struct without known fields may have any.
        let open = schema.open || schema.fields().next().is_none();
        for (name, value) in value.as_object().into_iter().flatten() {
            match schema.field(name) {
                Some(field) => self.at(Step::Field(name.clone()), |walk| walk.value(&field.of, value)),
                None if open => {}
                None => self.at(Step::Field(name.clone()), |walk| walk.wrong("field not declared in schema".into())),
            }
        }
    }

    fn items(&mut self, list: &List, value: &Value) {
        let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let mut seen: HashSet<Box<str>> = HashSet::new();
        for (i, item) in items.iter().enumerate() {
            let step = match list.kind.topology {
                Topology::Atomic => Step::Index(i),
                _ => match told_apart(list, item) {
                    Ok(element) => {
                        if !seen.insert(element.clone()) {
                            self.wrong(format!("duplicate entries for key {}", element::shown(&element)));
                        }
                        Step::Item(element)
                    }
                    Err(why) => return self.wrong(format!("element {i}: {why}")),
                },
            };
            self.at(step, |walk| walk.value(&list.item, item));
        }
    }
}

/// The identity of a list item.
fn told_apart(list: &List, item: &Value) -> Result<Box<str>, String> {
    let why = match (&list.kind.topology, item) {
        (Topology::Set, Value::Object(_)) => "associative list without keys has an element that's a map type",
        (Topology::Set, Value::Array(_)) => "not supported: associative list with lists as elements",
        (Topology::Set, Value::Null) => "associative list without keys has an element that's an explicit null",
        (Topology::Map(_) | Topology::Own, Value::Null) => "associative list with keys may not have a null element",
        (Topology::Map(_) | Topology::Own, item) if !item.is_object() => {
            "associative list with keys may not have non-map elements"
        }
        _ => {
            return element::item(list, item).ok_or_else(|| {
                let keys: Vec<String> = list.keys().iter().map(|key| format!("{key:?}")).collect();
                format!(
                    "associative list with keys has an element that omits all key fields [{}] (and doesn't have default \
                     values for any key fields)",
                    keys.join(" ")
                )
            });
        }
    };
    Err(why.to_owned())
}

/// The Go type of a value.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

fn sorted(value: &Value) -> Vec<(&String, &Value)> {
    let mut all: Vec<_> = value.as_object().into_iter().flatten().collect();
    all.sort_by_key(|(name, _)| *name);
    all
}

/// In the format of Go's `%v`.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(" ")),
        Value::Object(_) => {
            let each: Vec<String> =
                sorted(value).iter().map(|(name, value)| format!("{name}:{}", plain(value))).collect();
            format!("map[{}]", each.join(" "))
        }
        other => other.to_string(),
    }
}

/// In the format of Go's `%#v`.
fn syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".into(),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Object(_) => {
            let each = sorted(value).into_iter().map(|(name, value)| format!("{name:?}:{}", syntax(value)));
            format!("map[string]interface {{}}{{{}}}", each.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}
