//! Why a file is no configuration of the server's: the document as a whole, or a field of it.

use std::error::Error;
use std::fmt;

use podwright_api::configuration::FieldError;
use podwright_api::yaml::YamlError;

/// Why a file is no configuration.
#[derive(Debug)]
pub enum ConfigError {
    Yaml(YamlError),
    /// There is not exactly one document: of which kind it should be.
    Documents(&'static str),
    /// The document's own fields are not those of its kind.
    Decode(serde_json::Error),
    /// It is of another version or kind than expected, both as `apiVersion kind`.
    Kind {
        expected: String,
        got: String,
    },
    Field(FieldError),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Yaml(why) => write!(f, "{why}"),
            ConfigError::Documents(kind) => write!(f, "expected one {kind}"),
            ConfigError::Decode(why) => write!(f, "{why}"),
            ConfigError::Kind { expected, got } => write!(f, "expected {expected}, not {got}"),
            ConfigError::Field(why) => write!(f, "{why}"),
        }
    }
}

impl Error for ConfigError {
    /// What its text does not say itself.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ConfigError::Yaml(why) => why.source(),
            ConfigError::Decode(why) => why.source(),
            ConfigError::Documents(_) | ConfigError::Kind { .. } | ConfigError::Field(_) => None,
        }
    }
}

impl From<YamlError> for ConfigError {
    fn from(why: YamlError) -> ConfigError {
        ConfigError::Yaml(why)
    }
}

impl From<FieldError> for ConfigError {
    fn from(why: FieldError) -> ConfigError {
        ConfigError::Field(why)
    }
}
