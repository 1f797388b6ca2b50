//! ReplicaSet (apps/v1).

use serde_json::json;

use super::{Kind, Scale, Strategy};
use crate::columns::{AGE, Column, NAME, column, containers, number, selector, wide};
use crate::defaults::{self, fill, made};
use crate::validation::{At, Errors, workload};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["rs"],
    categories: &["all"],
    subresources: &["status", "scale"],
    selectable: &["status.replicas"],
    columns: &columns(wide("SELECTOR", |o, _| selector(o.at("spec.selector")))),
    scale: Some(SCALE),
    strategy: Strategy {
        default,
        prepare_create,
        validate,
        validate_update: workload::selector_immutable,
        validate_status,
        has_generation: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::apps::v1::ReplicaSet>("replicaset")
};

/// Deployments use it too.
pub const SCALE: Scale =
    Scale { spec_replicas: "spec.replicas", status_replicas: "status.replicas", selector: "spec.selector" };

/// Shared with ReplicationControllers, whose selector has another type.
pub const fn columns(selector: Column) -> [Column; 8] {
    [
        NAME,
        column("DESIRED", |o, _| number(o, "spec.replicas").to_string()),
        column("CURRENT", |o, _| number(o, "status.replicas").to_string()),
        column("READY", |o, _| number(o, "status.readyReplicas").to_string()),
        AGE,
        wide("CONTAINERS", |o, _| containers(o, "name")),
        wide("IMAGES", |o, _| containers(o, "image")),
        selector,
    ]
}

fn default(set: &mut Object) {
    let Some(map) = set.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    fill(spec, "replicas", 1);
    defaults::pod::template(spec);
}

pub fn prepare_create(set: &mut Object) {
    set.0["status"] = json!({"replicas": 0});
}

fn validate(set: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&set.0).get("spec");
    errs.non_negative(&spec.get("replicas"));
    errs.non_negative(&spec.get("minReadySeconds"));
    workload::selector_and_template(&spec, "ReplicaSet", &[], &mut errs);
    errs.0
}

pub fn validate_status(new: &Object, _old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    const COUNTS: &[&str] =
        &["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"];
    const ORDER: &[(&str, &str)] = &[
        ("fullyLabeledReplicas", "replicas"),
        ("readyReplicas", "replicas"),
        ("availableReplicas", "replicas"),
        ("availableReplicas", "readyReplicas"),
    ];
    workload::status(&At::root(&new.0).get("status"), COUNTS, ORDER, &mut errs);
    errs.0
}
