//! Upstream's validation: rules over JSON trees that report fields by path, in upstream's reasons and words.
//!
//! A rule traverses with `At`, a value with its path, and reports to `Errors`. The decoder has checked types already, so a rule
//! only meets absent values and values of the right type.

use serde_json::Value;

use super::{Cause, field_path};

pub mod admission;
pub mod bounds;
pub mod job;
mod job_indexes;
pub mod metadata;
pub mod names;
pub mod pod;
pub mod selectors;
pub mod service;
pub mod webhook;
pub mod workload;

pub use names::path_segment;

/// The valid names of a kind's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// A DNS-1123 subdomain.
    Subdomain,
    /// A DNS-1123 label.
    Label,
    /// A DNS-1035 label.
    Dns1035Label,
    /// Any segment of a URL path.
    PathSegment,
}

impl NameRule {
    pub fn check(self, name: &str) -> Vec<String> {
        match self {
            NameRule::Subdomain => names::dns1123_subdomain(name),
            NameRule::Label => names::dns1123_label(name),
            NameRule::Dns1035Label => names::dns1035_label(name),
            NameRule::PathSegment => names::path_segment(name),
        }
    }
}

/// A value with its path.
#[derive(Clone, Debug)]
pub struct At<'a> {
    pub value: &'a Value,
    pub path: String,
}

static NULL: Value = Value::Null;

impl<'a> At<'a> {
    /// The root of an object.
    pub fn root(value: &'a Value) -> At<'a> {
        At { value, path: String::new() }
    }
    /// A field of a struct.
    pub fn get(&self, field: &str) -> At<'a> {
        At { value: self.value.get(field).unwrap_or(&NULL), path: self.path(field) }
    }
    /// The path of a field.
    pub fn path(&self, field: &str) -> String {
        field_path::field(&self.path, field)
    }
    /// The path of a map's key, in brackets.
    pub fn key_path(&self, key: &str) -> String {
        field_path::key(&self.path, key)
    }
    /// The items of a list; none if it is absent.
    pub fn items(&self) -> impl Iterator<Item = At<'a>> + use<'a> {
        let path = self.path.clone();
        let items = self.value.as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().enumerate().map(move |(i, value)| At { value, path: field_path::index(&path, i) })
    }
    /// The entries of a map; none if it is absent. Each is at `path[key]`.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, At<'a>)> + use<'a> {
        let path = self.path.clone();
        let entries = self.value.as_object().into_iter().flatten();
        entries.map(move |(key, value)| (key.as_str(), At { value, path: field_path::key(&path, key) }))
    }
    pub fn is_set(&self) -> bool {
        !self.value.is_null()
    }
    /// "" if it is absent.
    pub fn str(&self) -> &'a str {
        self.value.as_str().unwrap_or("")
    }
    pub fn int(&self) -> Option<i64> {
        self.value.as_i64()
    }
    /// `false` if it is absent.
    pub fn bool(&self) -> bool {
        self.value.as_bool().unwrap_or(false)
    }
    pub fn len(&self) -> usize {
        match self.value {
            Value::Array(a) => a.len(),
            Value::Object(o) => o.len(),
            Value::String(s) => s.len(),
            _ => 0,
        }
    }
    /// Absent, or an empty list, map or string.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The errors of an object so far. If there are many thousands only the first are reported: the response must not be so much larger
/// than the request.
#[derive(Debug, Default)]
pub struct Errors(pub Vec<Cause>);

/// The reason for exceeded limits, which are all reported in this form: existing lists that exceed a newer limit may stay as long.
pub const TOO_MANY: &str = "FieldValueTooMany";

/// How many causes are reported, and how many bytes of each message.
pub const MAX_CAUSES: usize = 1000;
pub const MAX_MESSAGE: usize = 8 << 10;

impl Errors {
    fn add(&mut self, reason: &str, path: impl AsRef<str>, message: String) {
        if self.is_full() {
            return;
        }
        let message = match message.len() > MAX_MESSAGE {
            true => format!("{}...", field_path::head(&message, MAX_MESSAGE)),
            false => message,
        };
        self.0.push(Cause { reason: reason.to_owned(), message, field: path.as_ref().to_owned() });
    }

    /// Further ones are dropped.
    fn is_full(&self) -> bool {
        self.0.len() >= MAX_CAUSES
    }

    /// `Required value`, with further detail.
    pub fn required(&mut self, path: impl AsRef<str>, detail: &str) {
        let message = if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        self.add("FieldValueRequired", path, message);
    }
    /// `Invalid value: "x": must ...`
    pub fn invalid(&mut self, path: impl AsRef<str>, value: impl Into<Value>, detail: impl AsRef<str>) {
        if !self.is_full() {
            self.invalid_value(path, &value.into(), detail);
        }
    }
    /// The same for a value of any size, which is not copied.
    pub fn invalid_value(&mut self, path: impl AsRef<str>, value: &Value, detail: impl AsRef<str>) {
        if self.is_full() {
            return;
        }
        let (value, detail) = (shown(value), detail.as_ref());
        let message = if detail.is_empty() {
            format!("Invalid value: {value}")
        } else {
            format!("Invalid value: {value}: {detail}")
        };
        self.add("FieldValueInvalid", path, message);
    }
    /// One error for each message of a syntax check.
    pub fn invalid_each(&mut self, path: &str, value: &str, details: Vec<String>) {
        for detail in details {
            self.invalid(path, value, detail);
        }
    }
    /// `Unsupported value: "x": supported values: "A", "B"`
    pub fn not_supported(&mut self, path: impl AsRef<str>, value: &str, supported: &[&str]) {
        let mut names: Vec<String> = supported.iter().map(|s| format!("\"{s}\"")).collect();
        names.sort();
        let message = format!("Unsupported value: \"{value}\": supported values: {}", names.join(", "));
        self.add("FieldValueNotSupported", path, message);
    }
    pub fn duplicate(&mut self, path: impl AsRef<str>, value: impl Into<Value>) {
        self.add("FieldValueDuplicate", path, format!("Duplicate value: {}", shown(&value.into())));
    }
    pub fn forbidden(&mut self, path: impl AsRef<str>, detail: impl AsRef<str>) {
        self.add("FieldValueForbidden", path, format!("Forbidden: {}", detail.as_ref()));
    }
    pub fn not_found(&mut self, path: impl AsRef<str>, value: &str) {
        self.add("FieldValueNotFound", path, format!("Not found: \"{value}\""));
    }
    pub fn too_long(&mut self, path: impl AsRef<str>, max: usize) {
        self.add("FieldValueTooLong", path, format!("Too long: may not be more than {max} bytes"));
    }
    pub fn too_many(&mut self, path: impl AsRef<str>, got: usize, max: usize) {
        self.too_many_of(path, got, max, "items");
    }
    /// The same for something other than a list.
    pub fn too_many_of(&mut self, path: impl AsRef<str>, got: usize, max: usize, what: &str) {
        self.add(TOO_MANY, path, format!("Too many: {got}: must have at most {max} {what}"));
    }
    /// A list or map with a limit.
    pub fn at_most(&mut self, at: &At<'_>, max: usize) {
        if at.len() > max {
            self.too_many(&at.path, at.len(), max);
        }
    }

    /// A string with a few valid values; empty counts as absent and is `Required`.
    pub fn one_of(&mut self, at: &At<'_>, supported: &[&str]) {
        match at.str() {
            "" => self.required(&at.path, ""),
            value if !supported.contains(&value) => self.not_supported(&at.path, value, supported),
            _ => {}
        }
    }
    /// A number that may be absent but not negative.
    pub fn non_negative(&mut self, at: &At<'_>) {
        if let Some(n) = at.int().filter(|n| *n < 0) {
            self.invalid(&at.path, n, "must be greater than or equal to 0");
        }
    }
    /// An immutable value.
    pub fn immutable(&mut self, new: &At<'_>, old: &At<'_>) {
        if !same(new.value, old.value) {
            self.invalid_value(&new.path, new.value, "field is immutable");
        }
    }
}

/// Upstream's semantic equality: absent, null and empty are equal.
pub fn same(a: &Value, b: &Value) -> bool {
    let empty = |v: &Value| match v {
        Value::Null => true,
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        _ => false,
    };
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let missing = &Value::Null;
            x.iter().all(|(k, v)| same(v, y.get(k).unwrap_or(missing)))
                && y.iter().all(|(k, v)| x.contains_key(k) || same(missing, v))
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(a, b)| same(a, b)),
        _ => a == b || (empty(a) && empty(b)),
    }
}

/// A value as messages show it, truncated: lists and maps may be as large as the object.
fn shown(value: &Value) -> String {
    if let Value::String(s) = value {
        return format!("{:?}", field_path::head(s, MAX_MESSAGE));
    }
    let mut begin = Begin(Vec::new());
    // Fails when the buffer is full.
    serde_json::to_writer(&mut begin, value).ok();
    String::from_utf8_lossy(&begin.0).into_owned()
}

/// A buffer for the beginning of the output, limited to one message.
struct Begin(Vec<u8>);

impl std::io::Write for Begin {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let room = (MAX_MESSAGE + 1).saturating_sub(self.0.len());
        self.0.extend_from_slice(&bytes[..room.min(bytes.len())]);
        Ok(room.min(bytes.len()))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
