//! DaemonSet (apps/v1).

use serde_json::{Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, containers, number, pairs, selector, wide};
use crate::defaults::{self, fill, made};
use crate::validation::{At, Errors, same, workload};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["ds"],
    categories: &["all"],
    subresources: &["status"],
    columns: &[
        NAME,
        column("DESIRED", |o, _| number(o, "status.desiredNumberScheduled").to_string()),
        column("CURRENT", |o, _| number(o, "status.currentNumberScheduled").to_string()),
        column("READY", |o, _| number(o, "status.numberReady").to_string()),
        column("UP-TO-DATE", |o, _| number(o, "status.updatedNumberScheduled").to_string()),
        column("AVAILABLE", |o, _| number(o, "status.numberAvailable").to_string()),
        column("NODE SELECTOR", |o, _| pairs(o.at("spec.template.spec.nodeSelector"))),
        AGE,
        wide("CONTAINERS", |o, _| containers(o, "name")),
        wide("IMAGES", |o, _| containers(o, "image")),
        wide("SELECTOR", |o, _| selector(o.at("spec.selector"))),
    ],
    strategy: Strategy {
        default,
        prepare_create,
        prepare_update,
        validate,
        validate_update: workload::selector_immutable,
        validate_status,
        has_generation: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::apps::v1::DaemonSet>("daemonset")
};

/// How often the template has changed; a field of older versions, kept as an annotation.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn default(set: &mut Object) {
    let Some(map) = set.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    let strategy = made(spec, "updateStrategy");
    fill(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        let rolling = made(strategy, "rollingUpdate");
        fill(rolling, "maxUnavailable", 1);
        fill(rolling, "maxSurge", 0);
    }
    fill(spec, "revisionHistoryLimit", 10);
    defaults::pod::template(spec);
}

fn prepare_create(set: &mut Object) {
    set.0["status"] =
        json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0});
    set_template_generation(set, 1);
}

fn prepare_update(new: &mut Object, old: &Object) {
    let before: i64 = old.annotation(TEMPLATE_GENERATION).and_then(|n| n.parse().ok()).unwrap_or(1);
    let changed = !same(&new.0["spec"]["template"], &old.0["spec"]["template"]);
    set_template_generation(new, before.saturating_add(changed.into()));
}

fn set_template_generation(set: &mut Object, generation: i64) {
    made(set.metadata_mut(), "annotations").insert(TEMPLATE_GENERATION.into(), Value::from(generation.to_string()));
}

fn validate(set: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&set.0).get("spec");
    workload::selector_and_template(&spec, "DaemonSet", &[], &mut errs);
    for field in ["minReadySeconds", "revisionHistoryLimit"] {
        errs.non_negative(&spec.get(field));
    }
    let strategy = spec.get("updateStrategy");
    match strategy.get("type").str() {
        "OnDelete" => {}
        "RollingUpdate" => rolling_update(&strategy.get("rollingUpdate"), &mut errs),
        other => errs.not_supported(&strategy.path, other, &["OnDelete", "RollingUpdate"]),
    }
    errs.0
}

fn rolling_update(rolling: &At<'_>, errs: &mut Errors) {
    if !rolling.is_set() {
        errs.required(&rolling.path, "");
        return;
    }
    let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
    for at in [&unavailable, &surge] {
        workload::int_or_percent(at, errs);
        workload::at_most_100_percent(at, errs);
    }
    match (workload::is_zero(unavailable.value), workload::is_zero(surge.value)) {
        (false, false) => {
            errs.invalid_value(&surge.path, surge.value, "may not be set when maxUnavailable is non-zero");
        }
        (true, true) => errs.required(&unavailable.path, "cannot be 0 when maxSurge is 0"),
        _ => {}
    }
}

fn validate_status(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    const COUNTS: &[&str] = &[
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    let (new, old) = (At::root(&new.0).get("status"), At::root(&old.0).get("status"));
    workload::status(&new, COUNTS, &[], &mut errs);
    workload::not_decremented(&new.get("collisionCount"), &old.get("collisionCount"), &mut errs);
    errs.0
}
