//! Validation of values, with upstream's messages: type, format, limits, enumerations, and the logic of `oneOf` and the like.
//!
//! Unchanged parts of an update are not validated again: objects stored before a schema became stricter can still be changed
//! elsewhere (KEP-4008).

use std::collections::{HashMap, HashSet};

use serde_json::{Number, Value};

use super::{Limits, ListType, Of, Schema, formats};
use crate::field_path::{self, field as at};
use crate::pattern;
use crate::status::Cause;
use crate::validation::{MAX_CAUSES, MAX_MESSAGE};

/// What is wrong with a value. `old` is the value that it replaces, if known.
pub fn check(schema: &Schema, value: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut walk = Walk { causes: Vec::new() };
    walk.value(schema, value, old, "");
    walk.causes
}

/// Whether these errors prevent running the CEL rules.
pub fn blocks_rules(causes: &[Cause]) -> bool {
    const BLOCKING: &[&str] =
        &["FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany", "FieldValueTypeInvalid"];
    causes.iter().any(|cause| BLOCKING.contains(&cause.reason.as_str()))
}

struct Walk {
    causes: Vec<Cause>,
}

/// The JSON name of a value's type.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() && n.as_f64().is_some_and(|f| f.fract() != 0.0) => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_of(of: Of, value: &Value) -> bool {
    match (of, type_name(value)) {
        (Of::Number, name) => name == "number" || name == "integer",
        (of, name) => of.name() == name,
    }
}

/// A path in Go's format; empty for the root.
fn field_of(path: &str) -> String {
    if path.is_empty() { "<nil>".to_owned() } else { path.to_owned() }
}

/// A value in an error.
fn shown(value: &Value) -> String {
    match value {
        Value::String(s) => format!("{s:?}"),
        Value::Object(_) | Value::Array(_) => value.to_string(),
        other => other.to_string(),
    }
}

impl Walk {
    fn add(&mut self, reason: &str, path: &str, message: String) {
        if self.is_full() {
            return;
        }
        let message = match message.len() > MAX_MESSAGE {
            true => format!("{}...", field_path::head(&message, MAX_MESSAGE)),
            false => message,
        };
        self.causes.push(Cause { reason: reason.into(), message, field: field_of(path) });
    }

    /// Like `validation::Errors`.
    fn is_full(&self) -> bool {
        self.causes.len() >= MAX_CAUSES
    }

    fn invalid(&mut self, path: &str, value: &Value, why: String) {
        if self.is_full() {
            return;
        }
        self.add("FieldValueInvalid", path, format!("Invalid value: {}: {why}", shown(value)));
    }

    /// A value of a structural node.
    fn value(&mut self, schema: &Schema, value: &Value, old: Option<&Value>, path: &str) {
        if old == Some(value) {
            return;
        }
        if value.is_null() && schema.nullable {
            return;
        }
        if !self.of_type(schema, value, path) {
            return;
        }
        self.all_limits(schema, value, path);
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    if let Some(of) = schema.field(name) {
                        let before = old.and_then(|old| old.get(name));
                        self.value(of, value, before, &at(path, name));
                    }
                }
            }
            Value::Array(items) => {
                if let Some(of) = &schema.items {
                    let replaced = Replaced::of(&schema.list_type, old);
                    for (i, item) in items.iter().enumerate() {
                        self.value(of, item, replaced.by(item), &field_path::index(path, i));
                    }
                }
                self.list(schema, items, path);
            }
            _ => {}
        }
        if schema.is_embedded && value.is_object() {
            self.embedded(value, path);
        }
    }

    fn of_type(&mut self, schema: &Schema, value: &Value, path: &str) -> bool {
        let wanted = match (schema.int_or_string, schema.of) {
            (true, _) if matches!(type_name(value), "integer" | "string") => return true,
            (true, _) => "integer,string",
            (_, None) => return !value.is_null() || schema.preserves_unknown,
            (_, Some(of)) if is_of(of, value) => return true,
            (_, Some(of)) => of.name(),
        };
        let got = type_name(value);
        let why = format!("{} in body must be of type {wanted}: \"{got}\"", path);
        self.add("FieldValueTypeInvalid", path, format!("Invalid value: \"{got}\": {}", why.trim_start()));
        false
    }

    /// The limits and logic of a node.
    fn all_limits(&mut self, schema: &Schema, value: &Value, path: &str) {
        self.limits(&schema.limits, value, path);
        if let Value::String(text) = value
            && !schema.format.is_empty()
            && !formats::is_of(&schema.format, text)
        {
            self.invalid(path, value, format!("{path} in body must be of type {}: {text:?}", schema.format));
        }
        for part in &schema.all_of {
            self.nested(part, value, path);
        }
        let fits = |part: &&Schema| {
            let mut walk = Walk { causes: Vec::new() };
            walk.nested(part, value, path);
            walk.causes.is_empty()
        };
        let count = |parts: &[Schema]| parts.iter().filter(fits).count();
        let logic = |walk: &mut Walk, why: &str| {
            walk.add("FieldValueInvalid", "", format!("Invalid value: \"\": {path:?} {why}"))
        };
        if !schema.any_of.is_empty() && count(&schema.any_of) == 0 {
            logic(self, "must validate at least one schema (anyOf)");
        }
        match count(&schema.one_of) {
            _ if schema.one_of.is_empty() => {}
            0 => logic(self, "must validate one and only one schema (oneOf). Found none valid"),
            1 => {}
            n => logic(self, &format!("must validate one and only one schema (oneOf). Found {n} valid alternatives")),
        }
        if schema.not.as_deref().is_some_and(|not| fits(&not)) {
            logic(self, "must not validate the schema (not)");
        }
    }

    /// A value for a node within `allOf`, `anyOf`, `oneOf` or `not`, which only validates values.
    fn nested(&mut self, schema: &Schema, value: &Value, path: &str) {
        if schema.of.is_some() && !self.of_type(schema, value, path) {
            return;
        }
        self.all_limits(schema, value, path);
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    if let Some(of) = schema.field(name) {
                        self.nested(of, value, &at(path, name));
                    }
                }
            }
            Value::Array(items) => {
                if let Some(of) = &schema.items {
                    for (i, item) in items.iter().enumerate() {
                        self.nested(of, item, &field_path::index(path, i));
                    }
                }
            }
            _ => {}
        }
    }

    fn limits(&mut self, limits: &Limits, value: &Value, path: &str) {
        match value {
            Value::Number(n) => self.number(limits, n, value, path),
            Value::String(text) => self.text(limits, text, value, path),
            Value::Array(items) => {
                let n = items.len() as u64;
                if let Some(max) = limits.max_items.filter(|max| n > *max) {
                    self.add("FieldValueTooMany", path, format!("Too many: {n}: must have at most {max} items"));
                }
                if let Some(min) = limits.min_items.filter(|min| n < *min) {
                    self.invalid(path, &n.into(), format!("{path} in body should have at least {min} items"));
                }
                let mut seen = HashSet::new();
                if limits.unique_items && !items.iter().all(|item| seen.insert(item)) {
                    self.invalid(path, value, format!("{path} in body shouldn't contain duplicates"));
                }
            }
            Value::Object(map) => {
                let n = map.len() as u64;
                if let Some(max) = limits.max_properties.filter(|max| n > *max) {
                    self.add("FieldValueTooMany", path, format!("Too many: {n}: must have at most {max} items"));
                }
                if let Some(min) = limits.min_properties.filter(|min| n < *min) {
                    self.invalid(path, &n.into(), format!("{path} in body should have at least {min} properties"));
                }
                for name in limits.required.iter().filter(|name| !map.contains_key(*name)) {
                    self.add("FieldValueRequired", &at(path, name), "Required value".into());
                }
            }
            _ => {}
        }
        if !limits.one_of.is_empty() && !limits.one_of.iter().any(|allowed| same(allowed, value)) {
            let allowed: Vec<String> = limits
                .one_of
                .iter()
                .map(|allowed| format!("\"{}\"", allowed.as_str().map_or_else(|| allowed.to_string(), str::to_owned)))
                .collect();
            let message = format!("Unsupported value: {}: supported values: {}", shown(value), allowed.join(", "));
            self.add("FieldValueNotSupported", path, message);
        }
    }

    fn number(&mut self, limits: &Limits, n: &Number, value: &Value, path: &str) {
        let is = |limit: &Option<Number>, holds: fn(f64, f64) -> bool| {
            limit.as_ref().filter(|limit| !holds(float(n), float(limit))).map(Number::to_string)
        };
        let (low, over): (fn(f64, f64) -> bool, &str) = match limits.exclusive_minimum {
            true => (|n, limit| n > limit, "greater than"),
            false => (|n, limit| n >= limit, "greater than or equal to"),
        };
        let (high, under): (fn(f64, f64) -> bool, &str) = match limits.exclusive_maximum {
            true => (|n, limit| n < limit, "less than"),
            false => (|n, limit| n <= limit, "less than or equal to"),
        };
        for (limit, what) in [(is(&limits.minimum, low), over), (is(&limits.maximum, high), under)] {
            if let Some(limit) = limit {
                self.invalid(path, value, format!("{path} in body should be {what} {limit}"));
            }
        }
        if let Some(of) = limits.multiple_of.as_ref().filter(|of| !is_multiple(n, of)) {
            self.invalid(path, value, format!("{path} in body should be a multiple of {of}"));
        }
    }

    fn text(&mut self, limits: &Limits, text: &str, value: &Value, path: &str) {
        // Upstream counts characters, but reports bytes.
        let n = text.chars().count() as u64;
        if let Some(max) = limits.max_length.filter(|max| n > *max) {
            self.add("FieldValueTooLong", path, format!("Too long: may not be more than {max} bytes"));
        }
        if let Some(min) = limits.min_length.filter(|min| n < *min) {
            self.invalid(path, value, format!("{path} in body should be at least {min} chars long"));
        }
        if let Some(wanted) = &limits.pattern
            && !pattern::compiled(wanted).is_ok_and(|regex| regex.is_match(text))
        {
            self.invalid(path, value, format!("{path} in body should match '{wanted}'"));
        }
    }

    /// Sets and maps without duplicate items.
    fn list(&mut self, schema: &Schema, items: &[Value], path: &str) {
        let identity = |item: &Value| -> Option<Value> {
            match &schema.list_type {
                ListType::Atomic => None,
                ListType::Set => Some(item.clone()),
                ListType::Map(keys) => {
                    let key = |key: &String| Some((key.clone(), item.get(key)?.clone()));
                    Some(Value::Object(keys.iter().filter_map(key).collect()))
                }
            }
        };
        let mut seen = HashSet::new();
        for (i, item) in items.iter().enumerate() {
            let Some(own) = identity(item) else { return };
            if !seen.insert(own.to_string()) {
                self.add("FieldValueDuplicate", &format!("{path}[{i}]"), format!("Duplicate value: {}", shown(&own)));
            }
        }
    }

    /// An embedded object.
    fn embedded(&mut self, value: &Value, path: &str) {
        for field in ["apiVersion", "kind"] {
            if value[field].as_str().unwrap_or("").is_empty() {
                self.add("FieldValueRequired", &at(path, field), "Required value: must not be empty".into());
            }
        }
    }
}

/// The items of the replaced list, by their keys; only for map lists.
pub struct Replaced<'a> {
    keys: &'a [String],
    items: HashMap<Vec<Option<&'a Value>>, &'a Value>,
}

impl<'a> Replaced<'a> {
    pub fn of(list: &'a ListType, old: Option<&'a Value>) -> Replaced<'a> {
        let ListType::Map(keys) = list else { return Replaced { keys: &[], items: HashMap::new() } };
        let mut items = HashMap::new();
        for item in old.and_then(Value::as_array).into_iter().flatten() {
            items.entry(keys.iter().map(|key| item.get(key)).collect()).or_insert(item);
        }
        Replaced { keys, items }
    }

    /// The item with the keys of this one.
    pub fn by(&self, item: &Value) -> Option<&'a Value> {
        if self.items.is_empty() {
            return None;
        }
        let key: Vec<Option<&Value>> = self.keys.iter().map(|key| item.get(key)).collect();
        self.items.get(&key).copied()
    }
}

fn float(n: &Number) -> f64 {
    n.as_f64().unwrap_or_default()
}

fn is_multiple(n: &Number, of: &Number) -> bool {
    match (n.as_i64(), of.as_i64()) {
        (_, Some(0)) => true,
        (Some(n), Some(of)) => n % of == 0,
        _ => {
            let times = float(n) / float(of);
            times.is_finite() && (times - times.round()).abs() < 1e-9
        }
    }
}

/// Equality of JSON numbers: 1 and 1.0.
fn same(a: &Value, b: &Value) -> bool {
    a == b || matches!((a, b), (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64())
}
