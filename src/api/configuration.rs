//! Why a configuration file is invalid: the document as a whole, or a field, which is named by its path, in upstream's terms.

use serde_json::Value;

use super::yaml::{self, YamlError};

/// Why a configuration file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// There is not exactly one document; the kind that is expected.
    #[error("expected one {0}")]
    Documents(&'static str),
    /// The document's fields do not match its kind.
    #[error(transparent)]
    Decode(serde_json::Error),
    /// It has another version or kind than expected, both as `apiVersion kind`.
    #[error("expected {expected}, not {got}")]
    Kind { expected: String, got: String },
    #[error(transparent)]
    Field(#[from] FieldError),
}

/// Parses the single document of a file, of this kind.
///
/// # Errors
///
/// It is not YAML, or there is not exactly one document.
pub fn document(text: &str, kind: &'static str) -> Result<Value, ConfigError> {
    let one: Result<[Value; 1], _> = yaml::documents(text)?.try_into();
    one.map(|[document]| document).map_err(|_| ConfigError::Documents(kind))
}

/// A field's path, and what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    pub field: String,
    pub problem: Problem,
}

/// What is wrong with a field.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// It is missing, or empty.
    #[error("Required value")]
    Missing,
    /// The same, with the reason why it is required.
    #[error("Required value: {0}")]
    Required(&'static str),
    /// Perhaps the value, and why it is invalid.
    #[error("Invalid value: {0}")]
    Invalid(String),
    #[error("Unsupported value: {0}")]
    Unsupported(String),
    #[error("Duplicate value: {0}")]
    Duplicate(String),
    #[error("Forbidden: {0}")]
    Forbidden(&'static str),
    /// Unknown field.
    #[error("unknown field")]
    Unknown,
    /// It has another type, or not its only permitted value.
    #[error("must be {0}")]
    MustBe(String),
    /// Its fields do not match its type.
    #[error(transparent)]
    Decode(#[from] serde_json::Error),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl FieldError {
    pub fn new(field: impl Into<String>, problem: Problem) -> FieldError {
        FieldError { field: field.into(), problem }
    }
    pub fn required(field: impl Into<String>, why: &'static str) -> FieldError {
        FieldError::new(field, Problem::Required(why))
    }
    pub fn invalid(field: impl Into<String>, why: impl Into<String>) -> FieldError {
        FieldError::new(field, Problem::Invalid(why.into()))
    }
    pub fn must_be(field: impl Into<String>, what: impl Into<String>) -> FieldError {
        FieldError::new(field, Problem::MustBe(what.into()))
    }
    /// The same for a field below `parent`, which includes the separator.
    pub fn below(self, parent: &str) -> FieldError {
        FieldError { field: format!("{parent}{}", self.field), ..self }
    }
}
