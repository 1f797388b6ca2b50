//! Deployment (apps/v1).

use serde_json::json;

use super::replica_set::SCALE;
use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, containers, number, selector, wide};
use crate::defaults::{self, fill, made};
use crate::validation::{At, Errors, selectors::MAX_REQUIREMENTS, workload};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["deploy"],
    categories: &["all"],
    subresources: &["status", "scale"],
    columns: &[
        NAME,
        column("READY", |o, _| format!("{}/{}", number(o, "status.readyReplicas"), number(o, "spec.replicas"))),
        column("UP-TO-DATE", |o, _| number(o, "status.updatedReplicas").to_string()),
        column("AVAILABLE", |o, _| number(o, "status.availableReplicas").to_string()),
        AGE,
        wide("CONTAINERS", |o, _| containers(o, "name")),
        wide("IMAGES", |o, _| containers(o, "image")),
        wide("SELECTOR", |o, _| selector(o.at("spec.selector"))),
    ],
    scale: Some(SCALE),
    strategy: Strategy {
        default,
        prepare_create,
        validate,
        validate_update: workload::selector_immutable,
        validate_status,
        metadata_by_status: &["annotations", "finalizers", "ownerReferences"],
        has_generation: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::apps::v1::Deployment>("deployment")
};

fn default(deployment: &mut Object) {
    let Some(map) = deployment.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    fill(spec, "replicas", 1);
    fill(spec, "revisionHistoryLimit", 10);
    fill(spec, "progressDeadlineSeconds", 600);
    let strategy = made(spec, "strategy");
    fill(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        let rolling = made(strategy, "rollingUpdate");
        fill(rolling, "maxUnavailable", "25%");
        fill(rolling, "maxSurge", "25%");
    }
    defaults::pod::template(spec);
}

fn prepare_create(deployment: &mut Object) {
    deployment.0["status"] = json!({});
}

fn validate(deployment: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&deployment.0).get("spec");
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"] {
        errs.non_negative(&spec.get(field));
    }
    workload::selector_and_template(&spec, "Deployment", &[], &mut errs);
    let selector = spec.get("selector");
    let requirements = selector.get("matchLabels").len() + selector.get("matchExpressions").len();
    // Its ReplicaSets' selectors have `pod-template-hash` as well.
    if requirements == MAX_REQUIREMENTS {
        errs.too_many(&selector.path, requirements, MAX_REQUIREMENTS - 1);
    }
    let strategy = spec.get("strategy");
    let rolling = strategy.get("rollingUpdate");
    match strategy.get("type").str() {
        "Recreate" if rolling.is_set() => {
            errs.forbidden(&rolling.path, "may not be specified when strategy `type` is 'Recreate'");
        }
        "RollingUpdate" => workload::rolling_update(&rolling, &mut errs),
        _ => errs.one_of(&strategy.get("type"), &["Recreate", "RollingUpdate"]),
    }
    let (deadline, ready) = (spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds").int().unwrap_or(0));
    if let Some(n) = deadline.int().filter(|n| *n <= ready) {
        errs.invalid(&deadline.path, n, "must be greater than minReadySeconds");
    }
    errs.0
}

fn validate_status(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    const COUNTS: &[&str] = &[
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "collisionCount",
    ];
    const ORDER: &[(&str, &str)] = &[
        ("updatedReplicas", "replicas"),
        ("readyReplicas", "replicas"),
        ("availableReplicas", "replicas"),
        ("availableReplicas", "readyReplicas"),
    ];
    let (new, old) = (At::root(&new.0).get("status"), At::root(&old.0).get("status"));
    workload::status(&new, COUNTS, ORDER, &mut errs);
    workload::not_decremented(&new.get("collisionCount"), &old.get("collisionCount"), &mut errs);
    errs.0
}
