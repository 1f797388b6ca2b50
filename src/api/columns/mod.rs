//! The columns of a kind's table, for `get` and REST Tables. One row per column.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::{Object, duration, jsonpath};

pub mod pod;

/// One column.
pub struct Column {
    pub name: Cow<'static, str>,
    /// Shown with `-o wide` only.
    pub wide: bool,
    pub cell: Cell,
}

/// The source of a column's cells.
pub enum Cell {
    /// The text for an object at a given time.
    Text(fn(&Object, Timestamp) -> String),
    /// A column from a CustomResourceDefinition.
    Defined(Defined),
}

/// A column of a CustomResourceDefinition.
pub struct Defined {
    path: jsonpath::Path,
    /// `integer`, `number`, `string`, `boolean` or `date`.
    pub of: Box<str>,
    pub format: Box<str>,
    pub description: Box<str>,
    pub priority: i64,
}

/// The columns of a kind.
pub enum Columns {
    /// Those of a row in the table of kinds.
    Fixed(&'static [Column]),
    /// A definition's current ones.
    Defined(Arc<[Column]>),
}

impl Deref for Columns {
    type Target = [Column];
    fn deref(&self) -> &[Column] {
        match self {
            Columns::Fixed(columns) => columns,
            Columns::Defined(columns) => columns,
        }
    }
}

impl Column {
    /// The cell of an object at a given time.
    pub fn text(&self, object: &Object, now: Timestamp) -> String {
        match &self.cell {
            Cell::Text(of) => of(object, now),
            Cell::Defined(defined) => match defined.value(object, now) {
                Value::Null => "<none>".to_owned(),
                Value::String(text) => text,
                other => other.to_string(),
            },
        }
    }

    /// The same for a Table, where a definition's columns may be numbers or booleans.
    pub fn value(&self, object: &Object, now: Timestamp) -> Value {
        match &self.cell {
            Cell::Text(of) => of(object, now).into(),
            Cell::Defined(defined) => defined.value(object, now),
        }
    }
}

impl Defined {
    /// The first value at its path, if it has its type. Any value can be text.
    fn value(&self, object: &Object, now: Timestamp) -> Value {
        let Some(found) = self.path.first(&object.0) else { return Value::Null };
        match (&*self.of, found) {
            ("string", Value::String(text)) => cut(text, LONGEST_CELL).into(),
            ("string", other) => printed(other).into(),
            ("date", Value::String(time)) => match time.parse::<Timestamp>() {
                Err(_) if !time.is_empty() => "<invalid>".into(),
                _ => age(found, now).into(),
            },
            ("integer", Value::Number(n)) => {
                n.as_i64().or_else(|| n.as_f64().map(|f| f as i64)).map_or(Value::Null, Value::from)
            }
            ("number", n @ Value::Number(_)) | ("boolean", n @ Value::Bool(_)) => n.clone(),
            _ => Value::Null,
        }
    }
}

/// The most columns of a definition's version, and the most bytes of their cells, without the `…` after a truncated one. Upstream
/// has neither limit; but each column may repeat the same megabyte.
pub const MOST_COLUMNS: usize = 100;
pub const LONGEST_CELL: usize = 1024;

/// A string, or its beginning.
pub fn cut(text: &str, most: usize) -> String {
    match text.len() <= most {
        true => text.to_owned(),
        false => text[..text.floor_char_boundary(most)].to_owned() + "…",
    }
}

/// A value in Go's format, as far as a cell shows it.
fn printed(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Null => out.push_str("<no value>"),
        Value::Number(n) if n.is_f64() => out = plain(n.as_f64().unwrap_or_default()),
        other => json(other, &mut out),
    }
    cut(&out, LONGEST_CELL)
}

/// A number in the format of `fmt.Print`.
fn plain(number: f64) -> String {
    let size = number.abs();
    if size == 0.0 || (1e-4..1e21).contains(&size) {
        return number.to_string();
    }
    let text = format!("{number:e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
    format!("{digits}e{sign}{power:0>2}")
}

/// A value as Go's JSON with sorted keys; truncated to the size of a cell.
fn json(value: &Value, out: &mut String) {
    if out.len() > LONGEST_CELL {
        return;
    }
    match value {
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().take(LONGEST_CELL).enumerate() {
                out.push_str(if i == 0 { "" } else { "," });
                json(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut names: Vec<&String> = map.keys().collect();
            names.sort_unstable();
            out.push('{');
            for (i, name) in names.into_iter().take(LONGEST_CELL).enumerate() {
                out.push_str(if i == 0 { "" } else { "," });
                quoted(name, out);
                out.push(':');
                json(&map[name.as_str()], out);
            }
            out.push('}');
        }
        Value::String(text) => quoted(text, out),
        Value::Number(n) if n.is_f64() => out.push_str(&plain(n.as_f64().unwrap_or_default())),
        other => out.push_str(&other.to_string()),
    }
}

/// A quoted string. Go escapes characters that are special in HTML.
fn quoted(text: &str, out: &mut String) {
    let shown = Value::from(cut(text, LONGEST_CELL)).to_string();
    out.push_str(&shown.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"));
}

/// The column for an entry of `additionalPrinterColumns`; `None` if its path is invalid.
pub fn of_definition(json: &Value) -> Option<Column> {
    let text = |field: &str| json[field].as_str().unwrap_or("");
    let priority = json["priority"].as_i64().unwrap_or(0);
    let path = text("jsonPath");
    let described = match text("description") {
        "" => format!("Custom resource definition column (in JSONPath format): {path}"),
        description => description.to_owned(),
    };
    let defined = Defined {
        path: path.parse().ok()?,
        of: text("type").into(),
        format: text("format").into(),
        description: described.into(),
        priority,
    };
    Some(Column { name: text("name").to_owned().into(), wide: priority > 0, cell: Cell::Defined(defined) })
}

pub const fn column(name: &'static str, cell: fn(&Object, Timestamp) -> String) -> Column {
    Column { name: Cow::Borrowed(name), wide: false, cell: Cell::Text(cell) }
}
pub const fn wide(name: &'static str, cell: fn(&Object, Timestamp) -> String) -> Column {
    Column { name: Cow::Borrowed(name), wide: true, cell: Cell::Text(cell) }
}

pub const NAME: Column = column("NAME", |o, _| o.name().to_owned());
pub const AGE: Column = column("AGE", |o, now| age(&o.0["metadata"]["creationTimestamp"], now));

/// The columns of a kind that defines none.
pub const PLAIN: &[Column] = &[NAME, AGE];

/// The age at a time: `5m`; `<unknown>` without one.
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
/// `a,b` from a field of a list of structs, or `<none>`.
pub fn joined<'a>(list: Option<&'a Value>, field: impl Fn(&'a Value) -> Option<&'a str>) -> String {
    let all: Vec<&str> = list.and_then(Value::as_array).into_iter().flatten().filter_map(field).collect();
    if all.is_empty() { "<none>".to_owned() } else { all.join(",") }
}
/// `a=b,c=d` from a map of strings, or `<none>`.
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
/// `RWO,ROX` from a list of access modes.
pub fn access_modes(list: Option<&Value>) -> String {
    const SHORT: &[(&str, &str)] =
        &[("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let has = |mode: &str| list.and_then(Value::as_array).into_iter().flatten().any(|m| m == mode);
    let all: Vec<&str> = SHORT.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short).collect();
    all.join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cell_shows_the_beginning_of_what_is_long() {
        let cell = |value: Value| {
            let column = of_definition(&json!({"name": "C", "type": "string", "jsonPath": ".spec.it"})).unwrap();
            let object = Object(json!({"spec": {"it": value}}));
            column.value(&object, Timestamp::UNIX_EPOCH).as_str().unwrap_or_default().to_owned()
        };
        for (value, whole) in [
            (json!("é".repeat(512)), true),
            (json!("é".repeat(513)), false),
            (json!("x".repeat(1 << 20)), false),
            (json!(["x".repeat(1 << 20)]), false),
        ] {
            let shown = cell(value);
            assert_eq!(!shown.ends_with('…'), whole, "{}", shown.len());
            assert!(shown.len() <= LONGEST_CELL + '…'.len_utf8(), "{}", shown.len());
        }
    }

    #[test]
    fn a_cell_shows_what_go_prints() {
        let object = Object(json!({"spec": {
            "n": 3, "f": 1.0, "g": 0.5, "big": 1e21, "small": 1e-7, "on": true, "no": null, "text": "t", "at": "1970-01-01T00:00:00Z",
            "list": ["a", 1, {"b": "<&>"}], "map": {"z": 1, "a": [2.0]},
        }}));
        for (of, path, shown) in [
            ("string", ".spec.n", json!("3")),
            ("string", ".spec.f", json!("1")),
            ("string", ".spec.g", json!("0.5")),
            ("string", ".spec.big", json!("1e+21")),
            ("string", ".spec.small", json!("1e-07")),
            ("string", ".spec.on", json!("true")),
            ("string", ".spec.no", json!("<no value>")),
            ("string", ".spec.nothing", Value::Null),
            ("string", ".spec.list", json!(r#"["a",1,{"b":"\u003c\u0026\u003e"}]"#)),
            ("string", ".spec.list[*]", json!("a")),
            ("string", ".spec.list[-1:]", json!(r#"{"b":"\u003c\u0026\u003e"}"#)),
            ("string", ".spec.map", json!(r#"{"a":[2],"z":1}"#)),
            ("string", ".", Value::Null),
            ("string", "..b", json!("<&>")),
            ("integer", ".spec.f", json!(1)),
            ("integer", ".spec.g", json!(0)),
            ("integer", ".spec.text", Value::Null),
            ("number", ".spec.g", json!(0.5)),
            ("boolean", ".spec.on", json!(true)),
            ("boolean", ".spec.n", Value::Null),
            ("date", ".spec.at", json!("1s")),
            ("date", ".spec.text", json!("<invalid>")),
            ("date", ".spec.n", Value::Null),
            ("date", ".spec.no", Value::Null),
        ] {
            let column = of_definition(&json!({"name": "C", "type": of, "jsonPath": path})).unwrap();
            assert_eq!(column.value(&object, Timestamp::from_second(1).unwrap()), shown, "{of} {path}");
        }
        assert!(of_definition(&json!({"name": "C", "type": "string", "jsonPath": ".a[b]"})).is_none());
    }
}
