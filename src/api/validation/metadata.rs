//! The rules for `metadata`, common to all kinds.

use std::collections::HashSet;

use super::{At, Errors, NameRule, names};
use crate::{Kind, Object};

/// The limit for all annotations of an object together, in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// Names longer than this are refused before other checks.
const LONG_NAME: usize = 1024;

/// Limits that apply before a new object is processed: the server may repeat a name for each item, as in a refusal for each port.
pub fn check_size(kind: &Kind, object: &Object, errs: &mut Errors) {
    let meta = At::root(&object.0).get("metadata");
    let name = meta.get("name");
    if name.len() > LONG_NAME {
        errs.invalid_each(&name.path, name.str(), kind.strategy.name.check(name.str()));
    }
    if meta.get("generateName").len() > LONG_NAME {
        generate_name(kind, &meta, errs);
    }
    let annotated = meta.get("annotations");
    let size: usize = annotated.entries().map(|(key, value)| key.len() + value.str().len()).sum();
    if size > ANNOTATIONS_LIMIT {
        errs.too_long(&annotated.path, ANNOTATIONS_LIMIT);
    }
}

/// The rules for a new object and all its later states.
pub fn check(kind: &Kind, object: &Object, errs: &mut Errors) {
    let meta = At::root(&object.0).get("metadata");
    name(kind, &meta, errs);
    namespace(kind, &meta, errs);
    if let Some(n) = meta.get("generation").int().filter(|n| *n < 0) {
        errs.invalid(meta.path("generation"), n, "must be greater than or equal to 0");
    }
    labels(&meta.get("labels"), errs);
    annotations(&meta.get("annotations"), errs);
    finalizers(&meta.get("finalizers"), errs);
    owner_references(&meta.get("ownerReferences"), errs);
}

fn generate_name(kind: &Kind, meta: &At<'_>, errs: &mut Errors) {
    let generate = meta.get("generateName");
    if !generate.is_empty() {
        // A prefix may end with characters that a whole name may not: a suffix follows.
        let whole = format!("{}x", generate.str().trim_end_matches('-'));
        errs.invalid_each(&generate.path, generate.str(), kind.strategy.name.check(&whole));
    }
}

fn name(kind: &Kind, meta: &At<'_>, errs: &mut Errors) {
    let generate = meta.get("generateName");
    generate_name(kind, meta, errs);
    let name = meta.get("name");
    if name.is_empty() {
        errs.required(&name.path, if generate.is_empty() { "name or generateName is required" } else { "" });
    } else {
        errs.invalid_each(&name.path, name.str(), kind.strategy.name.check(name.str()));
    }
}

fn namespace(kind: &Kind, meta: &At<'_>, errs: &mut Errors) {
    let namespace = meta.get("namespace");
    match (kind.namespaced, namespace.is_empty()) {
        (true, true) => errs.required(&namespace.path, ""),
        (true, false) => errs.invalid_each(&namespace.path, namespace.str(), NameRule::Label.check(namespace.str())),
        (false, false) => errs.forbidden(&namespace.path, "not allowed on this type"),
        (false, true) => {}
    }
}

/// A map of labels anywhere.
pub fn labels(at: &At<'_>, errs: &mut Errors) {
    for (key, value) in at.entries() {
        errs.invalid_each(&at.path, key, names::qualified_name(key));
        errs.invalid_each(&at.path, value.str(), names::label_value(value.str()));
    }
}

/// A map of annotations: keys in any case, and a total limit.
pub fn annotations(at: &At<'_>, errs: &mut Errors) {
    let mut size = 0;
    for (key, value) in at.entries() {
        errs.invalid_each(&at.path, key, names::qualified_name(&key.to_lowercase()));
        size += key.len() + value.str().len();
    }
    if size > ANNOTATIONS_LIMIT {
        errs.too_long(&at.path, ANNOTATIONS_LIMIT);
    }
}

fn finalizers(at: &At<'_>, errs: &mut Errors) {
    let has = |name: &str| at.items().any(|f| f.str() == name);
    for finalizer in at.items() {
        errs.invalid_each(&at.path, finalizer.str(), names::qualified_name(finalizer.str()));
    }
    if has("orphan") && has("foregroundDeletion") {
        let why = "finalizer orphan and foregroundDeletion cannot be both set";
        errs.invalid_value(&at.path, at.value, why);
    }
}

fn owner_references(at: &At<'_>, errs: &mut Errors) {
    let (mut controller, mut told): (Option<&str>, bool) = (None, false);
    for owner in at.items() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner.get(field).is_empty() {
                let path = owner.path(field);
                match field {
                    "apiVersion" => errs.invalid(path, "", "version must not be empty"),
                    _ => errs.invalid(path, "", format!("{field} must not be empty")),
                }
            }
        }
        if (owner.get("apiVersion").str(), owner.get("kind").str()) == ("v1", "Event") {
            errs.invalid_value(&at.path, owner.value, "/v1, Kind=Event is disallowed from being an owner");
        }
        if owner.get("controller").bool() {
            let name = owner.get("name").str();
            // The message contains the whole list, so it is reported once.
            if let Some(first) = controller.filter(|_| !told) {
                told = true;
                let why = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                );
                errs.invalid_value(&at.path, at.value, why);
            }
            controller.get_or_insert(name);
        }
    }
}

/// Immutable fields, and what a terminating object may not add.
pub fn check_update(new: &Object, old: &Object, errs: &mut Errors) {
    let (new, old) = (At::root(&new.0).get("metadata"), At::root(&old.0).get("metadata"));
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        errs.immutable(&new.get(field), &old.get(field));
    }
    if let (Some(n), Some(o)) = (new.get("generation").int(), old.get("generation").int())
        && n < o
    {
        errs.invalid(new.path("generation"), n, "must not be decremented");
    }
    if old.get("deletionTimestamp").is_set() {
        let known: HashSet<&str> = old.get("finalizers").items().map(|f| f.str()).collect();
        let of_new = new.get("finalizers").items().map(|f| f.str());
        let added: Vec<String> = of_new.filter(|f| !known.contains(f)).map(|f| format!("\"{f}\"")).collect();
        if !added.is_empty() {
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            errs.forbidden(new.path("finalizers"), why);
        }
    }
}
