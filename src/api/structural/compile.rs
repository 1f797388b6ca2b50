//! Converts a structural schema to the tree that patches, server-side apply and field selectors use for every kind.

use std::sync::Arc;

use serde_json::Value;

use super::{ListType, Of, Schema};
use crate::schema::{Field, List, ListKind, Struct, Topology, Type};

/// The tree of a whole object; `metadata` is the common type.
pub fn object(kind: &str, schema: &Schema, metadata: Type) -> Arc<Struct> {
    let plain = |of: Type| Field { of, ..Field::default() };
    let mut fields: Vec<(Box<str>, Field)> = vec![
        ("apiVersion".into(), plain(Type::String)),
        ("kind".into(), plain(Type::String)),
        ("metadata".into(), plain(metadata)),
    ];
    let own = schema.properties.iter().filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata"));
    fields.extend(own.map(|(name, of)| (name.as_str().into(), field(of))));
    Struct::custom(kind, fields, false, schema.is_open())
}

fn field(schema: &Schema) -> Field {
    Field {
        of: of(schema),
        atomic: schema.is_atomic_map,
        default: schema.default.clone().filter(|v: &Value| !v.is_object() && !v.is_array()).map(Box::new),
        ..Field::default()
    }
}

fn of(schema: &Schema) -> Type {
    if schema.int_or_string {
        return Type::IntOrString;
    }
    match schema.of {
        Some(Of::String) => Type::String,
        Some(Of::Integer) => Type::Integer { bits: 64 },
        Some(Of::Number) => Type::Number,
        Some(Of::Boolean) => Type::Boolean,
        Some(Of::Array) => {
            let item = schema.items.as_deref().map_or(Type::Any, of);
            let (topology, keys) = match &schema.list_type {
                ListType::Atomic => (Topology::Atomic, &[][..]),
                ListType::Set => (Topology::Set, &[][..]),
                ListType::Map(keys) => (Topology::Own, keys.as_slice()),
            };
            let own_keys = keys.iter().map(|key| key.as_str().into()).collect();
            Type::List(Arc::new(List { item, kind: ListKind { merge_key: None, topology }, own_keys }))
        }
        _ if schema.properties.is_empty() && schema.additional.is_some() => {
            Type::Map(Arc::new(schema.additional.as_deref().map_or(Type::Any, of)))
        }
        Some(Of::Object) | None if !schema.properties.is_empty() || schema.of.is_some() => {
            let fields = schema.properties.iter().map(|(name, of)| (name.as_str().into(), field(of))).collect();
            Type::Struct(Struct::custom("", fields, schema.is_atomic_map, schema.is_open() || schema.is_embedded))
        }
        // Unknown content: its maps merge, its lists do not.
        _ => Type::Unknown,
    }
}
