//! CSINode (storage.k8s.io/v1).

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{Kind, Strategy, csi_driver};
use crate::columns::{AGE, NAME, column};
use crate::validation::{At, Errors, names};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    columns: &[
        NAME,
        column("DRIVERS", |o, _| o.at("spec.drivers").and_then(Value::as_array).map_or(0, Vec::len).to_string()),
        AGE,
    ],
    strategy: Strategy { validate, validate_update, returns_deleted: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::storage::v1::CSINode>("csinode")
};

fn validate(node: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let mut seen: HashSet<&str> = HashSet::new();
    for driver in At::root(&node.0).get("spec").get("drivers").items() {
        let (name, id) = (driver.get("name"), driver.get("nodeID"));
        csi_driver::driver_name(&name, &mut errs);
        if seen.contains(&name.str()) {
            errs.duplicate(&name.path, name.str());
        }
        seen.insert(name.str());
        if id.is_empty() {
            errs.required(&id.path, "");
        }
        if id.len() > 256 {
            errs.invalid(&id.path, id.str(), names::max_length(256));
        }
        for key in driver.get("topologyKeys").items() {
            errs.invalid_each(&key.path, key.str(), names::qualified_name(key.str()));
        }
        let count = driver.get("allocatable").get("count");
        errs.non_negative(&count);
    }
    errs.0
}

/// Drivers are added and removed, not changed.
fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let (new, old) = (At::root(&new.0).get("spec").get("drivers"), At::root(&old.0).get("spec").get("drivers"));
    let mut known = HashMap::new();
    for driver in old.items() {
        known.entry(driver.get("name").str()).or_insert(driver);
    }
    for driver in new.items() {
        let before = known.get(driver.get("name").str());
        for field in ["nodeID", "topologyKeys"] {
            if let Some(before) = before {
                errs.immutable(&driver.get(field), &before.get(field));
            }
        }
    }
    errs.0
}
