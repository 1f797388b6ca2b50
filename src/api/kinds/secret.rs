//! Secret.

use base64::Engine;
use serde_json::Value;

use super::{Kind, Strategy};
use crate::api::Object;
use crate::api::columns::{AGE, NAME, column, text};
use crate::api::defaults::{fill, made};
use crate::api::schema::of_type;

pub const KIND: Kind = Kind {
    kind: "Secret",
    group: "",
    version: "v1",
    plural: "secrets",
    singular: "secret",
    short_names: &[],
    namespaced: true,
    categories: &[],
    subresources: &[],
    selectable: &["type"],
    schema: of_type::<k8s_openapi::api::core::v1::Secret>(),
    columns: &[
        NAME,
        column("TYPE", |o, _| text(o, "type")),
        column("DATA", |o, _| o.at("data").and_then(Value::as_object).map_or(0, |m| m.len()).to_string()),
        AGE,
    ],
    scale: None,
    strategy: Strategy { default, ..Strategy::PLAIN },
};

/// `stringData` is a way to write `data`, never kept.
fn default(secret: &mut Object) {
    let Some(map) = secret.0.as_object_mut() else { return };
    fill(map, "type", "Opaque");
    if let Some(Value::Object(plain)) = map.shift_remove("stringData") {
        let data = made(map, "data");
        for (key, value) in plain {
            let encoded = base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or(""));
            data.insert(key, encoded.into());
        }
    }
}
