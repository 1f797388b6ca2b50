//! PersistentVolumeClaim.

use serde_json::{Map, Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, access_modes, column, text, text_or, wide};
use crate::defaults::{fill, made};
use crate::validation::{At, Errors, names, pod, same, selectors};
use crate::{Cause, Object, Quantity};

pub const KIND: Kind = Kind {
    short_names: &["pvc"],
    subresources: &["status"],
    columns: &[
        NAME,
        column("STATUS", |o, _| if o.is_terminating() { "Terminating".into() } else { text(o, "status.phase") }),
        column("VOLUME", |o, _| text(o, "spec.volumeName")),
        column("CAPACITY", |o, _| bound(o, text(o, "status.capacity.storage"))),
        column("ACCESS MODES", |o, _| bound(o, access_modes(o.at("status.accessModes")))),
        column("STORAGECLASS", |o, _| storage_class(o)),
        column("VOLUMEATTRIBUTESCLASS", |o, _| text_or(o, "spec.volumeAttributesClassName", "<unset>")),
        AGE,
        wide("VOLUMEMODE", |o, _| text_or(o, "spec.volumeMode", "<unset>")),
    ],
    strategy: Strategy {
        default,
        prepare_create,
        validate,
        validate_update,
        validate_status,
        returns_deleted: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::core::v1::PersistentVolumeClaim>("persistentvolumeclaim")
};

/// The annotation for the class before there was a field.
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
pub const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
pub const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];

/// What is shown only for a bound claim.
fn bound(claim: &Object, text: String) -> String {
    if claim.at("spec.volumeName").is_some() { text } else { String::new() }
}

pub fn storage_class(object: &Object) -> String {
    object.annotation(CLASS_ANNOTATION).map_or_else(|| text(object, "spec.storageClassName"), str::to_owned)
}

fn default(claim: &mut Object) {
    let Some(map) = claim.0.as_object_mut() else { return };
    default_spec(made(map, "spec"));
}

/// Also for claim templates.
pub fn default_spec(spec: &mut Map<String, Value>) {
    fill(spec, "volumeMode", "Filesystem");
}

fn prepare_create(claim: &mut Object) {
    claim.0["status"] = json!({"phase": "Pending"});
}

fn validate(claim: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    spec(&At::root(&claim.0).get("spec"), &mut errs);
    errs.0
}

/// The rules for a claim's spec, including templates.
pub fn spec(spec: &At<'_>, errs: &mut Errors) {
    modes(&spec.get("accessModes"), errs);
    let selector = spec.get("selector");
    if selector.is_set() {
        selectors::label_selector(&selector, errs);
    }
    let requests = spec.get("resources").get("requests");
    let storage = requests.get("storage");
    let path = format!("{}[storage]", requests.path);
    match storage.str().parse::<Quantity>() {
        Err(_) => errs.required(spec.path("resources[storage]"), ""),
        Ok(size) if size <= Quantity::default() => errs.invalid(path, storage.str(), "must be greater than zero"),
        Ok(_) => {}
    }
    for field in ["storageClassName", "volumeAttributesClassName"] {
        let at = spec.get(field);
        if !at.is_empty() {
            errs.invalid_each(&at.path, at.str(), names::dns1123_subdomain(at.str()));
        }
    }
    let mode = spec.get("volumeMode");
    if mode.is_set() {
        errs.one_of(&mode, VOLUME_MODES);
    }
    for field in ["dataSource", "dataSourceRef"] {
        data_source(&spec.get(field), errs);
    }
}

/// The access modes of claims and volumes.
pub fn modes(modes: &At<'_>, errs: &mut Errors) {
    const ONE_POD: &str = "ReadWriteOncePod";
    if modes.is_empty() {
        errs.required(&modes.path, "at least 1 access mode is required");
    }
    for mode in modes.items().filter(|m| !ACCESS_MODES.contains(&m.str())) {
        errs.not_supported(&modes.path, mode.str(), ACCESS_MODES);
    }
    if modes.len() > 1 && modes.items().any(|m| m.str() == ONE_POD) {
        errs.forbidden(&modes.path, "may not use ReadWriteOncePod with other access modes");
    }
}

fn data_source(source: &At<'_>, errs: &mut Errors) {
    if !source.is_set() {
        return;
    }
    for field in ["name", "kind"] {
        if source.get(field).is_empty() {
            errs.required(source.path(field), "");
        }
    }
    if source.get("apiGroup").is_empty() && source.get("kind").str() != "PersistentVolumeClaim" {
        let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errs.invalid(&source.path, source.get("kind").str(), why);
    }
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let is_bound = old.0["status"]["phase"] == "Bound";
    let without = |claim: &Object| -> Value {
        let mut spec = claim.0["spec"].clone();
        let Some(map) = spec.as_object_mut() else { return spec };
        if is_bound {
            if let Some(resources) = map.get_mut("resources").and_then(Value::as_object_mut) {
                resources.shift_remove("requests");
            }
            map.shift_remove("volumeAttributesClassName");
        }
        // Both are set once: by the binder, and when a default class is found.
        for field in ["volumeName", "storageClassName"] {
            let before = old.0["spec"].get(field).and_then(Value::as_str);
            if before.is_none() || (field == "volumeName" && before == Some("")) {
                map.shift_remove(field);
            }
        }
        spec
    };
    if !same(&without(new), &without(old)) {
        let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound \
                   claims";
        errs.forbidden("spec", why);
    }
    let size = |claim: &Object| {
        let text = claim.at("spec.resources.requests.storage").and_then(Value::as_str)?;
        text.parse::<Quantity>().ok()
    };
    if let (Some(now), Some(before)) = (size(new), size(old))
        && now < before
    {
        errs.forbidden("spec.resources.requests.storage", "field can not be less than previous value");
    }
    errs.0
}

fn validate_status(new: &Object, _old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let status = At::root(&new.0).get("status");
    for field in ["capacity", "allocatedResources"] {
        pod::resource_list(&status.get(field), &mut errs);
    }
    errs.0
}
