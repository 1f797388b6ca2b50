//! ConversionReview: which answers of a conversion webhook are valid, and what it may change.

use serde_json::Value;

use podwright_api::validation::metadata::{annotations, labels};
use podwright_api::validation::{At, Errors};
use podwright_api::{Cause, Object};

/// Why a conversion failed, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConversionError {
    /// The webhook could not be called, or its answer not be read.
    #[error("{0:#}")]
    Unanswered(anyhow::Error),
    /// It answers another request.
    #[error("expected response.uid={expected:?}, got {got}")]
    Uid { expected: String, got: Value },
    /// The webhook's own error.
    #[error("{0}")]
    Failed(String),
    #[error("returned {got} objects, expected {expected}")]
    Count { got: usize, expected: usize },
    /// An object has the wrong version or kind.
    #[error(
        "returned invalid converted object at index {at}: invalid groupVersion (expected {expected}, received {got})"
    )]
    Version { at: usize, expected: String, got: Value },
    /// An object's metadata changed.
    #[error("returned invalid converted object: {0}")]
    Metadata(MetadataError),
}

/// What a webhook may not change in an object's metadata, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MetadataError {
    #[error("invalid metadata of type {0} in converted object")]
    NotAMap(&'static str),
    #[error("missing metadata in converted object")]
    Missing,
    /// It changed an immutable field.
    #[error("must have the same {field}: {from} != {to}")]
    Changed { field: &'static str, from: String, to: String },
    #[error("invalid metadata.{field} of type {of} in converted object")]
    FieldType { field: &'static str, of: &'static str },
    #[error("metadata.{field}[{name}] must be a string, but is {of} in converted object")]
    ValueType { field: &'static str, name: String, of: &'static str },
    /// An invalid label or annotation.
    #[error("{}: {}", .0.field, .0.message)]
    Invalid(Cause),
}

/// The objects of a ConversionReview for the request `uid`: as many as were sent, of the same kind, in the desired version.
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

/// A webhook may change only labels and annotations in metadata, to valid ones. Upstream: `validateConvertedObject` and
/// `restoreObjectMeta` of apiextensions-apiserver.
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
