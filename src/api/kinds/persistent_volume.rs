//! PersistentVolume.

use serde_json::{Value, json};

use super::persistent_volume_claim::{VOLUME_MODES, modes, storage_class};
use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, access_modes, column, text, text_or, wide};
use crate::defaults::{fill, made, object};
use crate::validation::{At, Errors, names, pod};
use crate::{Cause, Object, Quantity};

pub const KIND: Kind = Kind {
    short_names: &["pv"],
    subresources: &["status"],
    columns: &[
        NAME,
        column("CAPACITY", |o, _| text(o, "spec.capacity.storage")),
        column("ACCESS MODES", |o, _| access_modes(o.at("spec.accessModes"))),
        column("RECLAIM POLICY", |o, _| text(o, "spec.persistentVolumeReclaimPolicy")),
        column("STATUS", |o, _| if o.is_terminating() { "Terminating".into() } else { text(o, "status.phase") }),
        column("CLAIM", |o, _| claim(o)),
        column("STORAGECLASS", |o, _| storage_class(o)),
        column("VOLUMEATTRIBUTESCLASS", |o, _| text_or(o, "spec.volumeAttributesClassName", "<unset>")),
        column("REASON", |o, _| text(o, "status.reason")),
        AGE,
        wide("VOLUMEMODE", |o, _| text_or(o, "spec.volumeMode", "<unset>")),
    ],
    strategy: Strategy { default, prepare_create, validate, validate_update, returns_deleted: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::core::v1::PersistentVolume>("persistentvolume")
};

/// `namespace/name`
fn claim(volume: &Object) -> String {
    match volume.at("spec.claimRef") {
        Some(_) => format!("{}/{}", text(volume, "spec.claimRef.namespace"), text(volume, "spec.claimRef.name")),
        None => String::new(),
    }
}

/// The fields of a spec that specify the source.
const SOURCES: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "csi",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "glusterfs",
    "hostPath",
    "iscsi",
    "local",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

fn default(volume: &mut Object) {
    let Some(map) = volume.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    fill(spec, "persistentVolumeReclaimPolicy", "Retain");
    fill(spec, "volumeMode", "Filesystem");
    if let Some(path) = object(spec, "hostPath") {
        // Upstream's empty string: no check.
        fill(path, "type", "");
    }
    if let Some(claim) = object(spec, "claimRef") {
        fill(claim, "apiVersion", "v1");
        fill(claim, "kind", "PersistentVolumeClaim");
    }
}

fn prepare_create(volume: &mut Object) {
    volume.0["status"] = json!({"phase": "Pending"});
}

fn validate(volume: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&volume.0).get("spec");
    modes(&spec.get("accessModes"), &mut errs);
    capacity(&spec.get("capacity"), &mut errs);
    let policy = spec.get("persistentVolumeReclaimPolicy");
    errs.one_of(&policy, &["Delete", "Recycle", "Retain"]);
    source(&spec, &mut errs);
    for field in ["storageClassName", "volumeAttributesClassName"] {
        let at = spec.get(field);
        if !at.is_empty() {
            errs.invalid_each(&at.path, at.str(), names::dns1123_subdomain(at.str()));
        }
    }
    errs.one_of(&spec.get("volumeMode"), VOLUME_MODES);
    let affinity = spec.get("nodeAffinity");
    if affinity.is_set() && !affinity.get("required").is_set() {
        errs.required(affinity.path("required"), "must specify required node constraints");
    }
    errs.0
}

fn capacity(capacity: &At<'_>, errs: &mut Errors) {
    if capacity.is_empty() {
        errs.required(&capacity.path, "");
        return;
    }
    let storage = capacity.get("storage");
    if !storage.is_set() || capacity.len() > 1 {
        errs.not_supported(&capacity.path, &capacity.value.to_string(), &["storage"]);
    }
    match storage.str().parse::<Quantity>() {
        Ok(size) if size <= Quantity::default() => {
            errs.invalid(capacity.key_path("storage"), storage.str(), "must be greater than zero");
        }
        _ => pod::resource_list(capacity, errs),
    }
}

fn source(spec: &At<'_>, errs: &mut Errors) {
    let mut set = SOURCES.iter().filter(|name| spec.get(name).is_set());
    if set.next().is_none() {
        errs.required(&spec.path, "must specify a volume type");
    }
    for another in set {
        errs.forbidden(spec.path(another), "may not specify more than 1 volume type");
    }
    for (name, field) in [("hostPath", "path"), ("local", "path"), ("nfs", "server"), ("nfs", "path")] {
        let it = spec.get(name);
        if it.is_set() && it.get(field).is_empty() {
            errs.required(it.get(field).path, "");
        }
    }
    let nfs = spec.get("nfs").get("path");
    if !nfs.is_empty() && !nfs.str().starts_with('/') {
        errs.invalid(&nfs.path, nfs.str(), "must be an absolute path");
    }
    for name in ["hostPath", "local"] {
        let path = spec.get(name).get("path");
        if path.str().split('/').any(|part| part == "..") {
            errs.invalid(&path.path, path.str(), "must not contain '..'");
        }
    }
    if spec.get("hostPath").get("path").str() == "/" && spec.get("persistentVolumeReclaimPolicy").str() == "Recycle" {
        errs.forbidden(spec.path("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'");
    }
    if spec.get("local").is_set() && !spec.get("nodeAffinity").is_set() {
        errs.required("metadata.annotations", "Local volume requires node affinity");
    }
    let csi = spec.get("csi");
    if csi.is_set() {
        for field in ["driver", "volumeHandle"] {
            if csi.get(field).is_empty() {
                errs.required(csi.path(field), "");
            }
        }
    }
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let (new, old) = (At::root(&new.0).get("spec"), At::root(&old.0).get("spec"));
    let sources = |spec: &At<'_>| -> Vec<Value> { SOURCES.iter().map(|name| spec.get(name).value.clone()).collect() };
    if sources(&new) != sources(&old) {
        errs.forbidden("spec.persistentvolumesource", "spec.persistentvolumesource is immutable after creation");
    }
    errs.immutable(&new.get("volumeMode"), &old.get("volumeMode"));
    if old.get("nodeAffinity").is_set() {
        errs.immutable(&new.get("nodeAffinity"), &old.get("nodeAffinity"));
    }
    errs.0
}
