//! VolumeAttributesClass (storage.k8s.io/v1).

use super::{Kind, Strategy, csi_driver, storage_class};
use crate::columns::{AGE, NAME, column, text};
use crate::validation::{At, Errors, same};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["vac"],
    columns: &[NAME, column("DRIVERNAME", |o, _| text(o, "driverName")), AGE],
    strategy: Strategy { validate, validate_update, returns_deleted: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::storage::v1::VolumeAttributesClass>("volumeattributesclass")
};

fn validate(class: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let root = At::root(&class.0);
    csi_driver::driver_name(&root.get("driverName"), &mut errs);
    let parameters = root.get("parameters");
    if parameters.is_empty() {
        errs.required(&parameters.path, "must contain at least one key/value pair");
    }
    storage_class::parameters(&parameters, &mut errs);
    errs.0
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    for field in ["driverName", "parameters"] {
        if !same(&new.0[field], &old.0[field]) {
            errs.forbidden(field, format!("updates to {field} are forbidden."));
        }
    }
    errs.0
}
