//! YAML as people write manifests: several documents, YAML 1.1's booleans and octal numbers, errors with their place.

use serde_json::Value;

/// The documents of a text, empty ones left out. The error names line and column and shows the source.
pub fn documents(text: &str) -> Result<Vec<Value>, String> {
    // JSON is YAML but for tabs, and reads faster.
    if text.trim_start().starts_with('{')
        && let Ok(documents) = serde_json::Deserializer::from_str(text).into_iter().collect::<Result<Vec<Value>, _>>()
    {
        return Ok(documents);
    }
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options).map_err(|e| e.to_string())?;
    Ok(documents.into_iter().filter(|d| !d.is_null()).collect())
}

/// One value as kubectl writes it: keys sorted, lists not indented, texts of several lines as blocks.
pub fn to_string(value: &Value) -> Result<String, String> {
    let options = serde_saphyr::ser_options! {
        compact_list_indent: true,
        prefer_block_scalars: true,
        no_lang_directive: true,
        // A long line stays one line: scripts cut YAML by lines.
        folded_wrap_chars: usize::MAX,
    };
    serde_saphyr::to_string_with_options(&sorted(value), options).map_err(|e| e.to_string())
}

/// The same with the keys of all maps in order.
pub fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.as_str());
            Value::Object(entries.into_iter().map(|(k, v)| (k.clone(), sorted(v))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        plain => plain.clone(),
    }
}
