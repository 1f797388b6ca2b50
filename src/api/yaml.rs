//! YAML as people write manifests: several documents, YAML 1.1's booleans and octal numbers, errors with their place.

use serde_json::Value;

/// The documents of a text, empty ones left out. The error names line and column and shows the source.
pub fn documents(text: &str) -> Result<Vec<Value>, String> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options).map_err(|e| e.to_string())?;
    Ok(documents.into_iter().filter(|d| !d.is_null()).collect())
}

/// One value as YAML, in the order of its keys.
pub fn to_string(value: &Value) -> Result<String, String> {
    serde_saphyr::to_string(value).map_err(|e| e.to_string())
}
