//! ConfigMap.

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column};
use crate::validation::{At, Errors, names, same};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["cm"],
    columns: &[NAME, column("DATA", |o, _| entries(o).to_string()), AGE],
    strategy: Strategy { validate, validate_update, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::core::v1::ConfigMap>("configmap")
};

fn entries(map: &Object) -> usize {
    ["data", "binaryData"].iter().filter_map(|f| map.at(f)?.as_object()).map(|m| m.len()).sum()
}

/// The most bytes in a ConfigMap or Secret.
pub const MAX_SIZE: usize = 1024 * 1024;

fn validate(map: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let root = At::root(&map.0);
    let binary = root.get("binaryData");
    let mut size = 0;
    for (key, value) in root.get("data").entries() {
        errs.invalid_each(&value.path, key, names::config_key(key));
        if binary.value.get(key).is_some() {
            errs.invalid(&value.path, key, "duplicate of key present in binaryData");
        }
        size += value.len();
    }
    for (key, value) in binary.entries() {
        errs.invalid_each(&value.path, key, names::config_key(key));
        size += value.len() / 4 * 3;
    }
    if size > MAX_SIZE {
        // Upstream has no name for the object as a whole.
        errs.too_long("[]", MAX_SIZE);
    }
    errs.0
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    immutable(new, old, &["data", "binaryData"], &mut errs);
    errs.0
}

/// An object marked immutable stays so, with its data.
pub fn immutable(new: &Object, old: &Object, data: &[&str], errs: &mut Errors) {
    if old.0["immutable"] != true {
        return;
    }
    let why = "field is immutable when `immutable` is set";
    if new.0["immutable"] != true {
        errs.forbidden("immutable", why);
    }
    for field in data {
        if !same(&new.0[*field], &old.0[*field]) {
            errs.forbidden(field, why);
        }
    }
}
