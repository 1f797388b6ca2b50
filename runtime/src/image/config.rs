//! An image's config (OCI image spec, "Image Configuration"): parsed after its size has been checked.

use std::borrow::Cow;
use std::fmt;

use oci_spec::image::ImageConfiguration;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{ImageError, Result};

/// Maximum JSON bytes of what a container gets from its image (variables, arguments, labels, volumes, ports): each attempt carries
/// them along. The kernel would not execute much more.
const MAX_RUN: usize = 1 << 20;
/// Maximum number of history steps, or of features: few bytes of JSON need many times as much memory.
const MAX_ITEMS: usize = 10_000;

/// Measures a config without loading it into memory.
#[derive(Deserialize)]
struct Shape {
    #[serde(default)]
    config: Option<Fields>,
    #[serde(default)]
    history: Option<Vec<IgnoredAny>>,
    #[serde(default, rename = "os.features")]
    features: Option<Vec<IgnoredAny>>,
}

/// The fields of an object.
struct Fields {
    bytes: usize,
    /// The largest one, and its size.
    largest: (String, usize),
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Fields, D::Error> {
        struct Measure;

        impl<'de> Visitor<'de> for Measure {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Fields, A::Error> {
                let mut fields = Fields { bytes: 0, largest: (String::new(), 0) };
                while let Some((name, value)) = map.next_entry::<Cow<'de, str>, &'de RawValue>()? {
                    let bytes = value.get().len();
                    fields.bytes += name.len() + bytes;
                    if bytes > fields.largest.1 {
                        fields.largest = (name.chars().take(64).collect(), bytes);
                    }
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(Measure)
    }
}

/// Parses a config; `what` names it in errors, which also name the field that is too large. JSON arrays that represent map keys
/// come out sorted instead of in hash order.
pub(super) fn parse_config(what: &str, json: &[u8]) -> Result<ImageConfiguration> {
    let invalid = |e| ImageError::Invalid(format!("{what}: {e}"));
    let shape: Shape = serde_json::from_slice(json).map_err(invalid)?;
    check(&shape).map_err(|why| ImageError::Invalid(format!("{what}: {why}")))?;
    let mut config: ImageConfiguration = serde_json::from_slice(json).map_err(invalid)?;
    if let Some(mut run) = config.config().clone() {
        let sorted = |list: &Option<Vec<String>>| {
            let mut list = list.clone();
            list.iter_mut().for_each(|l| l.sort());
            list
        };
        run.set_volumes(sorted(run.volumes()));
        run.set_exposed_ports(sorted(run.exposed_ports()));
        config.set_config(Some(run));
    }
    Ok(config)
}

fn check(shape: &Shape) -> Result<(), String> {
    if let Some(Fields { bytes, largest: (name, size) }) = shape.config.as_ref().filter(|fields| fields.bytes > MAX_RUN)
    {
        return Err(format!("config.{name} has {size} bytes: all of config has {bytes}, more than {MAX_RUN}"));
    }
    for (list, items, what) in [("history", &shape.history, "steps"), ("os.features", &shape.features, "entries")] {
        let count = items.as_ref().map_or(0, Vec::len);
        if count > MAX_ITEMS {
            return Err(format!("{list} has {count} {what}, more than {MAX_ITEMS}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(config: Value, history: usize) -> Result<ImageConfiguration, String> {
        let document = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": [] },
            "history": vec![json!({}); history],
        });
        parse_config("image config x", &serde_json::to_vec(&document).unwrap()).map_err(|e| e.to_string())
    }

    #[test]
    fn lists_share_one_bound_and_the_error_names_the_largest() {
        let text = "v".repeat(1000);
        let list = |bytes: usize| vec![format!("A={text}"); bytes / 1000];
        let map = |bytes: usize| -> Value {
            (0..bytes / 1000).map(|n| (format!("/{n}{text}"), json!({}))).collect::<serde_json::Map<_, _>>().into()
        };
        for field in ["Env", "Cmd", "Entrypoint", "OnBuild"] {
            let error = parse(json!({ field: list(2 << 20) }), 0).unwrap_err();
            assert!(error.starts_with(&format!("image config x: config.{field} has ")), "{error}");
        }
        for field in ["Volumes", "ExposedPorts"] {
            let error = parse(json!({ field: map(2 << 20) }), 0).unwrap_err();
            assert!(error.contains(&format!("config.{field} has ")), "{error}");
        }
        let third = MAX_RUN * 2 / 5;
        let error =
            parse(json!({ "Env": list(third), "Cmd": list(third + 9000), "Volumes": map(third) }), 0).unwrap_err();
        assert!(error.contains("config.Cmd has "), "{error}");
        let fits = parse(json!({ "Env": list(third), "Cmd": list(third) }), MAX_ITEMS).unwrap();
        assert_eq!(fits.config().as_ref().unwrap().env().as_ref().unwrap().len(), third / 1000);
        assert!(parse(json!(null), 0).is_ok());
        let error = parse(json!({}), MAX_ITEMS + 1).unwrap_err();
        assert_eq!(error, "image config x: history has 10001 steps, more than 10000");
    }
}
