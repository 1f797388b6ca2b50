//! The columns of a kind's table, as `get` prints them and REST Tables carry them. One row a column.

use jiff::Timestamp;
use serde_json::Value;

use super::{Object, duration};

pub mod pod;

/// One column.
pub struct Column {
    pub name: &'static str,
    /// Shown with `-o wide` only.
    pub wide: bool,
    /// The cell of an object at a moment.
    pub cell: fn(&Object, Timestamp) -> String,
}

pub const fn column(name: &'static str, cell: fn(&Object, Timestamp) -> String) -> Column {
    Column { name, wide: false, cell }
}
pub const fn wide(name: &'static str, cell: fn(&Object, Timestamp) -> String) -> Column {
    Column { name, wide: true, cell }
}

pub const NAME: Column = column("NAME", |o, _| o.name().to_owned());
pub const AGE: Column = column("AGE", |o, now| age(&o.0["metadata"]["creationTimestamp"], now));

/// How long ago a time was: `5m`; `<unknown>` without one.
pub fn age(time: &Value, now: Timestamp) -> String {
    match time.as_str().and_then(|t| t.parse::<Timestamp>().ok()) {
        Some(then) => duration::human(now.duration_since(then).as_secs()),
        None => "<unknown>".to_owned(),
    }
}

/// The string at a dotted path, or `other`.
pub fn text_or(object: &Object, path: &str, other: &str) -> String {
    match object.at(path) {
        Some(Value::String(s)) if !s.is_empty() => s.clone(),
        Some(v @ (Value::Number(_) | Value::Bool(_))) => v.to_string(),
        _ => other.to_owned(),
    }
}
pub fn text(object: &Object, path: &str) -> String {
    text_or(object, path, "")
}
/// `True`, `False` or `<unset>`.
pub fn yes(value: Option<&Value>) -> String {
    match value.and_then(Value::as_bool) {
        Some(true) => "True".to_owned(),
        Some(false) => "False".to_owned(),
        None => "<unset>".to_owned(),
    }
}
/// The number at a dotted path, or 0.
pub fn number(object: &Object, path: &str) -> i64 {
    object.at(path).and_then(Value::as_i64).unwrap_or(0)
}
/// `a,b` of a list of structs' field, or `<none>`.
pub fn joined<'a>(list: Option<&'a Value>, field: impl Fn(&'a Value) -> Option<&'a str>) -> String {
    let all: Vec<&str> = list.and_then(Value::as_array).into_iter().flatten().filter_map(field).collect();
    if all.is_empty() { "<none>".to_owned() } else { all.join(",") }
}
/// `a=b,c=d` of a map of strings, or `<none>`.
pub fn pairs(map: Option<&Value>) -> String {
    let mut all: Vec<String> = map
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or("")))
        .collect();
    all.sort();
    if all.is_empty() { "<none>".to_owned() } else { all.join(",") }
}
/// A label selector as text, or `<none>`.
pub fn selector(value: Option<&Value>) -> String {
    let parsed = value.and_then(|v| super::selector::LabelSelector::from_json(v).ok());
    parsed.map(|s| s.to_string()).filter(|s| !s.is_empty()).unwrap_or_else(|| "<none>".to_owned())
}
/// The containers' names or images of a Pod template.
pub fn containers(object: &Object, field: &'static str) -> String {
    joined(object.at("spec.template.spec.containers"), move |c| c[field].as_str())
}
/// `RWO,ROX` of a list of access modes.
pub fn access_modes(list: Option<&Value>) -> String {
    const SHORT: &[(&str, &str)] =
        &[("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let has = |mode: &str| list.and_then(Value::as_array).into_iter().flatten().any(|m| m == mode);
    let all: Vec<&str> = SHORT.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short).collect();
    all.join(",")
}
