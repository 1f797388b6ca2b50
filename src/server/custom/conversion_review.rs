//! ConversionReview: what an answer of a webhook that converts objects has to be, and what it may change.

use std::fmt;

use serde_json::Value;

use podwright_api::validation::metadata::{annotations, labels};
use podwright_api::validation::{At, Errors};
use podwright_api::{Cause, Object};

/// Why a webhook has converted nothing, in upstream's words.
#[derive(Debug)]
pub(crate) enum ConversionError {
    /// It could not be asked, or its answer not be read.
    Unanswered(anyhow::Error),
    /// It answers another question.
    Uid {
        expected: String,
        got: Value,
    },
    /// What it says itself.
    Failed(String),
    Count {
        got: usize,
        expected: usize,
    },
    /// An object is in another version, or of another kind.
    Version {
        at: usize,
        expected: String,
        got: Value,
    },
    /// An object has become another one.
    Metadata(MetadataError),
}

/// What a webhook may not do to an object's metadata, in upstream's words.
#[derive(Debug)]
pub(crate) enum MetadataError {
    NotAMap(&'static str),
    Missing,
    /// It has changed what it may not.
    Changed {
        field: &'static str,
        from: String,
        to: String,
    },
    FieldType {
        field: &'static str,
        of: &'static str,
    },
    ValueType {
        field: &'static str,
        name: String,
        of: &'static str,
    },
    /// A label or annotation that may not be.
    Invalid(Cause),
}

impl fmt::Display for ConversionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConversionError::Unanswered(why) => write!(f, "{why:#}"),
            ConversionError::Uid { expected, got } => write!(f, "expected response.uid={expected:?}, got {got}"),
            ConversionError::Failed(message) => f.write_str(message),
            ConversionError::Count { got, expected } => write!(f, "returned {got} objects, expected {expected}"),
            ConversionError::Version { at, expected, got } => write!(
                f,
                "returned invalid converted object at index {at}: invalid groupVersion (expected {expected}, received {got})"
            ),
            ConversionError::Metadata(why) => write!(f, "returned invalid converted object: {why}"),
        }
    }
}

impl fmt::Display for MetadataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetadataError::NotAMap(of) => write!(f, "invalid metadata of type {of} in converted object"),
            MetadataError::Missing => f.write_str("missing metadata in converted object"),
            MetadataError::Changed { field, from, to } => write!(f, "must have the same {field}: {from} != {to}"),
            MetadataError::FieldType { field, of } => {
                write!(f, "invalid metadata.{field} of type {of} in converted object")
            }
            MetadataError::ValueType { field, name, of } => {
                write!(f, "metadata.{field}[{name}] must be a string, but is {of} in converted object")
            }
            MetadataError::Invalid(cause) => write!(f, "{}: {}", cause.field, cause.message),
        }
    }
}

impl std::error::Error for ConversionError {}

impl std::error::Error for MetadataError {}

/// The objects of a ConversionReview that answers the question `uid`: as many as were sent, of that kind in the version wanted.
pub(crate) fn objects_of(
    mut answer: Value,
    uid: &str,
    kind: &str,
    wanted: &str,
    sent: usize,
) -> Result<Vec<Object>, ConversionError> {
    let mut response = answer.get_mut("response").map(Value::take).unwrap_or_default();
    if response["uid"] != uid {
        return Err(ConversionError::Uid { expected: uid.to_owned(), got: response["uid"].clone() });
    }
    if response["result"]["status"] != "Success" {
        let message = response["result"]["message"].as_str().unwrap_or("no message");
        return Err(ConversionError::Failed(message.to_owned()));
    }
    let objects = match response.get_mut("convertedObjects").map(Value::take) {
        Some(Value::Array(objects)) => objects,
        _ => Vec::new(),
    };
    if objects.len() != sent {
        return Err(ConversionError::Count { got: objects.len(), expected: sent });
    }
    match objects.iter().position(|object| object["apiVersion"] != wanted || object["kind"] != kind) {
        Some(at) => {
            let got = objects[at]["apiVersion"].clone();
            Err(ConversionError::Version { at, expected: wanted.to_owned(), got })
        }
        None => Ok(objects.into_iter().map(Object).collect()),
    }
}

/// Of metadata a webhook may change labels and annotations alone, and those must be some. Upstream:
/// `validateConvertedObject` and `restoreObjectMeta` of apiextensions-apiserver.
pub(crate) fn keep_metadata(converted: &mut Object, original: &Object) -> Result<(), MetadataError> {
    let given = match converted.0.get("metadata") {
        Some(Value::Object(given)) => given,
        Some(other) => return Err(MetadataError::NotAMap(type_of(other))),
        None => return Err(MetadataError::Missing),
    };
    let mut metadata = original.0["metadata"].clone();
    for (field, called) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or("").to_owned();
        let (from, to) = (text(metadata.get(field)), text(given.get(field)));
        if from != to {
            return Err(MetadataError::Changed { field: called, from, to });
        }
    }
    for (field, check) in [("labels", labels as Check), ("annotations", annotations as Check)] {
        let new = match given.get(field) {
            None | Some(Value::Null) => {
                metadata.as_object_mut().map(|map| map.shift_remove(field));
                continue;
            }
            Some(Value::Object(new)) => new,
            Some(other) => return Err(MetadataError::FieldType { field, of: type_of(other) }),
        };
        if let Some((name, value)) = new.iter().find(|(_, value)| !value.is_string()) {
            return Err(MetadataError::ValueType { field, name: name.clone(), of: type_of(value) });
        }
        if metadata.get(field).and_then(Value::as_object) == Some(new) {
            continue;
        }
        metadata[field] = Value::Object(new.clone());
        let mut errs = Errors::default();
        check(&At { value: &metadata[field], path: format!("metadata.{field}") }, &mut errs);
        if let Some(cause) = errs.0.into_iter().next() {
            return Err(MetadataError::Invalid(cause));
        }
    }
    converted.0["metadata"] = metadata;
    Ok(())
}

type Check = fn(&At<'_>, &mut Errors);

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "map",
    }
}
