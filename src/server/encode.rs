//! The stored and served forms of objects: `apiVersion`, `kind` and `metadata` come first, so that the resourceVersion, known only
//! after the commit, is spliced in without parsing.
//!
//! Stored: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":...`; served: the same with `"resourceVersion":"7",` after
//! `"metadata":{`.

use std::fmt::Write as _;

use bytes::Bytes;
use serde_json::Value;

use podwright_api::{Kind, Object, Status};
use podwright_store::{Entry, Revision};

/// The fixed first bytes of every object of a kind.
#[derive(Debug)]
pub(super) struct Head(String);

const METADATA: &str = "\"metadata\":{";
const FIELD: &str = "\"resourceVersion\":\"";

impl Head {
    pub fn of(kind: &Kind) -> Head {
        Head(format!("{{\"apiVersion\":\"{}\",\"kind\":\"{}\",\"metadata\":{{", kind.api_version(), kind.kind))
    }

    /// An object's bytes for the store, without resourceVersion. Its metadata has at least a name.
    pub fn store(&self, object: &Object) -> Bytes {
        let mut out = Vec::with_capacity(1024);
        out.extend_from_slice(self.0.as_bytes());
        let mut first = true;
        for (key, value) in object.0["metadata"].as_object().into_iter().flatten() {
            if key != "resourceVersion" {
                member(&mut out, &mut first, key, value);
            }
        }
        out.push(b'}');
        first = false;
        for (key, value) in object.0.as_object().into_iter().flatten() {
            if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
                member(&mut out, &mut first, key, value);
            }
        }
        out.push(b'}');
        out.into()
    }

    /// The served form of stored bytes at a revision.
    pub fn deliver(&self, stored: &[u8], revision: Revision) -> Bytes {
        let (head, rest) = self.split(stored);
        splice(head, rest, revision)
    }

    /// Served bytes at another revision: a deletion is reported with its own revision.
    pub fn redeliver(&self, delivered: &[u8], revision: Revision) -> Bytes {
        splice(self.split(delivered).0, self.content(delivered), revision)
    }

    /// What served bytes have behind their revision.
    pub fn content<'a>(&self, delivered: &'a [u8]) -> &'a [u8] {
        let rest = self.split(delivered).1.get(FIELD.len()..).unwrap_or_default();
        // The digits are followed by a quote and a comma.
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        rest.get(digits + 2..).unwrap_or_default()
    }

    /// Splits an object's bytes before its metadata's first field. A custom resource may be stored in an older version.
    fn split<'a>(&self, bytes: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        if bytes.starts_with(self.0.as_bytes()) {
            return bytes.split_at(self.0.len());
        }
        let metadata = bytes.windows(METADATA.len()).position(|window| window == METADATA.as_bytes());
        bytes.split_at(metadata.map_or(0, |at| at + METADATA.len()))
    }
}

fn splice(head: &[u8], rest: &[u8], revision: Revision) -> Bytes {
    let mut field = String::with_capacity(FIELD.len() + 24);
    field.push_str(FIELD);
    // Writing to a String cannot fail.
    let _ = write!(field, "{revision}\",");
    [head, field.as_bytes(), rest].concat().into()
}

fn member(out: &mut Vec<u8>, first: &mut bool, key: &str, value: &Value) {
    if !std::mem::take(first) {
        out.push(b',');
    }
    // Strings and values always encode, and writing to a Vec cannot fail.
    let _ = serde_json::to_writer(&mut *out, key);
    out.push(b':');
    let _ = serde_json::to_writer(&mut *out, value);
}

/// An object as read, the basis of a write.
#[derive(Clone, Debug)]
pub(super) struct Current {
    /// With its resourceVersion.
    pub object: Object,
    pub revision: Revision,
    pub bytes: Bytes,
}

impl Current {
    pub fn of_entry(head: &Head, entry: &Entry) -> Result<Current, Status> {
        Current::of_bytes(head.deliver(&entry.value, entry.mod_revision), entry.mod_revision)
    }
    pub fn of_bytes(bytes: Bytes, revision: Revision) -> Result<Current, Status> {
        let object = Object::from_slice(&bytes).map_err(|e| Status::internal(format!("a stored object: {e}")))?;
        Ok(Current { object, revision, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_revision_is_spliced_in_and_exchanged() {
        let head = Head(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"#.into());
        let object = Object(json!({"kind": "Pod", "spec": {"a": 1}, "apiVersion": "v1",
            "metadata": {"name": "x", "resourceVersion": "3", "uid": "u"}}));
        let stored = head.store(&object);
        let plain = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","uid":"u"},"spec":{"a":1}}"#;
        assert_eq!(stored, plain);
        let at7 = head.deliver(&stored, 7);
        let spliced = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"resourceVersion":"7","name":"x","uid":"u"},"spec":{"a":1}}"#;
        assert_eq!(at7, spliced);
        assert_eq!(head.redeliver(&at7, 1234), head.deliver(&stored, 1234));
        assert_eq!(head.content(&at7), head.content(&head.deliver(&stored, 1234)));
        assert_eq!(head.content(&at7), br#""name":"x","uid":"u"},"spec":{"a":1}}"#);
        assert_eq!(head.store(&Object::from_slice(&at7).unwrap()), plain);
    }
}
