//! CSIStorageCapacity (storage.k8s.io/v1).

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text};
use crate::validation::{At, Errors, names, selectors};
use crate::{Cause, Object, Quantity};

pub const KIND: Kind = Kind {
    columns: &[
        NAME,
        column("STORAGECLASS", |o, _| text(o, "storageClassName")),
        column("CAPACITY", |o, _| text(o, "capacity")),
        AGE,
    ],
    strategy: Strategy { validate, validate_update, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::storage::v1::CSIStorageCapacity>("csistoragecapacity")
};

fn validate(it: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let root = At::root(&it.0);
    let (class, topology) = (root.get("storageClassName"), root.get("nodeTopology"));
    errs.invalid_each(&class.path, class.str(), names::dns1123_subdomain(class.str()));
    if topology.is_set() {
        selectors::label_selector(&topology, &mut errs);
    }
    for field in ["capacity", "maximumVolumeSize"] {
        let at = root.get(field);
        if at.is_set() && Quantity::from_json(at.value).is_some_and(|q| q.is_negative()) {
            errs.invalid(&at.path, at.str(), "must be greater than or equal to 0");
        }
    }
    errs.0
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let (new, old) = (At::root(&new.0), At::root(&old.0));
    for field in ["nodeTopology", "storageClassName"] {
        errs.immutable(&new.get(field), &old.get(field));
    }
    errs.0
}
