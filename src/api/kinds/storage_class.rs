//! StorageClass (storage.k8s.io/v1).

use serde_json::Value;

use super::{Kind, Strategy};
use crate::columns::{AGE, column, text, text_or};
use crate::defaults::fill;
use crate::validation::{At, Errors, names};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["sc"],
    columns: &[
        column("NAME", |o, _| name(o)),
        column("PROVISIONER", |o, _| text(o, "provisioner")),
        column("RECLAIMPOLICY", |o, _| text_or(o, "reclaimPolicy", "Delete")),
        column("VOLUMEBINDINGMODE", |o, _| text_or(o, "volumeBindingMode", "Immediate")),
        column("ALLOWVOLUMEEXPANSION", |o, _| (o.0["allowVolumeExpansion"] == true).to_string()),
        AGE,
    ],
    strategy: Strategy { default, validate, validate_update, returns_deleted: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::storage::v1::StorageClass>("storageclass")
};

/// Marks the default class.
pub const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

fn name(class: &Object) -> String {
    let default = class.annotation(IS_DEFAULT) == Some("true");
    if default { format!("{} (default)", class.name()) } else { class.name().to_owned() }
}

fn default(class: &mut Object) {
    let Some(map) = class.0.as_object_mut() else { return };
    fill(map, "reclaimPolicy", "Delete");
    fill(map, "volumeBindingMode", "Immediate");
}

const MAX_PARAMETERS: usize = 512;
const MAX_PARAMETERS_SIZE: usize = 256 * 1024;

fn validate(class: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let root = At::root(&class.0);
    let provisioner = root.get("provisioner");
    match provisioner.is_empty() {
        true => errs.required(&provisioner.path, ""),
        false => {
            let lower = provisioner.str().to_lowercase();
            errs.invalid_each(&provisioner.path, provisioner.str(), names::qualified_name(&lower));
        }
    }
    parameters(&root.get("parameters"), &mut errs);
    errs.one_of(&root.get("reclaimPolicy"), &["Delete", "Retain"]);
    errs.one_of(&root.get("volumeBindingMode"), &["Immediate", "WaitForFirstConsumer"]);
    for term in root.get("allowedTopologies").items() {
        for expression in term.get("matchLabelExpressions").items() {
            let (key, values) = (expression.get("key"), expression.get("values"));
            errs.invalid_each(&key.path, key.str(), names::qualified_name(key.str()));
            if values.is_empty() {
                errs.required(&values.path, "");
            }
        }
    }
    errs.0
}

/// For a class of volumes or of volume attributes.
pub fn parameters(parameters: &At<'_>, errs: &mut Errors) {
    if parameters.len() > MAX_PARAMETERS {
        errs.too_long("Provisioner Parameters Length", MAX_PARAMETERS);
    }
    let mut size = 0;
    for (key, value) in parameters.entries() {
        if key.is_empty() {
            errs.invalid(&parameters.path, key, "field can not be empty.");
        }
        size += key.len() + value.len();
    }
    if size > MAX_PARAMETERS_SIZE {
        errs.too_long(&parameters.path, MAX_PARAMETERS_SIZE);
    }
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let differs = |field: &str| !crate::validation::same(&new.0[field], &old.0[field]);
    if differs("parameters") {
        errs.forbidden("parameters", "updates to parameters are forbidden.");
    }
    if differs("provisioner") {
        errs.forbidden("provisioner", "updates to provisioner are forbidden.");
    }
    if differs("reclaimPolicy") {
        errs.forbidden("reclaimPolicy", "updates to reclaimPolicy are forbidden.");
    }
    let mode = |class: &Object| class.0["volumeBindingMode"].as_str().map(str::to_owned);
    if mode(new) != mode(old) {
        errs.invalid("volumeBindingMode", Value::from(mode(new)), "field is immutable");
    }
    errs.0
}
