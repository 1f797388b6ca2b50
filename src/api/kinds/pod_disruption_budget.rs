//! PodDisruptionBudget (policy/v1).

use serde_json::json;

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, number, text_or};
use crate::validation::{At, Errors, selectors, workload};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["pdb"],
    subresources: &["status"],
    columns: &[
        NAME,
        column("MIN AVAILABLE", |o, _| text_or(o, "spec.minAvailable", "N/A")),
        column("MAX UNAVAILABLE", |o, _| text_or(o, "spec.maxUnavailable", "N/A")),
        column("ALLOWED DISRUPTIONS", |o, _| number(o, "status.disruptionsAllowed").to_string()),
        AGE,
    ],
    strategy: Strategy { prepare_create, validate, validate_status, has_generation: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::policy::v1::PodDisruptionBudget>("poddisruptionbudget")
};

fn prepare_create(budget: &mut Object) {
    budget.0["status"] = json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0});
}

fn validate(budget: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&budget.0).get("spec");
    let (least, most) = (spec.get("minAvailable"), spec.get("maxUnavailable"));
    if least.is_set() && most.is_set() {
        errs.invalid_value(&spec.path, spec.value, "minAvailable and maxUnavailable cannot be both set");
    }
    for at in [&least, &most] {
        workload::int_or_percent(at, &mut errs);
        workload::at_most_100_percent(at, &mut errs);
    }
    let selector = spec.get("selector");
    if selector.is_set() {
        selectors::label_selector(&selector, &mut errs);
    }
    let policy = spec.get("unhealthyPodEvictionPolicy");
    if policy.is_set() {
        errs.one_of(&policy, &["AlwaysAllow", "IfHealthyBudget"]);
    }
    errs.0
}

fn validate_status(new: &Object, _old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    const COUNTS: &[&str] = &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
    workload::status(&At::root(&new.0).get("status"), COUNTS, &[], &mut errs);
    errs.0
}
