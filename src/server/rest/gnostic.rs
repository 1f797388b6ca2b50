//! OpenAPI v2 in protobuf, which kubectl before 1.29 requires: gnostic's messages, encoded from the JSON document.

use bytes::{BufMut, Bytes};
use serde_json::Value;

/// The media type as clients request it, and as responses must name it: Go refuses an `@` there.
pub const WANTED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
pub const MEDIA_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The type of a message's field.
#[derive(Clone, Copy)]
enum Field {
    /// One or more strings.
    Text,
    Flag,
    /// One or more messages.
    Message(&'static Message),
    /// A JSON object whose members are messages by name.
    Named(&'static Message),
    /// A wrapper message, with the actual one in this field.
    Within(u32, &'static Field),
}

/// A message: its JSON members with their field numbers; and the number for members beginning with `x-`.
struct Message {
    fields: &'static [(&'static str, u32, Field)],
    extensions: Option<u32>,
}

use Field::{Flag, Message as In, Named, Text, Within};

static DOCUMENT: Message = Message {
    fields: &[
        ("swagger", 1, Text),
        ("info", 2, In(&INFO)),
        ("paths", 8, Within(2, &Named(&PATH))),
        ("definitions", 9, Within(1, &Named(&SCHEMA))),
    ],
    extensions: None,
};
static INFO: Message = Message { fields: &[("title", 1, Text), ("version", 2, Text)], extensions: None };
static PATH: Message = Message {
    fields: &[
        ("get", 2, In(&OPERATION)),
        ("put", 3, In(&OPERATION)),
        ("post", 4, In(&OPERATION)),
        ("delete", 5, In(&OPERATION)),
        ("patch", 8, In(&OPERATION)),
        ("parameters", 9, In(&PARAMETER)),
    ],
    extensions: None,
};
static OPERATION: Message = Message {
    fields: &[
        ("tags", 1, Text),
        ("description", 3, Text),
        ("operationId", 5, Text),
        ("produces", 6, Text),
        ("consumes", 7, Text),
        ("parameters", 8, In(&PARAMETER)),
        ("responses", 9, Within(1, &Named(&RESPONSE))),
        ("schemes", 10, Text),
    ],
    extensions: Some(13),
};
/// Its member `in` determines which of the three it is; see `parameter`.
static PARAMETER: Message = Message { fields: &[], extensions: None };
static BODY: Message = Message {
    fields: &[("name", 2, Text), ("in", 3, Text), ("required", 4, Flag), ("schema", 5, In(&SCHEMA))],
    extensions: None,
};
static QUERY: Message = Message {
    fields: &[
        ("in", 2, Text),
        ("description", 3, Text),
        ("name", 4, Text),
        ("type", 6, Text),
        ("uniqueItems", 20, Flag),
    ],
    extensions: None,
};
static IN_PATH: Message = Message {
    fields: &[
        ("required", 1, Flag),
        ("in", 2, Text),
        ("description", 3, Text),
        ("name", 4, Text),
        ("type", 5, Text),
        ("uniqueItems", 19, Flag),
    ],
    extensions: None,
};
/// A response value that is a response.
static RESPONSE: Message = Message { fields: &[("", 1, In(&ANSWER))], extensions: None };
static ANSWER: Message =
    Message { fields: &[("description", 1, Text), ("schema", 2, Within(1, &In(&SCHEMA)))], extensions: None };
static SCHEMA: Message = Message {
    fields: &[
        ("$ref", 1, Text),
        ("format", 2, Text),
        ("description", 4, Text),
        ("required", 19, Text),
        ("additionalProperties", 21, Within(1, &In(&SCHEMA))),
        ("type", 22, Within(1, &Text)),
        ("items", 23, Within(1, &In(&SCHEMA))),
        ("allOf", 24, In(&SCHEMA)),
        ("properties", 25, Within(1, &Named(&SCHEMA))),
    ],
    extensions: Some(31),
};

/// The document in protobuf.
pub fn encode(document: &Value) -> Bytes {
    message(&DOCUMENT, document).into()
}

fn message(of: &'static Message, value: &Value) -> Vec<u8> {
    if std::ptr::eq(of, &PARAMETER) {
        return parameter(value);
    }
    let mut out = Vec::new();
    for (name, number, what) in of.fields {
        // The member without a name is the value itself.
        let member = if name.is_empty() { Some(value) } else { value.get(name) };
        if let Some(member) = member {
            field(&mut out, *number, *what, member);
        }
    }
    if let Some(number) = of.extensions {
        let own = value.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("x-"));
        for (name, value) in own {
            let mut named = Vec::new();
            bytes(&mut named, 1, name.as_bytes());
            let mut any = Vec::new();
            // The member is YAML, of which JSON is a subset.
            bytes(&mut any, 2, value.to_string().as_bytes());
            bytes(&mut named, 2, &any);
            bytes(&mut out, number, &named);
        }
    }
    out
}

fn field(out: &mut Vec<u8>, number: u32, what: Field, value: &Value) {
    match (what, value) {
        (Within(inner, what), value) => {
            let mut around = Vec::new();
            field(&mut around, inner, *what, value);
            bytes(out, number, &around);
        }
        (Named(of), Value::Object(members)) => {
            for (name, value) in members {
                let mut named = Vec::new();
                bytes(&mut named, 1, name.as_bytes());
                bytes(&mut named, 2, &message(of, value));
                bytes(out, number, &named);
            }
        }
        (what, Value::Array(items)) => items.iter().for_each(|item| field(out, number, what, item)),
        (Text, Value::String(text)) => bytes(out, number, text.as_bytes()),
        (Flag, Value::Bool(true)) => {
            varint(out, u64::from(number << 3));
            out.put_u8(1);
        }
        (In(of), Value::Object(_)) => bytes(out, number, &message(of, value)),
        _ => {}
    }
}

/// A parameter in its wrapper messages: of a body, or of a query or path.
fn parameter(value: &Value) -> Vec<u8> {
    let around = |number: u32, inner: Vec<u8>| {
        let mut out = Vec::new();
        bytes(&mut out, number, &inner);
        out
    };
    let one = match value["in"].as_str() {
        Some("body") => around(1, message(&BODY, value)),
        Some("path") => around(2, around(4, message(&IN_PATH, value))),
        _ => around(2, around(3, message(&QUERY, value))),
    };
    around(1, one)
}

fn bytes(out: &mut Vec<u8>, number: u32, payload: &[u8]) {
    varint(out, u64::from(number << 3 | 2));
    varint(out, payload.len() as u64);
    out.extend_from_slice(payload);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        // The low seven bits.
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_document_is_written_in_numbered_fields() {
        let document = json!({"swagger": "2.0", "definitions": {"A": {"type": "object", "x-y": [1]}}});
        let schema =
            [&[0xb2, 1, 8, 0x0a, 6][..], b"object", &[0xfa, 1, 12, 0x0a, 3], b"x-y", &[0x12, 5, 0x12, 3], b"[1]"]
                .concat();
        let named = [&[0x0a, 1][..], b"A", &[0x12, schema.len() as u8], &schema].concat();
        let definitions = [&[0x0a, named.len() as u8][..], &named].concat();
        let wanted = [&[0x0a, 3][..], b"2.0", &[0x4a, definitions.len() as u8], &definitions].concat();
        assert_eq!(encode(&document), wanted);
    }
}
