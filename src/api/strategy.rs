//! What the generic verbs do with an object of any kind between decoding and storing it.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::kinds::definition;
use super::validation::{Errors, MAX_CAUSES, TOO_MANY, bounds, metadata, pod, same};
use super::{Cause, Kind, Object, Status};

/// Prepares a decoded object for creation, without admission in between.
pub fn prepare_create(kind: &Kind, object: &mut Object) {
    receive(kind, object);
    prepare_admitted(kind, object);
}

/// Receives a decoded object for creation: drops metadata that a creator may not set, sets defaults. The server sets uid,
/// creationTimestamp, resourceVersion, and a generated name.
pub fn receive(kind: &Kind, object: &mut Object) {
    for field in ["uid", "creationTimestamp"] {
        object.metadata_mut().shift_remove(field);
    }
    begin_metadata(kind, object);
    kind.default(object);
}

/// Sets a new object's system metadata, whatever admission changed: generation 1, no deletion. (The server sets uid and
/// creationTimestamp.)
pub fn begin_metadata(kind: &Kind, object: &mut Object) {
    let meta = object.metadata_mut();
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "selfLink"] {
        meta.shift_remove(field);
    }
    if kind.strategy.has_generation {
        meta.insert("generation".into(), 1.into());
    } else {
        meta.shift_remove("generation");
    }
}

/// Prepares an admitted object for creation: drops a status, sets defaults for what admission added, and sets system fields.
pub fn prepare_admitted(kind: &Kind, object: &mut Object) {
    if kind.has_subresource("status")
        && !kind.strategy.creates_with_status
        && let Some(map) = object.0.as_object_mut()
    {
        map.shift_remove("status");
    }
    drop_empty(object.metadata_mut());
    kind.default(object);
    (kind.strategy.prepare_create)(object);
}

/// Prepares a decoded object to replace `old`: status and system fields are kept, defaults are set, and the generation is updated.
pub fn prepare_update(kind: &Kind, new: &mut Object, old: &Object) {
    keep_system_metadata(new, old);
    if kind.has_subresource("status") {
        keep(new, old, "status");
    }
    kind.default(new);
    (kind.strategy.prepare_update)(new, old);
    count_generation(kind, new, old);
}

/// Updates the generation for a change of anything but metadata and status, if the kind has generations. Repeated after admission,
/// which may change an object, or change it back.
pub fn count_generation(kind: &Kind, new: &mut Object, old: &Object) {
    if kind.strategy.has_generation {
        let generation = old.generation() + i64::from(content_differs(kind, new, old));
        new.set_meta("generation", Value::from(generation));
    }
}

/// Prepares an update of the `status` subresource: everything else is kept, except for what its writers may change, too.
pub fn prepare_status_update(kind: &Kind, new: &mut Object, old: &Object) {
    let mut out = old.clone();
    keep(&mut out, new, "status");
    for field in [kind.strategy.metadata_by_status, &["resourceVersion"]].concat() {
        out.set_meta(field, new.0["metadata"].get(field).cloned());
    }
    drop_empty(out.metadata_mut());
    // A built-in kind's status has no defaults; a custom resource's schema may have some.
    if kind.is_custom() {
        kind.default(&mut out);
    }
    (kind.strategy.prepare_status)(&mut out, old);
    *new = out;
}

/// Prepares an update of the `ephemeralcontainers` subresource: everything but those containers is kept.
pub fn prepare_ephemeral_update(kind: &Kind, new: &mut Object, old: &Object) {
    let mut out = old.clone();
    let wanted = new.0["spec"].get("ephemeralContainers").cloned();
    if let Some(spec) = out.0["spec"].as_object_mut() {
        match wanted {
            Some(list) => spec.insert("ephemeralContainers".to_owned(), list),
            None => spec.shift_remove("ephemeralContainers"),
        };
    }
    kind.default(&mut out);
    count_generation(kind, &mut out, old);
    out.set_meta("resourceVersion", new.0["metadata"].get("resourceVersion").cloned());
    *new = out;
}

/// Prepares an update of a Pod's `resize` subresource: everything but the resources and resize policies of its containers is kept.
/// Validation refuses other containers than the old ones.
pub fn prepare_resize_update(kind: &Kind, new: &mut Object, old: &Object) {
    let mut out = old.clone();
    for list in ["containers", "initContainers"] {
        let wanted = new.0["spec"].get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let have = out.0["spec"].get_mut(list).and_then(Value::as_array_mut);
        let names = |containers: &[Value]| -> Vec<Value> { containers.iter().map(|c| c["name"].clone()).collect() };
        if names(wanted) != have.as_deref().map(|have| names(have)).unwrap_or_default() {
            out.0["spec"][list] = wanted.into();
            continue;
        }
        for (container, wanted) in have.into_iter().flatten().zip(wanted) {
            for field in ["resources", "resizePolicy"] {
                keep_field(container, wanted, field);
            }
        }
    }
    kind.default(&mut out);
    count_generation(kind, &mut out, old);
    out.set_meta("resourceVersion", new.0["metadata"].get("resourceVersion").cloned());
    *new = out;
}

/// The limits for a new object, or one that replaces `old`, before admission and defaults process it.
pub fn validate_size(kind: &Kind, object: &Object, old: Option<&Object>) -> Result<(), Status> {
    let mut errs = Errors::default();
    metadata::check_size(kind, object, &mut errs);
    bounds::check(kind, object, old, &mut errs);
    finish(kind, object, errs.0)
}

/// All rules for a new object.
pub fn validate_create(kind: &Kind, object: &Object) -> Result<(), Status> {
    let mut errs = Errors::default();
    metadata::check(kind, object, &mut errs);
    bounds::check(kind, object, None, &mut errs);
    errs.0.extend((kind.strategy.validate)(object));
    errs.0.extend((kind.strategy.validate_create)(object));
    errs.0.extend(definition::validate(kind, object, None));
    finish(kind, object, errs.0)
}

/// All rules for an update.
pub fn validate_update(kind: &Kind, new: &Object, old: &Object) -> Result<(), Status> {
    let mut errs = rules_of_all(kind, new, old);
    errs.0.extend(validate_again(kind, new, old));
    errs.0.extend((kind.strategy.validate_update)(new, old));
    errs.0.extend(definition::validate(kind, new, Some(old)));
    finish(kind, new, errs.0)
}

/// The common rules for an update of any part.
fn rules_of_all(kind: &Kind, new: &Object, old: &Object) -> Errors {
    let mut errs = Errors::default();
    metadata::check_update(new, old, &mut errs);
    metadata::check(kind, new, &mut errs);
    bounds::check(kind, new, Some(old), &mut errs);
    errs
}

/// A kind's rules for an update. Limits that upstream does not have are newer than some objects: lists that exceed a limit stay
/// valid if they do not grow, so that such objects can still be changed.
fn validate_again(kind: &Kind, new: &Object, old: &Object) -> Vec<Cause> {
    let mut causes = (kind.strategy.validate)(new);
    if causes.iter().any(|cause| cause.reason == TOO_MANY) {
        let before = (kind.strategy.validate)(old);
        causes.retain(|cause| !before.iter().any(|before| has_not_grown(cause, before)));
    }
    causes
}

/// Whether a cause is an exceeded limit, and `before` the same one with as many or more.
fn has_not_grown(cause: &Cause, before: &Cause) -> bool {
    /// The count, and the rest of the message.
    fn count(cause: &Cause) -> Option<(usize, &str)> {
        let (count, rest) = cause.message.strip_prefix("Too many: ")?.split_once(':')?;
        Some((count.parse().ok()?, rest))
    }
    let is_same = cause.reason == TOO_MANY && before.reason == TOO_MANY && cause.field == before.field;
    is_same && count(cause).zip(count(before)).is_some_and(|(now, before)| now.1 == before.1 && now.0 <= before.0)
}

/// All rules for an update of the `status` subresource.
pub fn validate_status_update(kind: &Kind, new: &Object, old: &Object) -> Result<(), Status> {
    let mut errs = rules_of_all(kind, new, old);
    errs.0.extend((kind.strategy.validate_status)(new, old));
    errs.0.extend(definition::validate(kind, new, Some(old)));
    finish(kind, new, errs.0)
}

/// All rules for an update of the `ephemeralcontainers` subresource.
pub fn validate_ephemeral_update(kind: &Kind, new: &Object, old: &Object) -> Result<(), Status> {
    let mut errs = rules_of_all(kind, new, old);
    errs.0.extend(validate_again(kind, new, old));
    pod::update::ephemeral(new, old, &mut errs);
    finish(kind, new, errs.0)
}

/// All rules for an update of a Pod's `resize` subresource.
pub fn validate_resize_update(kind: &Kind, new: &Object, old: &Object) -> Result<(), Status> {
    let mut errs = rules_of_all(kind, new, old);
    errs.0.extend(validate_again(kind, new, old));
    pod::resize::check(new, old, &mut errs);
    finish(kind, new, errs.0)
}

fn finish(kind: &Kind, object: &Object, mut causes: Vec<Cause>) -> Result<(), Status> {
    if causes.is_empty() {
        return Ok(());
    }
    let mut seen = HashSet::with_capacity(causes.len());
    causes.retain(|c| seen.insert((c.reason.clone(), c.message.clone(), c.field.clone())));
    causes.truncate(MAX_CAUSES);
    Err(Status::invalid(kind.kind, kind.group, object.name(), causes))
}

/// Whether anything but metadata and status differs, which increments `generation`.
pub fn content_differs(kind: &Kind, new: &Object, old: &Object) -> bool {
    // Without a status subresource a custom resource's status is an ordinary field.
    let has_status = !kind.is_custom() || kind.has_subresource("status");
    let content = |o: &Object| -> Vec<String> {
        let keys = o.0.as_object().into_iter().flatten().map(|(key, _)| key.clone());
        keys.filter(|k| match k.as_str() {
            "metadata" | "apiVersion" | "kind" => false,
            "status" => !has_status,
            _ => true,
        })
        .collect()
    };
    let differs = |key: &String| !same(&new.0[key], &old.0[key]);
    content(new).iter().any(differs) || content(old).iter().any(differs)
}

/// Whether an update only changes fields that the server itself sets: then nothing is written.
pub fn is_unchanged(new: &Object, old: &Object) -> bool {
    let keys = |o: &Object| -> Vec<String> { o.0.as_object().into_iter().flatten().map(|(k, _)| k.clone()).collect() };
    let metadata = |o: &Object| -> Map<String, Value> {
        let all = o.0["metadata"].as_object().into_iter().flatten();
        let own = |k: &str| matches!(k, "resourceVersion" | "managedFields" | "generation");
        all.filter(|(k, _)| !own(k)).map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    let alike = |key: &String| key == "metadata" || same(&new.0[key], &old.0[key]);
    keys(new).iter().all(alike)
        && keys(old).iter().all(alike)
        && same(&Value::Object(metadata(new)), &Value::Object(metadata(old)))
}

/// Copies a top-level field from `old`, or removes it.
fn keep(new: &mut Object, old: &Object, field: &str) {
    keep_field(&mut new.0, &old.0, field);
}

fn keep_field(new: &mut Value, old: &Value, field: &str) {
    let Some(map) = new.as_object_mut() else { return };
    match old.get(field) {
        Some(value) => map.insert(field.to_owned(), value.clone()),
        None => map.shift_remove(field),
    };
}

/// An update may omit system fields; validation refuses a different uid or name.
pub fn keep_system_metadata(new: &mut Object, old: &Object) {
    for field in ["uid", "name", "namespace"] {
        if new.0["metadata"][field].as_str().unwrap_or("").is_empty() {
            new.set_meta(field, old.0["metadata"].get(field).cloned());
        }
    }
    for field in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "generateName"]
    {
        new.set_meta(field, old.0["metadata"].get(field).cloned());
    }
    new.metadata_mut().shift_remove("selfLink");
    drop_empty(new.metadata_mut());
}

/// Upstream's types omit these when empty, as after the removal of a label or finalizer.
fn drop_empty(metadata: &mut Map<String, Value>) {
    for field in ["annotations", "finalizers", "labels", "ownerReferences"] {
        let empty = metadata.get(field).is_some_and(|value| match value {
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            other => other.is_null(),
        });
        if empty {
            metadata.shift_remove(field);
        }
    }
}
