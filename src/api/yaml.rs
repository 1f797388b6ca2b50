//! YAML of manifests: several documents, YAML 1.1's booleans and octal numbers, errors with their position.

use serde_json::Value;
use serde_saphyr::Error;

/// What aliases may add to a text, beyond its own size: nodes, and bytes.
const SPARE_NODES: usize = 1000;
const SPARE_BYTES: usize = 64 << 10;
/// The most nodes of a text.
const MOST_NODES: usize = 250_000;

/// Why a text has no documents, or a value no text.
#[derive(Debug, thiserror::Error)]
pub enum YamlError {
    /// It is not YAML. The message has line and column and shows the source.
    #[error(transparent)]
    Syntax(Error),
    /// Resolved aliases exceed the limit for a text of its length.
    #[error(transparent)]
    TooLarge(Error),
    #[error(transparent)]
    Unwritable(#[from] serde_saphyr::SerializeError),
}

impl From<Error> for YamlError {
    fn from(why: Error) -> YamlError {
        if is_bound(&why) { YamlError::TooLarge(why) } else { YamlError::Syntax(why) }
    }
}

/// Whether a limit was exceeded.
fn is_bound(why: &Error) -> bool {
    match why {
        Error::AliasError { error, .. } | Error::WithSnippet { error, .. } => is_bound(error),
        Error::Budget { .. }
        | Error::AliasReplayCounterOverflow { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. } => true,
        _ => false,
    }
}

/// The documents of a text, without empty ones.
///
/// # Errors
///
/// It is not YAML, or too large: the result is limited by the text's length. Nested aliases, by which 200 bytes become a million
/// nodes, are refused.
pub fn documents(text: &str) -> Result<Vec<Value>, YamlError> {
    // Except for tabs JSON is YAML, and faster to parse.
    if text.trim_start().starts_with('{')
        && let Ok(documents) = serde_json::Deserializer::from_str(text).into_iter().collect::<Result<Vec<Value>, _>>()
    {
        return Ok(documents);
    }
    let (nodes, bytes) = ((text.len() + SPARE_NODES).min(MOST_NODES), 2 * text.len() + SPARE_BYTES);
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        budget: serde_saphyr::budget! {
            max_events: 4 * nodes,
            max_nodes: nodes,
            max_total_scalar_bytes: bytes,
            max_recorded_anchor_events: 4 * nodes,
            max_recorded_anchor_bytes: bytes,
            // An anchor may be used for every container of a manifest: the limits above prevent explosive growth.
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: nodes },
    };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)?;
    Ok(documents.into_iter().filter(|d| !d.is_null()).collect())
}

/// Formats a value like kubectl: sorted keys, lists not indented, multi-line strings as blocks.
///
/// # Errors
///
/// The writer fails, which does not happen for values from JSON or YAML.
pub fn to_string(value: &Value) -> Result<String, YamlError> {
    let options = serde_saphyr::ser_options! {
        compact_list_indent: true,
        prefer_block_scalars: true,
        no_lang_directive: true,
        // Long lines are not wrapped: scripts process YAML by lines.
        folded_wrap_chars: usize::MAX,
    };
    Ok(serde_saphyr::to_string_with_options(&sorted(value), options)?)
}

/// The same with the keys of all maps sorted.
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
