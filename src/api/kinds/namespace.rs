//! Namespace.

use serde_json::{Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text};
use crate::validation::{At, Errors, NameRule, names};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["ns"],
    subresources: &["status", "finalize"],
    selectable: &["status.phase"],
    columns: &[NAME, column("STATUS", |o, _| text(o, "status.phase")), AGE],
    strategy: Strategy {
        default,
        prepare_create,
        prepare_update,
        validate,
        validate_status,
        name: NameRule::Label,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::core::v1::Namespace>("namespace")
};

/// Its name as a label, for selectors.
fn default(namespace: &mut Object) {
    let name = namespace.name().to_owned();
    if name.is_empty() {
        return;
    }
    let labels = crate::defaults::made(namespace.metadata_mut(), "labels");
    labels.insert("kubernetes.io/metadata.name".into(), name.into());
}

fn prepare_create(namespace: &mut Object) {
    namespace.0["status"] = json!({"phase": "Active"});
    // The namespace controller removes it when the namespace is empty.
    let Some(map) = namespace.0.as_object_mut() else { return };
    let spec = crate::defaults::made(map, "spec");
    let finalizers = spec.entry("finalizers").or_insert_with(|| json!([]));
    if let Value::Array(list) = finalizers
        && !list.iter().any(|f| f == "kubernetes")
    {
        list.push("kubernetes".into());
    }
}

/// Only the `finalize` subresource changes `spec.finalizers`.
fn prepare_update(new: &mut Object, old: &Object) {
    let Some(map) = new.0.as_object_mut() else { return };
    match old.0.get("spec") {
        Some(spec) => map.insert("spec".into(), spec.clone()),
        None => map.shift_remove("spec"),
    };
}

fn validate(namespace: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    for finalizer in At::root(&namespace.0).get("spec").get("finalizers").items() {
        let name = finalizer.str();
        errs.invalid_each(&finalizer.path, name, names::qualified_name(name));
        if !name.contains('/') && name != "kubernetes" {
            errs.invalid(&finalizer.path, name, "name is neither a standard finalizer name nor is it fully qualified");
        }
    }
    errs.0
}

/// The phase must match whether the namespace is terminating.
fn validate_status(new: &Object, _old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let phase = At::root(&new.0).get("status").get("phase");
    match (new.is_terminating(), phase.str()) {
        (false, "Terminating") => {
            let why = "may only be 'Terminating' if `deletionTimestamp` is not empty";
            errs.invalid(&phase.path, phase.str(), why);
        }
        (true, other) if other != "Terminating" => {
            errs.invalid(&phase.path, other, "may only be 'Terminating' if `deletionTimestamp` is not empty");
        }
        _ => {}
    }
    errs.0
}
