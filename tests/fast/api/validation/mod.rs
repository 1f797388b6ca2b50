//! Every validation rule has one invalid example: a fragment, and the expected field, reason and message.

mod bounds;
mod creation;
mod selectors;
mod sizes;
mod updates;

use podwright::api::kinds::Storage;
use podwright::api::{Cause, FieldValidation, Kind, Object, Status, kinds, patch, strategy, yaml};
use serde_json::Value;

use super::manifests::MANIFESTS;

pub fn value(text: &str) -> Value {
    let mut all = yaml::documents(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    all.remove(0)
}

/// The base with a fragment merged in. `spec` stands for a Pod's spec, `container` for its first container.
pub fn merged(base: &str, fragment: &str) -> Value {
    let (base, path) = match base {
        "spec" => ("pod", "/spec"),
        "container" => ("pod", "/spec/containers/0"),
        "template" => ("deployment", "/spec/template/spec"),
        other => (other, ""),
    };
    let (_, text) = MANIFESTS.iter().find(|(name, _)| *name == base).unwrap_or_else(|| panic!("no base {base}"));
    let mut object = value(text);
    let target = object.pointer_mut(path).expect("the base has it");
    *target = patch::merge(target, &value(fragment));
    object
}

/// The stored version of a manifest.
pub fn decoded(manifest: Value) -> (&'static Kind, Object) {
    let kind = kinds::of(manifest["apiVersion"].as_str().unwrap(), manifest["kind"].as_str().unwrap()).unwrap();
    let shown = manifest.to_string();
    let (mut object, _) = kind.decode(manifest, FieldValidation::Strict).unwrap_or_else(|e| panic!("{shown}: {e}"));
    if let Storage::As(conversion) = kind.storage {
        (conversion.to_stored)(&mut object);
        (object.0["apiVersion"], object.0["kind"]) = (kind.stored().api_version().into(), kind.stored().kind.into());
    }
    (kind.stored(), object)
}

pub fn created(base: &str, fragment: &str) -> (&'static Kind, Object) {
    let (kind, mut object) = decoded(merged(base, fragment));
    strategy::prepare_create(kind, &mut object);
    object.set_meta("uid", Value::from("u"));
    (kind.strategy.identify)(&mut object);
    (kind, object)
}

/// The part of an expected cause that is missing.
pub fn unmet(outcome: Result<(), Status>, what: &str, field: &str, reason: &str, words: &str) -> Option<String> {
    let Err(status) = outcome else { return Some(format!("{what}\n  should earn {field}: {reason}, but is valid")) };
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    let causes: Vec<Cause> = status.details.map(|d| d.causes).unwrap_or_default();
    let found = causes
        .iter()
        .any(|c| c.field == field && c.reason == format!("FieldValue{reason}") && c.message.contains(words));
    (!found).then(|| format!("{what}\n  should earn {field}: {reason}: {words}\n  but got {causes:#?}"))
}

/// Each case is a manifest whose creation must be rejected.
pub fn refused_at_creation(cases: &[Case]) {
    let mut wrong = Vec::new();
    for (base, fragment, field, reason, words) in cases {
        let (kind, object) = created(base, fragment);
        let outcome = strategy::validate_create(kind, &object);
        wrong.extend(unmet(outcome, &format!("{base} {fragment}"), field, reason, words));
    }
    report(wrong);
}

pub fn report(unmet: Vec<String>) {
    assert!(unmet.is_empty(), "{} rules do not hold:\n{}", unmet.len(), unmet.join("\n"));
}

#[test]
fn the_bases_are_valid() {
    for (name, _) in MANIFESTS {
        let (kind, object) = created(name, "{}");
        strategy::validate_create(kind, &object).unwrap_or_else(|e| panic!("{name}: {e}"));
        strategy::validate_update(kind, &object, &object).unwrap_or_else(|e| panic!("{name}: {e}"));
        strategy::validate_status_update(kind, &object, &object).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

pub type Case = (&'static str, &'static str, &'static str, &'static str, &'static str);

#[test]
fn the_message_is_upstreams() {
    let (kind, pod) = created("container", "{image: ~, ports: [{containerPort: 0}]}");
    let status = strategy::validate_create(kind, &pod).unwrap_err();
    assert_eq!(
        status.message,
        "Pod \"a\" is invalid: [spec.containers[0].image: Required value, \
         spec.containers[0].ports[0].containerPort: Required value]"
    );
    let (kind, it) = created("deployment", "{spec: {replicas: -1}}");
    let status = strategy::validate_create(kind, &it).unwrap_err();
    assert_eq!(
        status.message,
        "Deployment.apps \"a\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"
    );
}
