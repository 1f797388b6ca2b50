//! The columns of a kind's table, as `get` prints them and REST Tables carry them. One row a column.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::{Object, duration};

pub mod pod;

/// One column.
pub struct Column {
    pub name: Cow<'static, str>,
    /// Shown with `-o wide` only.
    pub wide: bool,
    pub cell: Cell,
}

/// Where a column's cells come from.
pub enum Cell {
    /// The text of an object at a moment.
    Text(fn(&Object, Timestamp) -> String),
    /// What a CustomResourceDefinition asks for.
    Defined(Defined),
}

/// A column of a CustomResourceDefinition.
pub struct Defined {
    path: Vec<String>,
    /// `integer`, `number`, `string`, `boolean` or `date`.
    pub of: Box<str>,
    pub format: Box<str>,
    pub description: Box<str>,
    pub priority: i64,
}

/// The columns of a kind.
pub enum Columns {
    /// A row's of the table of kinds.
    Fixed(&'static [Column]),
    /// A definition's, as it asks for them now.
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
    /// The cell of an object at a moment.
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

    /// The same as a Table has it: what a definition's column says is a number or a truth value is one there.
    pub fn value(&self, object: &Object, now: Timestamp) -> Value {
        match &self.cell {
            Cell::Text(of) => of(object, now).into(),
            Cell::Defined(defined) => defined.value(object, now),
        }
    }
}

impl Defined {
    fn value(&self, object: &Object, now: Timestamp) -> Value {
        let Some(found) = jsonpath(&object.0, &self.path) else { return Value::Null };
        match (&*self.of, found) {
            (_, Value::Null) => Value::Null,
            ("date", time) => age(time, now).into(),
            ("integer", Value::Number(n)) => {
                n.as_i64().or_else(|| n.as_f64().map(|f| f as i64)).map_or(Value::Null, Value::from)
            }
            ("number", n @ Value::Number(_)) | ("boolean", n @ Value::Bool(_)) => n.clone(),
            ("string", Value::String(text)) => cut(text, LONGEST_CELL).into(),
            ("string", other) => printed(other).into(),
            _ => Value::Null,
        }
    }
}

/// How many columns a version of a definition may ask for, and how many bytes a cell of theirs has at most, the `…` behind what
/// is cut not counted. Upstream has neither limit; but each column may show the same megabyte again.
pub const MOST_COLUMNS: usize = 100;
pub const LONGEST_CELL: usize = 1024;

/// A text, or its beginning.
pub fn cut(text: &str, most: usize) -> String {
    match text.len() <= most {
        true => text.to_owned(),
        false => text[..text.floor_char_boundary(most)].to_owned() + "…",
    }
}

/// A value as JSON, as far as a cell shows it.
fn printed(value: &Value) -> String {
    /// Takes so much and no more.
    struct Cell(Vec<u8>);
    impl std::io::Write for Cell {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            match LONGEST_CELL + 1 - self.0.len() {
                0 => Err(std::io::ErrorKind::StorageFull.into()),
                left => {
                    let taken = bytes.len().min(left);
                    self.0.extend_from_slice(&bytes[..taken]);
                    Ok(taken)
                }
            }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut cell = Cell(Vec::new());
    // What does not fit is cut.
    let _ = serde_json::to_writer(&mut cell, value);
    let whole = cell.0.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    if whole.len() < cell.0.len() && whole.len() <= LONGEST_CELL {
        // The last character was cut in two.
        return whole.to_owned() + "…";
    }
    cut(whole, LONGEST_CELL)
}

/// The column of an entry of `additionalPrinterColumns`.
pub fn of_definition(json: &Value) -> Column {
    let text = |field: &str| json[field].as_str().unwrap_or("");
    let priority = json["priority"].as_i64().unwrap_or(0);
    let defined = Defined {
        path: steps(text("jsonPath")).unwrap_or_default(),
        of: text("type").into(),
        format: text("format").into(),
        description: text("description").into(),
        priority,
    };
    Column { name: text("name").to_owned().into(), wide: priority > 0, cell: Cell::Defined(defined) }
}

/// The steps of a simple JSON path, as `.spec.ports[0].name`, `.metadata.labels['a\.b']`,
/// `.status.conditions[?(@.type=="Ready")].status`; `None`: it is none.
pub fn steps(path: &str) -> Option<Vec<String>> {
    let mut rest = path.trim();
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            // A filter may hold brackets in its strings only; none of upstream's examples does.
            let (inside, after) = inner.split_once(']')?;
            steps.push(match inside.trim_matches(['\'', '"']) {
                _ if inside.starts_with("?(") => inside.strip_suffix(')').map(str::to_owned)?,
                quoted if quoted.len() != inside.len() => quoted.replace("\\.", "."),
                index => index.parse::<i64>().ok().map(|_| format!("[{index}"))?,
            });
            rest = after;
            continue;
        }
        rest = rest.strip_prefix('.')?;
        let mut name = String::new();
        let mut characters = rest.char_indices();
        let mut end = rest.len();
        while let Some((at, c)) = characters.next() {
            match c {
                '\\' => name.extend(characters.next().map(|(_, c)| c)),
                '.' | '[' => {
                    end = at;
                    break;
                }
                c => name.push(c),
            }
        }
        if name.is_empty() {
            return None;
        }
        steps.push(name);
        rest = &rest[end..];
    }
    (!steps.is_empty()).then_some(steps)
}

/// The first value at a path.
fn jsonpath<'a, S: AsRef<str>>(value: &'a Value, steps: &[S]) -> Option<&'a Value> {
    let Some((step, rest)) = steps.split_first() else { return Some(value) };
    let step = step.as_ref();
    if let Some(index) = step.strip_prefix('[') {
        let items = value.as_array()?;
        let index: i64 = index.parse().ok()?;
        let at = if index < 0 { items.len() as i64 + index } else { index };
        return jsonpath(items.get(usize::try_from(at).ok()?)?, rest);
    }
    if let Some(filter) = step.strip_prefix("?(@") {
        let (path, wanted) = filter.split_once("==")?;
        let path = self::steps(path.trim())?;
        let wanted = wanted.trim().trim_matches(['\'', '"']);
        let fits = |item: &&Value| match jsonpath(item, &path) {
            Some(Value::String(text)) => text == wanted,
            Some(other) => other.to_string() == wanted,
            None => false,
        };
        return value.as_array()?.iter().filter(fits).find_map(|item| jsonpath(item, rest));
    }
    jsonpath(value.get(step)?, rest)
}

pub const fn column(name: &'static str, cell: fn(&Object, Timestamp) -> String) -> Column {
    Column { name: Cow::Borrowed(name), wide: false, cell: Cell::Text(cell) }
}
pub const fn wide(name: &'static str, cell: fn(&Object, Timestamp) -> String) -> Column {
    Column { name: Cow::Borrowed(name), wide: true, cell: Cell::Text(cell) }
}

pub const NAME: Column = column("NAME", |o, _| o.name().to_owned());
pub const AGE: Column = column("AGE", |o, now| age(&o.0["metadata"]["creationTimestamp"], now));

/// The columns of a kind that asks for none.
pub const PLAIN: &[Column] = &[NAME, AGE];

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cell_shows_the_beginning_of_what_is_long() {
        let cell = |value: Value| {
            let column = of_definition(&json!({"name": "C", "type": "string", "jsonPath": ".spec.it"}));
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
}
