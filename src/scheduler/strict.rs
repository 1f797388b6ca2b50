//! Strict decoding of configuration: unknown fields are errors, too.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use podwright_api::configuration::{FieldError, Problem};
use podwright_client::blame;

/// Decodes a whole value.
///
/// # Errors
///
/// A field has the wrong type, or is unknown.
pub fn decode<T: Serialize + DeserializeOwned>(value: &Value) -> Result<T, FieldError> {
    let text = value.to_string();
    let decoded: T = serde_json::from_str(&text).map_err(|why| {
        let said = why.to_string();
        // The line number refers to `text`, which users have not written.
        let said = said.split(" at line ").next().unwrap_or_default();
        FieldError::new(blame::field(text.as_bytes(), &why), Problem::Other(said.to_owned()))
    })?;
    // What was not decoded is unknown.
    let taken = serde_json::to_value(&decoded).map_err(|why| FieldError::new(".", Problem::Decode(why)))?;
    match unknown(value, &taken) {
        Some(path) => Err(FieldError::new(path.trim_start_matches('.'), Problem::Unknown)),
        None => Ok(decoded),
    }
}

/// The first field of `given` that is not in `taken`.
fn unknown(given: &Value, taken: &Value) -> Option<String> {
    match (given, taken) {
        (Value::Object(given), Value::Object(taken)) => given.iter().find_map(|(name, value)| {
            let path = match taken.get(name) {
                Some(taken) => unknown(value, taken),
                None => Some(String::new()),
            };
            path.map(|path| format!(".{name}{path}"))
        }),
        (Value::Array(given), Value::Array(taken)) => {
            let pairs = given.iter().zip(taken).enumerate();
            pairs.into_iter().find_map(|(n, (given, taken))| Some(format!("[{n}]{}", unknown(given, taken)?)))
        }
        _ => None,
    }
}
