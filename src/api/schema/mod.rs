//! The schemas of kinds: for each field its type, how its list merges, and by which keys. A compact tree, compiled from
//! k8s-openapi's JSON schemas (`definitions`) when a kind is first used, plus a table of what these lack (`merge_keys`).

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

pub mod burden;
mod compile;
pub mod decode;
mod definitions;
pub mod interned;
mod merge_keys;
pub mod openapi;

pub use definitions::Defined;

/// The type of a value.
#[derive(Clone, Debug)]
pub enum Type {
    /// Any JSON, as a single value (`RawExtension`, `FieldsV1`).
    Any,
    /// Content that a custom resource's schema preserves as unknown: maps merge, lists do not.
    Unknown,
    String,
    /// Base64.
    Bytes,
    /// RFC 3339; `micro` keeps microseconds.
    Time {
        micro: bool,
    },
    Quantity,
    IntOrString,
    Integer {
        bits: u8,
    },
    Number,
    Boolean,
    Map(Arc<Type>),
    List(Arc<List>),
    Struct(Arc<Struct>),
}

/// A list and its merge rule.
#[derive(Clone, Debug)]
pub struct List {
    pub item: Type,
    pub kind: ListKind,
    /// The keys of a custom resource's list: `Topology::Own`.
    pub own_keys: Box<[Box<str>]>,
}

impl List {
    /// A list of a built-in kind.
    pub fn of(item: Type, kind: ListKind) -> List {
        List { item, kind, own_keys: Box::default() }
    }

    /// The keys of its items for server-side apply; none if they are plain values, or it is atomic.
    pub fn keys(&self) -> Vec<&str> {
        match self.kind.topology {
            Topology::Map(keys) => keys.to_vec(),
            Topology::Own => self.own_keys.iter().map(|key| &**key).collect(),
            Topology::Atomic | Topology::Set => Vec::new(),
        }
    }

    /// The default of an item's key, if the schema has one.
    pub fn default(&self, key: &str) -> Option<&serde_json::Value> {
        let Type::Struct(item) = &self.item else { return None };
        item.field(key)?.default.as_deref()
    }
}

/// Upstream's `x-kubernetes-list-type` with its keys, and `x-kubernetes-patch-strategy` with its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListKind {
    /// `Some`: a strategic merge patch merges the list: by this key, or as a set of plain values if it is "".
    pub merge_key: Option<&'static str>,
    /// The list type for server-side apply.
    pub topology: Topology,
}

/// Upstream's `x-kubernetes-list-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// A single value: setting it replaces it.
    #[default]
    Atomic,
    /// A set of plain values.
    Set,
    /// Items identified by these keys.
    Map(&'static [&'static str]),
    /// Items identified by the list's own keys: those of a CRD, which may be deleted.
    Own,
}

impl ListKind {
    /// The keys of the items in a merge; none: the items are plain values.
    pub fn keys(&self) -> &[&'static str] {
        match (&self.topology, &self.merge_key) {
            (Topology::Map(keys), _) => keys,
            (_, Some(key)) if !key.is_empty() => std::slice::from_ref(key),
            _ => &[],
        }
    }
}

/// A JSON object with known fields.
#[derive(Debug)]
pub struct Struct {
    /// The Go name: `Container`.
    pub name: String,
    /// The name in Go's errors: `v1.Container`.
    pub go_type: String,
    /// Its package: `core/v1`.
    pub package: String,
    /// Server-side apply treats all its fields as a single value: upstream's `x-kubernetes-map-type: atomic`.
    pub atomic: bool,
    /// It may have unknown fields.
    pub open: bool,
    fields: OnceLock<Fields>,
    /// How large its type is, once that was asked for.
    inline: OnceLock<usize>,
}

/// Sorted by name.
type Fields = Box<[(Box<str>, Field)]>;

#[derive(Clone, Debug)]
pub struct Field {
    pub of: Type,
    /// Upstream's patch strategy `retainKeys`: a patch may clear all other fields.
    pub retain_keys: bool,
    /// A strategic merge patch replaces it: upstream's patch strategy `replace`.
    pub replace: bool,
    /// Server-side apply treats the map as a single value: upstream's `x-kubernetes-map-type: atomic`.
    pub atomic: bool,
    /// The default in a custom resource's schema, if it is a plain value: it may be a list's key.
    pub default: Option<Box<serde_json::Value>>,
}

impl Default for Field {
    fn default() -> Field {
        Field { of: Type::Any, retain_keys: false, replace: false, atomic: false, default: None }
    }
}

impl Struct {
    /// A struct of a custom resource.
    pub fn custom(name: &str, mut fields: Vec<(Box<str>, Field)>, atomic: bool, open: bool) -> Arc<Struct> {
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        let go_type = "map[string]interface {}".to_owned();
        let fields = OnceLock::from(Fields::from(fields));
        Arc::new(Struct {
            name: name.to_owned(),
            go_type,
            package: String::new(),
            atomic,
            open,
            fields,
            inline: OnceLock::new(),
        })
    }
    pub fn field(&self, name: &str) -> Option<&Field> {
        let fields = self.fields.get()?;
        let at = fields.binary_search_by(|(n, _)| (**n).cmp(name)).ok()?;
        Some(&fields[at].1)
    }
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Field)> {
        self.fields.get().into_iter().flatten().map(|(n, f)| (&**n, f))
    }
    /// The type at a dotted path of plain fields: `spec.nodeName`.
    pub fn at(&self, path: &str) -> Option<Type> {
        let (first, rest) = path.split_once('.').unwrap_or((path, ""));
        match &self.field(first)?.of {
            found if rest.is_empty() => Some(found.clone()),
            Type::Struct(inner) => inner.at(rest),
            _ => None,
        }
    }
}

impl Type {
    /// The Go name of the type, for errors.
    pub fn go(&self) -> String {
        match self {
            Type::Any => "runtime.RawExtension".into(),
            Type::Unknown => "interface {}".into(),
            Type::String => "string".into(),
            Type::Bytes => "[]uint8".into(),
            Type::Time { micro: false } => "v1.Time".into(),
            Type::Time { micro: true } => "v1.MicroTime".into(),
            Type::Quantity => "resource.Quantity".into(),
            Type::IntOrString => "intstr.IntOrString".into(),
            Type::Integer { bits } => format!("int{bits}"),
            Type::Number => "float64".into(),
            Type::Boolean => "bool".into(),
            Type::Map(of) => format!("map[string]{}", of.go()),
            Type::List(list) => format!("[]{}", list.item.go()),
            Type::Struct(s) => s.go_type.clone(),
        }
    }
}

impl Type {
    /// The error of upstream's map converter for a value that Go's decoder calls `got`.
    fn not_restored(&self, got: &str) -> String {
        let from = match got {
            "object" => "map",
            "array" => "slice",
            "number" => "int64",
            other => other,
        };
        match self {
            Type::Struct(_) => format!("cannot restore struct from: {from}"),
            Type::List(_) | Type::Bytes => format!("cannot restore slice from {from}"),
            Type::Map(_) => format!("cannot restore map from {from}"),
            Type::Integer { .. } | Type::Number | Type::String | Type::Boolean => {
                format!("unrecognized type: {}", self.go())
            }
            // Types with their own decoder report JSON's errors.
            _ => format!("json: cannot unmarshal {got} into Go value of type {}", self.go()),
        }
    }
}

/// All definitions compiled so far, by name; kinds share them (a Deployment's template contains a Pod's).
static DEFINITIONS: LazyLock<Mutex<HashMap<String, Arc<Struct>>>> = LazyLock::new(Default::default);

/// All structs compiled so far.
#[cfg(test)]
pub(crate) fn compiled() -> Vec<Arc<Struct>> {
    DEFINITIONS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).values().cloned().collect()
}

/// The compiled schema of a definition, by its name: `io.k8s.api.core.v1.Pod`.
pub fn of(name: &'static str) -> Arc<Struct> {
    let mut definitions = DEFINITIONS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = definitions.get(name) {
        return known.clone();
    }
    compile::root(&mut definitions, name)
}

/// The type of every object's metadata.
pub fn metadata() -> Type {
    Type::Struct(of(k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta::NAME))
}
