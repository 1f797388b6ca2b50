//! The values of expressions, and their conversion from JSON.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value as Json;

use super::{format::Format, semver::Semver, url::Url};
use crate::Quantity;

/// A value. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
    List(Arc<List>),
    Map(Arc<Map>),
    Timestamp(Timestamp),
    Duration(SignedDuration),
    /// A type as a value: the result of `type(x)`.
    Type(Arc<str>),
    Optional(Option<Arc<Value>>),
    Quantity(Quantity),
    Ip(std::net::IpAddr),
    Cidr(ipnet::IpNet),
    Url(Arc<Url>),
    Semver(Arc<Semver>),
    Format(&'static Format),
    /// A value that the caller defines, with its own members.
    Host(Arc<dyn Host>),
}

/// A list, which is compared and added by the `x-kubernetes-list-type` of its schema.
#[derive(Clone, Debug, Default)]
pub struct List {
    pub items: Vec<Value>,
    pub kind: ListKind,
    size: Size,
}

/// The size of a value as a tree. Values are shared, so a small expression can build trees of 2^n parts: traversals are charged
/// before they start, by sizes that are computed when the parts are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// The number of its parts.
    pub weight: u64,
    /// The steps of a comparison with a similar value; more than the parts if the order of a list does not count.
    pub steps: u64,
}

/// A longer name is charged where it is looked up, or becomes a key.
const LONG_NAME: usize = 64;

/// The cost of a long name.
pub fn name_cost(name: &str) -> u64 {
    if name.len() > LONG_NAME { name.len() as u64 / 10 } else { 0 }
}

impl Size {
    const fn flat(parts: u64) -> Size {
        Size { weight: parts, steps: parts }
    }

    /// Adds one part.
    fn and(self, part: Size) -> Size {
        Size {
            weight: self.weight.saturating_add(1).saturating_add(part.weight),
            steps: self.steps.saturating_add(1).saturating_add(part.steps),
        }
    }

    /// Adds this many steps and parts.
    fn and_steps(self, more: u64) -> Size {
        Size { weight: self.weight.saturating_add(more), steps: self.steps.saturating_add(more) }
    }

    /// Adds the key of an entry, if it is long.
    fn named(self, key: &Value) -> Size {
        match key {
            Value::String(name) => self.and_steps(name_cost(name)),
            _ => self,
        }
    }

    /// Whether a comparison takes one step per part.
    pub fn is_plain(self) -> bool {
        self.steps == self.weight
    }
}

/// Upstream's list types, as relevant for expressions.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ListKind {
    #[default]
    Atomic,
    /// Order is irrelevant; adding skips existing items.
    Set,
    /// Items are identified by these keys; order is irrelevant, adding replaces.
    Map(Arc<[String]>),
}

/// A map, or an object with fields.
#[derive(Clone, Debug, Default)]
pub struct Map {
    pub fields: BTreeMap<Arc<str>, Value>,
    /// Entries of a literal with keys other than strings.
    others: BTreeMap<Key, (Value, Value)>,
    size: Size,
}

/// A key that is not a string: equal numbers are the same key, whatever their types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Bool(bool),
    Number(i128),
}

impl Key {
    fn of(value: &Value) -> Option<Key> {
        match value {
            Value::Bool(b) => Some(Key::Bool(*b)),
            Value::Int(i) => Some(Key::Number(i128::from(*i))),
            Value::Uint(u) => Some(Key::Number(i128::from(*u))),
            // In this range a whole double is a number that an i128 represents.
            Value::Double(d) if d.fract() == 0.0 && d.abs() < 1e30 => Some(Key::Number(*d as i128)),
            _ => None,
        }
    }
}

impl List {
    pub fn new(items: Vec<Value>, kind: ListKind) -> List {
        let mut size = items.iter().fold(Size::default(), |size, item| size.and(item.size()));
        if kind != ListKind::Atomic {
            size.steps = size.steps.saturating_mul(items.len() as u64);
        }
        List { items, kind, size }
    }
    pub fn size(&self) -> Size {
        self.size
    }
}

/// A value of the caller's whose members are computed on demand: an authorizer, lazy variables.
pub trait Host: fmt::Debug + Send + Sync {
    fn type_name(&self) -> &'static str;
    /// The member `name`, if it has one.
    fn field(&self, _name: &str) -> Option<Result<Value, super::Error>> {
        None
    }
    /// The cost of a call of the method `name`, in addition to the step itself and its string arguments.
    fn cost(&self, _name: &str) -> u64 {
        0
    }
    /// Calls the method `name`, if it has one.
    fn call(&self, _name: &str, _arguments: &[Value]) -> Option<Result<Value, super::Error>> {
        None
    }
}

impl Map {
    pub fn len(&self) -> usize {
        self.fields.len() + self.others.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn get(&self, key: &Value) -> Option<&Value> {
        match key {
            Value::String(name) => self.fields.get(name),
            other => self.others.get(&Key::of(other)?).map(|(_, value)| value),
        }
    }
    /// Adds an entry; false if the key exists already, or is invalid.
    pub fn insert(&mut self, key: Value, value: Value) -> bool {
        if self.get(&key).is_some() {
            return false;
        }
        let size = self.size.and(value.size()).named(&key);
        match (Key::of(&key), key) {
            (_, Value::String(name)) => drop(self.fields.insert(name, value)),
            (Some(of), key) => drop(self.others.insert(of, (key, value))),
            (None, _) => return false,
        }
        self.size = size;
        true
    }
    pub fn entries(&self) -> impl Iterator<Item = (Value, &Value)> {
        let named = self.fields.iter().map(|(name, value)| (Value::String(name.clone()), value));
        named.chain(self.others.values().map(|(key, value)| (key.clone(), value)))
    }
}

impl Value {
    pub fn string(text: impl Into<Arc<str>>) -> Value {
        Value::String(text.into())
    }
    pub fn list(items: Vec<Value>) -> Value {
        Value::List(Arc::new(List::new(items, ListKind::Atomic)))
    }
    pub fn map(fields: impl IntoIterator<Item = (Arc<str>, Value)>) -> Value {
        let fields: BTreeMap<Arc<str>, Value> = fields.into_iter().collect();
        let size = fields
            .iter()
            .fold(Size::default(), |size, (name, value)| size.and(value.size()).and_steps(name_cost(name)));
        Value::Map(Arc::new(Map { fields, others: BTreeMap::new(), size }))
    }
    pub fn some(value: Value) -> Value {
        Value::Optional(Some(Arc::new(value)))
    }

    /// Converts JSON without a schema: whole numbers are ints, other numbers doubles.
    pub fn from_json(json: &Json) -> Value {
        match json {
            Json::Null => Value::Null,
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(i), _) => Value::Int(i),
                (_, Some(u)) => Value::Uint(u),
                _ => Value::Double(n.as_f64().unwrap_or_default()),
            },
            Json::String(s) => Value::string(s.as_str()),
            Json::Array(items) => Value::list(items.iter().map(Value::from_json).collect()),
            Json::Object(map) => Value::map(map.iter().map(|(k, v)| (Arc::from(k.as_str()), Value::from_json(v)))),
        }
    }

    /// Converts a value to JSON: times as RFC 3339, bytes in base64. `None`: types, optionals, host values.
    pub fn to_json(&self) -> Option<Json> {
        Some(match self {
            Value::Null => Json::Null,
            Value::Bool(b) => (*b).into(),
            Value::Int(i) => (*i).into(),
            Value::Uint(u) => (*u).into(),
            Value::Double(d) => serde_json::Number::from_f64(*d)?.into(),
            Value::String(s) => (&**s).into(),
            Value::Bytes(bytes) => {
                use base64::Engine;
                base64::engine::general_purpose::STANDARD.encode(bytes).into()
            }
            Value::List(list) => Json::Array(list.items.iter().map(Value::to_json).collect::<Option<_>>()?),
            Value::Map(map) if map.others.is_empty() => {
                let fields = map.fields.iter().map(|(name, value)| Some((name.to_string(), value.to_json()?)));
                Json::Object(fields.collect::<Option<_>>()?)
            }
            Value::Timestamp(_) | Value::Duration(_) | Value::Quantity(_) | Value::Ip(_) | Value::Cidr(_) => {
                self.text()?.into()
            }
            _ => return None,
        })
    }

    /// The result of `string(x)`, if defined.
    pub fn text(&self) -> Option<String> {
        Some(match self {
            Value::Bool(b) => b.to_string(),
            Value::Int(i) => i.to_string(),
            Value::Uint(u) => u.to_string(),
            Value::Double(d) => double_text(*d),
            Value::String(s) => s.to_string(),
            Value::Bytes(bytes) => String::from_utf8(bytes.to_vec()).ok()?,
            Value::Timestamp(time) => time.to_string(),
            Value::Duration(duration) => duration_text(*duration),
            Value::Quantity(quantity) => quantity.to_string(),
            Value::Ip(ip) => ip.to_string(),
            Value::Cidr(cidr) => cidr.to_string(),
            _ => return None,
        })
    }

    /// The name of its type, for errors and `type(x)`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::String(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::List(_) => "list",
            Value::Map(_) => "map",
            Value::Timestamp(_) => "google.protobuf.Timestamp",
            Value::Duration(_) => "google.protobuf.Duration",
            Value::Type(_) => "type",
            Value::Optional(_) => "optional_type",
            Value::Quantity(_) => "kubernetes.Quantity",
            Value::Ip(_) => "net.IP",
            Value::Cidr(_) => "net.CIDR",
            Value::Url(_) => "kubernetes.URL",
            Value::Semver(_) => "kubernetes.Semver",
            Value::Format(_) => "kubernetes.NamedFormat",
            Value::Host(host) => host.type_name(),
        }
    }

    /// Its size, without a traversal.
    pub fn size(&self) -> Size {
        match self {
            Value::String(s) => Size::flat(s.len() as u64 / 10),
            Value::Bytes(bytes) => Size::flat(bytes.len() as u64 / 10),
            Value::List(list) => list.size,
            Value::Map(map) => map.size,
            Value::Optional(Some(inner)) => inner.size(),
            Value::Url(url) => Size::flat(url.length() as u64 / 10),
            Value::Semver(version) => Size::flat(version.pre.len() as u64 / 10),
            _ => Size::default(),
        }
    }

    /// The number of parts that a copy traverses, which is its cost.
    pub fn weight(&self) -> u64 {
        self.size().weight
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Value {
        Value::Bool(b)
    }
}
impl From<i64> for Value {
    fn from(i: i64) -> Value {
        Value::Int(i)
    }
}
impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::string(text)
    }
}
impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::string(text)
    }
}

impl PartialEq for Value {
    /// CEL's equality: numbers by value, values of different types differ.
    fn eq(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::String(a), Value::String(b)) => a == b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::List(a), Value::List(b)) => same_list(a, b),
            (Value::Map(a), Value::Map(b)) => {
                a.len() == b.len() && a.entries().all(|(key, value)| b.get(&key) == Some(value))
            }
            (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
            (Value::Duration(a), Value::Duration(b)) => a == b,
            (Value::Type(a), Value::Type(b)) => a == b,
            (Value::Optional(a), Value::Optional(b)) => a == b,
            (Value::Quantity(a), Value::Quantity(b)) => a == b,
            (Value::Ip(a), Value::Ip(b)) => a == b,
            (Value::Cidr(a), Value::Cidr(b)) => a == b,
            (Value::Url(a), Value::Url(b)) => a == b,
            (Value::Semver(a), Value::Semver(b)) => a == b,
            (Value::Format(a), Value::Format(b)) => std::ptr::eq(*a, *b),
            _ => compare_numbers(self, other) == Some(Ordering::Equal),
        }
    }
}

fn same_list(a: &List, b: &List) -> bool {
    if a.items.len() != b.items.len() {
        return false;
    }
    match (&a.kind, &b.kind) {
        (ListKind::Atomic, ListKind::Atomic) => a.items == b.items,
        // Even if only one side is ordered, upstream compares by the schema's type.
        _ => a.items.iter().all(|item| b.items.contains(item)) && b.items.iter().all(|item| a.items.contains(item)),
    }
}

/// A double in Go's format: `1`, `1.5`, `1e+21`.
pub fn double_text(d: f64) -> String {
    match d {
        d if d.is_nan() => "NaN".into(),
        d if d.is_infinite() => if d > 0.0 { "+Inf" } else { "-Inf" }.into(),
        d if d != 0.0 && (d.abs() >= 1e21 || d.abs() < 1e-4) => {
            let text = format!("{d:e}");
            // Go prints a sign and at least two digits of the exponent.
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let (sign, digits) = exponent.strip_prefix('-').map_or(("+", exponent), |digits| ("-", digits));
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        d => d.to_string(),
    }
}

/// A duration in CEL's format: `90.5s`.
fn duration_text(duration: SignedDuration) -> String {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos().unsigned_abs());
    let sign = if seconds == 0 && duration.is_negative() { "-" } else { "" };
    match nanos {
        0 => format!("{seconds}s"),
        _ => format!("{sign}{seconds}.{}s", format!("{nanos:09}").trim_end_matches('0')),
    }
}

/// Compares numbers by value, whatever their types.
pub fn compare_numbers(a: &Value, b: &Value) -> Option<Ordering> {
    let whole = |value: &Value| match value {
        Value::Int(i) => Some(i128::from(*i)),
        Value::Uint(u) => Some(i128::from(*u)),
        _ => None,
    };
    match (a, b) {
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Double(d), other) => compare_double(*d, whole(other)?),
        (other, Value::Double(d)) => compare_double(*d, whole(other)?).map(Ordering::reverse),
        _ => Some(whole(a)?.cmp(&whole(b)?)),
    }
}

fn compare_double(d: f64, whole: i128) -> Option<Ordering> {
    if d.is_nan() {
        return None;
    }
    // Below this, a double's integer part fits an i128; a larger one exceeds every integer.
    if d.abs() >= 1e30 {
        return Some(if d > 0.0 { Ordering::Greater } else { Ordering::Less });
    }
    let floor = d.floor();
    Some((floor as i128).cmp(&whole).then(if d > floor { Ordering::Greater } else { Ordering::Equal }))
}
