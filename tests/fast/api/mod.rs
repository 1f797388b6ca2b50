//! The objects of the API: kinds, decoding, defaults, validation, selectors, quantities, patches.

use podwright::api::{FieldValidation, Kind, Object, kinds, strategy};

mod all_kinds;
mod cel;
mod columns;
mod defaults;
mod fuzz;
mod invalid;
mod kinds_table;
mod managed_fields;
pub(crate) mod manifests;
mod merges;
mod patch;
mod schema;
mod sums;
mod validation;
mod values;
mod watermark;
mod yaml;

/// The only document of a YAML text, decoded strictly.
pub fn decode(text: &str) -> (&'static Kind, Object) {
    let value = podwright::api::yaml::documents(text).expect("valid YAML").remove(0);
    let kind = kinds::of(value["apiVersion"].as_str().unwrap_or(""), value["kind"].as_str().unwrap_or(""));
    let kind = kind.unwrap_or_else(|| panic!("no such kind: {value}"));
    let (mut object, _) = kind.decode(value, FieldValidation::Strict).expect("decodes");
    if kind.namespaced && object.namespace().is_none() {
        object.set_meta("namespace", serde_json::Value::from("default"));
    }
    (kind, object)
}

/// As the server would store it.
pub fn created(text: &str) -> (&'static Kind, Object) {
    let (kind, mut object) = decode(text);
    strategy::prepare_create(kind, &mut object);
    (kind.strategy.identify)(&mut object);
    (kind, object)
}
