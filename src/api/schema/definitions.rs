//! The JSON schemas of k8s-openapi's types by name, as the build script wrote them down.

use std::io::Read;

use flate2::read::DeflateDecoder;
use serde_json::Value;

/// A type whose schema is among the definitions.
#[diagnostic::on_unimplemented(
    message = "the schema of `{Self}` is not written down",
    note = "it needs a word in src/api/build.rs"
)]
pub trait Defined {
    /// The name of its definition: `io.k8s.api.core.v1.Pod`.
    const NAME: &'static str;
}

// `DEFINITIONS`: names, sorted, and the ranges of `PACKED` where their schemas lie; and who is `Defined`.
include!(concat!(env!("OUT_DIR"), "/definitions.rs"));

/// The schemas, each compressed by itself.
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/definitions"));

/// The JSON schema of a definition; its references are `#/$defs/` and another's name.
pub fn get(name: &str) -> Option<Value> {
    let at = DEFINITIONS.binary_search_by_key(&name, |(name, _)| name).ok()?;
    let range = &DEFINITIONS[at].1;
    let mut text = Vec::new();
    DeflateDecoder::new(&PACKED[range.start as usize..range.end as usize]).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// The name that a `$ref` refers to.
pub fn referred(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_can_be_read() {
        for (name, _) in DEFINITIONS {
            assert!(get(name).is_some_and(|schema| schema.is_object()), "{name}");
        }
        assert!(get("io.k8s.api.core.v1.Nothing").is_none());
    }
}
