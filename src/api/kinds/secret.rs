//! Secret.

use base64::Engine;
use serde_json::Value;

use super::config_map::{MAX_SIZE, immutable};
use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text};
use crate::defaults::{fill, made};
use crate::validation::{At, Errors, names};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    selectable: &["type"],
    columns: &[
        NAME,
        column("TYPE", |o, _| text(o, "type")),
        column("DATA", |o, _| o.at("data").and_then(Value::as_object).map_or(0, |m| m.len()).to_string()),
        AGE,
    ],
    strategy: Strategy { default, validate, validate_update, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::core::v1::Secret>("secret")
};

/// `stringData` is write-only input for `data`.
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

/// The required keys of a Secret type; one is enough if there are alternatives.
const TYPES: &[(&str, &[&str])] = &[
    ("kubernetes.io/dockercfg", &[".dockercfg"]),
    ("kubernetes.io/dockerconfigjson", &[".dockerconfigjson"]),
    ("kubernetes.io/ssh-auth", &["ssh-privatekey"]),
    ("kubernetes.io/tls", &["tls.crt", "tls.key"]),
];

fn validate(secret: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let root = At::root(&secret.0);
    let data = root.get("data");
    let mut size = 0;
    for (key, value) in data.entries() {
        errs.invalid_each(&value.path, key, names::config_key(key));
        size += value.len() / 4 * 3;
    }
    if size > MAX_SIZE {
        errs.too_long("data", MAX_SIZE);
    }
    let kind = root.get("type");
    let has = |key: &str| data.value.get(key).is_some();
    for key in TYPES.iter().filter(|(name, _)| *name == kind.str()).flat_map(|(_, keys)| keys.iter()) {
        if !has(key) {
            errs.required(data.key_path(key), "");
        } else if key.starts_with(".docker") {
            docker_config(&data, key, &mut errs);
        }
    }
    match kind.str() {
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            errs.required(data.key_path("username"), "");
            errs.required(data.key_path("password"), "");
        }
        "kubernetes.io/service-account-token" => {
            const NAME: &str = "kubernetes.io/service-account.name";
            if secret.annotation(NAME).unwrap_or("").is_empty() {
                errs.required(format!("metadata.annotations[{NAME}]"), "");
            }
        }
        _ => {}
    }
    errs.0
}

/// Refuses credentials that no agent could parse.
fn docker_config(data: &At<'_>, key: &str, errs: &mut Errors) {
    let text = data.get(key).str();
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default();
    if let Err(e) = serde_json::from_slice::<serde_json::Map<String, Value>>(&bytes) {
        errs.invalid(data.key_path(key), "<secret contents redacted>", e.to_string());
    }
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    errs.immutable(&At::root(&new.0).get("type"), &At::root(&old.0).get("type"));
    immutable(new, old, &["data"], &mut errs);
    errs.0
}
