//! CSIDriver (storage.k8s.io/v1).

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, joined, text_or};
use crate::defaults::{fill, made};
use crate::validation::{At, Errors};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    columns: &[
        NAME,
        column("ATTACHREQUIRED", |o, _| text_or(o, "spec.attachRequired", "true")),
        column("PODINFOONMOUNT", |o, _| text_or(o, "spec.podInfoOnMount", "false")),
        column("STORAGECAPACITY", |o, _| text_or(o, "spec.storageCapacity", "false")),
        column("TOKENREQUESTS", |o, _| match o.at("spec.tokenRequests") {
            Some(list) => joined(Some(list), |t| t["audience"].as_str()),
            None => "<unset>".into(),
        }),
        column("REQUIRESREPUBLISH", |o, _| text_or(o, "spec.requiresRepublish", "false")),
        column("MODES", |o, _| joined(o.at("spec.volumeLifecycleModes"), Value::as_str)),
        AGE,
    ],
    strategy: Strategy {
        default,
        validate,
        validate_update,
        has_generation: true,
        returns_deleted: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::storage::v1::CSIDriver>("csidriver")
};

fn default(driver: &mut Object) {
    let Some(map) = driver.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    fill(spec, "attachRequired", true);
    for field in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
        fill(spec, field, false);
    }
    fill(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    if spec.get("volumeLifecycleModes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        spec.insert("volumeLifecycleModes".into(), json!(["Persistent"]));
    }
}

/// A driver's name is a domain of at most 63 characters.
pub fn driver_name(at: &At<'_>, errs: &mut Errors) {
    use crate::validation::names;
    if at.is_empty() {
        errs.required(&at.path, "");
    }
    if at.len() > 63 {
        errs.too_long(&at.path, 63);
    }
    errs.invalid_each(&at.path, at.str(), names::dns1123_subdomain(&at.str().to_lowercase()));
}

fn validate(driver: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let root = At::root(&driver.0);
    driver_name(&root.get("metadata").get("name"), &mut errs);
    let spec = root.get("spec");
    for mode in spec.get("volumeLifecycleModes").items().filter(|m| !matches!(m.str(), "Ephemeral" | "Persistent")) {
        errs.not_supported(&mode.path, mode.str(), &["Ephemeral", "Persistent"]);
    }
    let policy = spec.get("fsGroupPolicy");
    if policy.is_set() {
        errs.one_of(&policy, &["File", "None", "ReadWriteOnceWithFSType"]);
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for token in spec.get("tokenRequests").items() {
        let (audience, seconds) = (token.get("audience"), token.get("expirationSeconds"));
        if seen.contains(&audience.str()) {
            errs.duplicate(&audience.path, audience.str());
        }
        seen.insert(audience.str());
        if let Some(n) = seconds.int() {
            match n {
                ..600 => errs.invalid(&seconds.path, n, "may not specify a duration less than 10 minutes"),
                4_294_967_297.. => {
                    errs.invalid(&seconds.path, n, "may not specify a duration larger than 2^32 seconds")
                }
                _ => {}
            }
        }
    }
    errs.0
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let (new, old) = (At::root(&new.0).get("spec"), At::root(&old.0).get("spec"));
    for field in ["attachRequired", "volumeLifecycleModes"] {
        errs.immutable(&new.get(field), &old.get(field));
    }
    errs.0
}
