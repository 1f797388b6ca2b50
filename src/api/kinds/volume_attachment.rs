//! VolumeAttachment (storage.k8s.io/v1).

use serde_json::json;

use super::{Kind, Strategy, csi_driver};
use crate::columns::{AGE, NAME, column, text};
use crate::validation::{At, Errors, names};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    subresources: &["status"],
    columns: &[
        NAME,
        column("ATTACHER", |o, _| text(o, "spec.attacher")),
        column("PV", |o, _| text(o, "spec.source.persistentVolumeName")),
        column("NODE", |o, _| text(o, "spec.nodeName")),
        column("ATTACHED", |o, _| (o.0["status"]["attached"] == true).to_string()),
        AGE,
    ],
    strategy: Strategy {
        prepare_create,
        validate,
        validate_update,
        metadata_by_status: &[],
        returns_deleted: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::storage::v1::VolumeAttachment>("volumeattachment")
};

fn prepare_create(it: &mut Object) {
    it.0["status"] = json!({"attached": false});
}

fn validate(it: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&it.0).get("spec");
    csi_driver::driver_name(&spec.get("attacher"), &mut errs);
    let (source, node) = (spec.get("source"), spec.get("nodeName"));
    let (inline, volume) = (source.get("inlineVolumeSpec"), source.get("persistentVolumeName"));
    match (inline.is_set(), volume.is_set()) {
        (false, false) => {
            errs.required(&source.path, "must specify exactly one of inlineVolumeSpec and persistentVolumeName")
        }
        (true, true) => {
            let why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            errs.invalid_value(&source.path, source.value, why);
        }
        (false, true) if volume.is_empty() => {
            errs.required(&volume.path, "must specify non empty persistentVolumeName")
        }
        _ => {}
    }
    errs.invalid_each(&node.path, node.str(), names::dns1123_subdomain(node.str()));
    errs.0
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    errs.immutable(&At::root(&new.0).get("spec"), &At::root(&old.0).get("spec"));
    errs.0
}
