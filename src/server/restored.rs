//! Validates backups: values must be in this server's own encoding. A backup may come from anybody, and every parser must read the
//! same object.

use std::str::Utf8Error;

use serde::de::IgnoredAny;

use super::allocate;
use super::encryption::SEALED;
use podwright_api::duplicates;

/// What is wrong with a value.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    #[error("it is no text: {0}")]
    NotUtf8(Utf8Error),
    #[error("it is no object")]
    NotAnObject,
    /// It is not JSON, or data follows the object.
    #[error("{0}")]
    Json(serde_json::Error),
    #[error("it has blanks, as nothing has that a server writes")]
    Blanks,
    /// This field occurs twice.
    #[error("the field {0} is there twice")]
    Twice(String),
}

/// Fails if a server would not write this value. Encrypted values are checked by their key only, and claims of addresses and ports
/// are not objects.
pub fn check(key: &str, value: &[u8]) -> Result<(), ValueError> {
    if value.starts_with(SEALED) || key.starts_with(allocate::ROOT) {
        return Ok(());
    }
    let text = std::str::from_utf8(value).map_err(ValueError::NotUtf8)?;
    if !text.starts_with('{') {
        return Err(ValueError::NotAnObject);
    }
    serde_json::from_str::<IgnoredAny>(text).map_err(ValueError::Json)?;
    if has_blanks(value) {
        return Err(ValueError::Blanks);
    }
    match duplicates::fields(text).into_iter().next() {
        Some(field) => Err(ValueError::Twice(field)),
        None => Ok(()),
    }
}

/// Whether JSON has whitespace outside of strings.
fn has_blanks(json: &[u8]) -> bool {
    let (mut within, mut escaped) = (false, false);
    json.iter().any(|byte| {
        match (within, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => within = !within,
            _ => {}
        }
        !within && byte.is_ascii_whitespace()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_clean_objects() {
        let key = "/registry/pods/default/a";
        for (value, why) in [
            (r#"{"a":1,"a":2}"#, "the field a is there twice"),
            (r#"{"spec":{"b":[{"x":1,"\u0078":2}]}}"#, "the field spec.b[0].x is there twice"),
            (r#"{"a":1}{"#, "trailing characters"),
            ("{\"a\":1}\n", "blanks"),
            (r#"{"a": 1}"#, "blanks"),
            (" {}", "no object"),
            ("[]", "no object"),
            ("", "no object"),
            ("\0unopened ", "no object"),
            (r#"{"a":}"#, "expected value"),
        ] {
            let refused = check(key, value.as_bytes()).expect_err(value).to_string();
            assert!(refused.contains(why), "{value}: {refused}");
        }
        assert!(matches!(check(key, b"{\"a\":\"\xff\"}"), Err(ValueError::NotUtf8(_))));
        assert!(matches!(check(key, b"[]"), Err(ValueError::NotAnObject)));
        for value in [r#"{}"#, r#"{"a":"x \" y","b":{"a":[1,null]}}"#, "k8s:enc:aesgcm:v1:k:\0\u{1}"] {
            check(key, value.as_bytes()).unwrap_or_else(|why| panic!("{value}: {why}"));
        }
        check("/registry/ranges/serviceips/10.0.0.1", b"services/default/a").unwrap();
    }
}
