//! Objects in protobuf, as client-go's typed clients send them, converted to JSON with the kinds' schemas.
//!
//! The schemas have names and types; `numbers.txt` has the field numbers. Go encodes every plain field, set or not: an empty
//! string, a 0 and a false are dropped where they mean nothing, as in Go's JSON. CustomResourceDefinitions and custom resources are
//! JSON or YAML only.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::kinds;
use super::schema::{self, Defined, Struct, Type};
use wire::{Reader, Wire};

mod wire;
mod write;

pub use wire::WireError;
pub use write::Writer;

pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Why a body contains no object.
#[derive(Debug, thiserror::Error)]
pub enum ProtobufError {
    #[error("the body does not begin with the protobuf prefix")]
    Prefix,
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("no kind {kind:?} in version {api_version:?}")]
    UnknownKind { api_version: String, kind: String },
    /// This kind is JSON or YAML only.
    #[error("{0} is not known in protobuf")]
    NoNumbers(String),
    #[error("messages are nested too deep")]
    TooDeep,
    #[error("a list of lists")]
    ListOfLists,
    /// Embedded JSON is invalid.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Nanoseconds(#[from] std::num::TryFromIntError),
    #[error(transparent)]
    Time(#[from] jiff::Error),
}

/// The prefix of every body.
const MAGIC: &[u8] = b"k8s\0";
/// The maximum nesting, deeper than any object.
const DEEPEST: usize = 64;

/// Field numbers by package and type. A package has a line of its own (`core/v1`), followed by its types: the type, then its
/// fields, numbered from 1. `@7`: the next field's number. `name?`: it may be unset, so 0 is a value. `+Type`: that type's fields
/// are inlined in JSON.
static NUMBERS: LazyLock<HashMap<(&str, &str), Vec<(u32, Entry)>>> = LazyLock::new(|| {
    let mut all = HashMap::new();
    let mut package = "";
    for line in include_str!("numbers.txt").lines().filter(|line| !line.is_empty()) {
        match line.split_once(' ') {
            None => package = line,
            Some((of, fields)) => drop(all.insert((package, of), numbered(fields))),
        }
    }
    all
});

struct Entry {
    name: &'static str,
    optional: bool,
    inline: bool,
}

fn numbered(fields: &'static str) -> Vec<(u32, Entry)> {
    let mut next = 1;
    let mut all = Vec::new();
    for word in fields.split(' ') {
        if let Some(number) = word.strip_prefix('@') {
            next = number.parse().unwrap_or(next);
            continue;
        }
        let (inline, word) = word.strip_prefix('+').map_or((false, word), |word| (true, word));
        let (optional, name) = word.strip_suffix('?').map_or((false, word), |word| (true, word));
        all.push((next, Entry { name, optional, inline }));
        next += 1;
    }
    all
}

/// Bodies of subresources and deletes without kinds of their own.
static OTHERS: &[(&str, &str)] = &[
    ("Binding", k8s_openapi::api::core::v1::Binding::NAME),
    ("DeleteOptions", k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions::NAME),
    ("Eviction", k8s_openapi::api::policy::v1::Eviction::NAME),
    ("Scale", k8s_openapi::api::autoscaling::v1::Scale::NAME),
    ("TokenRequest", k8s_openapi::api::authentication::v1::TokenRequest::NAME),
];

fn schema_of(api_version: &str, kind: &str) -> Option<Arc<Struct>> {
    let other = || OTHERS.iter().find(|(name, _)| *name == kind).map(|(_, name)| schema::of(name));
    kinds::of(api_version, kind).map(|kind| kind.schema()).or_else(other)
}

/// Decodes the object in a body to JSON.
///
/// # Errors
///
/// It is not protobuf, of a kind without protobuf, has types that differ from its schema's, or is nested too deeply.
pub fn decode(body: &[u8]) -> Result<Value, ProtobufError> {
    let envelope = body.strip_prefix(MAGIC).ok_or(ProtobufError::Prefix)?;
    let (mut type_meta, mut raw, mut content_type) = (&[][..], &[][..], String::new());
    let mut reader = Reader(envelope);
    while let Some((number, value)) = reader.next()? {
        match number {
            1 => type_meta = value.bytes()?,
            2 => raw = value.bytes()?,
            4 => content_type = value.text()?,
            _ => {}
        }
    }
    if content_type == "application/json" {
        return Ok(serde_json::from_slice(raw)?);
    }
    let (mut api_version, mut kind) = (String::new(), String::new());
    let mut reader = Reader(type_meta);
    while let Some((number, value)) = reader.next()? {
        match number {
            1 => api_version = value.text()?,
            2 => kind = value.text()?,
            _ => {}
        }
    }
    let Some(schema) = schema_of(&api_version, &kind) else {
        return Err(ProtobufError::UnknownKind { api_version, kind });
    };
    let mut object = Map::new();
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    message(&schema, &schema.name, raw, &mut object, 0)?;
    Ok(object.into())
}

/// Adds a message's fields to `out`, a value of `schema`; `of` is the type whose numbers apply.
fn message(
    schema: &Struct,
    of: &str,
    raw: &[u8],
    out: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), ProtobufError> {
    if depth > DEEPEST {
        return Err(ProtobufError::TooDeep);
    }
    let key = (schema.package.as_str(), of);
    let numbers = NUMBERS.get(&key).ok_or_else(|| ProtobufError::NoNumbers(of.to_owned()))?;
    let mut reader = Reader(raw);
    while let Some((number, value)) = reader.next()? {
        // Fields of newer clients are dropped, as unknown JSON fields may be.
        let Some((_, entry)) = numbers.iter().find(|(n, _)| *n == number) else { continue };
        if entry.inline {
            message(schema, entry.name, value.bytes()?, out, depth + 1)?;
            continue;
        }
        let Some(field) = schema.field(entry.name) else { continue };
        let name = entry.name;
        match &field.of {
            Type::List(list) => {
                let items = out.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(items) = items {
                    repeated(&list.item, value, items, depth)?;
                }
            }
            Type::Map(of) => {
                let entries = out.entry(name).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(entries) = entries {
                    map_entry(of, value.bytes()?, entries, depth)?;
                }
            }
            of => {
                let decoded = single(of, value, depth)?;
                if entry.optional || !is_zero(&decoded) {
                    out.insert(name.into(), decoded);
                }
            }
        }
    }
    Ok(())
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        _ => false,
    }
}

/// One item of a list, or several packed numbers.
fn repeated(of: &Type, value: Wire<'_>, items: &mut Vec<Value>, depth: usize) -> Result<(), ProtobufError> {
    if let (Type::Integer { .. } | Type::Boolean, Wire::Bytes(packed)) = (of, value) {
        let mut reader = Reader(packed);
        while !reader.0.is_empty() {
            items.push(single(of, Wire::Varint(reader.varint()?), depth)?);
        }
        return Ok(());
    }
    items.push(single(of, value, depth)?);
    Ok(())
}

fn map_entry(of: &Type, raw: &[u8], entries: &mut Map<String, Value>, depth: usize) -> Result<(), ProtobufError> {
    let mut key = String::new();
    let mut decoded = None;
    let mut reader = Reader(raw);
    while let Some((number, value)) = reader.next()? {
        match (number, of) {
            (1, _) => key = value.text()?,
            // A list in a map is wrapped in a message.
            (2, Type::List(list)) => {
                let mut items = Vec::new();
                let mut reader = Reader(value.bytes()?);
                while let Some((_, item)) = reader.next()? {
                    repeated(&list.item, item, &mut items, depth)?;
                }
                decoded = Some(items.into());
            }
            (2, of) => decoded = Some(single(of, value, depth)?),
            _ => {}
        }
    }
    entries.insert(key, decoded.unwrap_or_else(|| "".into()));
    Ok(())
}

/// One value; null for Go's unset time.
fn single(of: &Type, value: Wire<'_>, depth: usize) -> Result<Value, ProtobufError> {
    Ok(match of {
        Type::String => value.text()?.into(),
        Type::Bytes => STANDARD.encode(value.bytes()?).into(),
        Type::Boolean => (value.number()? != 0).into(),
        Type::Integer { .. } => value.number()?.into(),
        Type::Number => match value {
            Wire::Fixed64(bits) => f64::from_bits(bits).into(),
            other => other.number()?.into(),
        },
        Type::Time { micro } => time(value.bytes()?, *micro)?,
        Type::Quantity => text_in(value.bytes()?)?.into(),
        Type::IntOrString => int_or_string(value.bytes()?)?,
        Type::Any | Type::Unknown => match bytes_in(value.bytes()?)? {
            [] => Value::Null,
            raw => serde_json::from_slice(raw)?,
        },
        Type::Struct(schema) => {
            let mut fields = Map::new();
            message(schema, &schema.name, value.bytes()?, &mut fields, depth + 1)?;
            fields.into()
        }
        Type::List(_) | Type::Map(_) => return Err(ProtobufError::ListOfLists),
    })
}

/// The first field of a message with a single field.
fn bytes_in(raw: &[u8]) -> Result<&[u8], WireError> {
    let mut found = &[][..];
    let mut reader = Reader(raw);
    while let Some((number, value)) = reader.next()? {
        if number == 1 {
            found = value.bytes()?;
        }
    }
    Ok(found)
}

fn text_in(raw: &[u8]) -> Result<String, WireError> {
    let text = Wire::Bytes(bytes_in(raw)?).text()?;
    Ok(if text.is_empty() { "0".into() } else { text })
}

fn time(raw: &[u8], micro: bool) -> Result<Value, ProtobufError> {
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader(raw);
    while let Some((number, value)) = reader.next()? {
        match number {
            1 => seconds = value.number()?,
            2 => nanos = i32::try_from(value.number()?)?,
            _ => {}
        }
    }
    let time = Timestamp::new(seconds, nanos)?;
    let format = if micro { "%Y-%m-%dT%H:%M:%S%.6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Ok(time.strftime(format).to_string().into())
}

fn int_or_string(raw: &[u8]) -> Result<Value, WireError> {
    let (mut is_text, mut number, mut text) = (false, 0, String::new());
    let mut reader = Reader(raw);
    while let Some((field, value)) = reader.next()? {
        match field {
            1 => is_text = value.number()? == 1,
            2 => number = value.number()?,
            3 => text = value.text()?,
            _ => {}
        }
    }
    Ok(if is_text { text.into() } else { number.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Every field in the table belongs to its type.
    #[test]
    fn the_numbers_are_of_fields_that_there_are() {
        let mut seen = std::collections::HashSet::new();
        // Read-only kinds are never received.
        for kind in kinds::KINDS.iter().filter(|kind| kind.verbs.contains(&crate::Verb::Create)) {
            check(&kind.schema(), &kind.schema().name, &mut seen);
        }
        for (_, name) in OTHERS {
            let schema = schema::of(name);
            check(&schema, &schema.name, &mut seen);
        }
    }

    fn check(schema: &Struct, of: &str, seen: &mut std::collections::HashSet<(String, String)>) {
        if !seen.insert((schema.package.clone(), format!("{} {of}", schema.name))) {
            return;
        }
        let Some(numbers) = NUMBERS.get(&(schema.package.as_str(), of)) else {
            // Schemas of schemas have unions, which are separate messages: CRDs are JSON or YAML only.
            assert_eq!(schema.package, "apiextensions/v1", "{of} has no numbers");
            return;
        };
        for (_, entry) in numbers {
            if entry.inline {
                check(schema, entry.name, seen);
                continue;
            }
            let field = schema.field(entry.name);
            let field =
                field.unwrap_or_else(|| panic!("{}.{} has no field {}", schema.package, schema.name, entry.name));
            let mut of = &field.of;
            loop {
                match of {
                    Type::List(list) => of = &list.item,
                    Type::Map(inner) => of = inner,
                    Type::Struct(inner) => break check(inner, &inner.name, seen),
                    _ => break,
                }
            }
        }
    }

    fn field(number: u8, payload: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, payload.len() as u8][..], payload].concat()
    }

    #[test]
    fn a_message_becomes_the_json_that_go_would_write() {
        let volume = [field(1, b"v"), field(2, &field(2, &[]))].concat();
        let container = [
            field(1, b"c"),
            field(2, b""),
            field(8, &field(1, &[field(1, b"cpu"), field(2, &field(1, b"5m"))].concat())),
        ];
        let spec =
            [field(1, &volume), field(2, &container.concat()), vec![4 << 3, 0], vec![11 << 3, 0], field(10, b"")]
                .concat();
        let metadata = [field(1, b"p"), field(8, &[]), field(11, &[field(1, b"a"), field(2, b"")].concat())].concat();
        let pod = [field(1, &metadata), field(2, &spec)].concat();
        let type_meta = [field(1, b"v1"), field(2, b"Pod")].concat();
        let body = [MAGIC.to_vec(), field(1, &type_meta), field(2, &pod)].concat();
        let wanted = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "labels": {"a": ""}},
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "5m"}}}],
            "terminationGracePeriodSeconds": 0,
        }});
        assert_eq!(decode(&body).unwrap(), wanted);
        for cut in 0..body.len() {
            let _ = decode(&body[..cut]);
        }
    }

    #[test]
    fn what_is_wrong_with_a_body_can_be_told_apart() {
        let body = |api_version: &[u8], kind: &[u8], raw: &[u8]| {
            let type_meta = [field(1, api_version), field(2, kind)].concat();
            decode(&[MAGIC.to_vec(), field(1, &type_meta), field(2, raw)].concat()).unwrap_err()
        };
        let pod = |raw: &[u8]| body(b"v1", b"Pod", raw);
        let says = |why: &ProtobufError, text: &str| assert_eq!(why.to_string(), text, "{why:?}");
        let why = decode(b"{}").unwrap_err();
        assert!(matches!(why, ProtobufError::Prefix), "{why:?}");
        says(&why, "the body does not begin with the protobuf prefix");
        let why = body(b"v1", b"Pot", &[]);
        assert!(matches!(&why, ProtobufError::UnknownKind { kind, .. } if kind == "Pot"), "{why:?}");
        says(&why, "no kind \"Pot\" in version \"v1\"");
        let why = body(b"apiextensions.k8s.io/v1", b"CustomResourceDefinition", &[]);
        assert!(matches!(why, ProtobufError::NoNumbers(_)), "{why:?}");
        // The metadata's length exceeds the input; the metadata are a number.
        let why = pod(&[1 << 3 | 2, 9]);
        assert!(matches!(why, ProtobufError::Wire(WireError::Cut)), "{why:?}");
        says(&why, "the message ends too early");
        let why = pod(&[1 << 3, 9]);
        assert!(matches!(why, ProtobufError::Wire(WireError::NotBytes(_))), "{why:?}");
        says(&why, "bytes are expected, not Varint(9)");
    }
}
