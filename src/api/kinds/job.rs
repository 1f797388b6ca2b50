//! Job (batch/v1).

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, containers, number, selector, wide};
use crate::defaults::{self, each, fill, made};
use crate::duration;
use crate::validation::job::{self as rules, NAME_LABELS, UID_LABELS};
use crate::validation::{At, Errors, workload};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    categories: &["all"],
    subresources: &["status"],
    selectable: &["status.successful"],
    columns: &[
        NAME,
        column("STATUS", |o, _| status(o).to_owned()),
        column("COMPLETIONS", |o, _| completions(o)),
        column("DURATION", took),
        AGE,
        wide("CONTAINERS", |o, _| containers(o, "name")),
        wide("IMAGES", |o, _| containers(o, "image")),
        wide("SELECTOR", |o, _| selector(o.at("spec.selector"))),
    ],
    strategy: Strategy {
        default,
        prepare_create,
        identify,
        validate,
        validate_update,
        validate_status,
        has_generation: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::batch::v1::Job>("job")
};

fn default(job: &mut Object) {
    let Some(map) = job.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
        spec.insert("completions".into(), 1.into());
    }
    fill(spec, "parallelism", 1);
    let per_index = spec.get("backoffLimitPerIndex").is_some_and(|v| !v.is_null());
    fill(spec, "backoffLimit", if per_index { i32::MAX } else { 6 });
    fill(spec, "completionMode", "NonIndexed");
    fill(spec, "suspend", false);
    fill(spec, "manualSelector", false);
    let by_policy = spec.get("podFailurePolicy").is_some_and(Value::is_object);
    fill(spec, "podReplacementPolicy", if by_policy { "Failed" } else { "TerminatingOrFailed" });
    default_spec(spec);
    labels_of_template(job);
}

/// A Job without labels gets its Pods'.
fn labels_of_template(job: &mut Object) {
    let labels = job.0["spec"]["template"]["metadata"]["labels"].as_object().filter(|l| !l.is_empty()).cloned();
    let meta = job.metadata_mut();
    if let Some(labels) = labels
        && meta.get("labels").and_then(Value::as_object).is_none_or(Map::is_empty)
    {
        meta.insert("labels".into(), Value::Object(labels));
    }
}

/// Also for a CronJob's template of a Job.
pub fn default_spec(spec: &mut Map<String, Value>) {
    if let Some(policy) = defaults::object(spec, "podFailurePolicy") {
        for rule in each(policy, "rules") {
            each(rule, "onPodConditions").for_each(|condition| fill(condition, "status", "True"));
        }
    }
    defaults::pod::template(spec);
}

fn prepare_create(job: &mut Object) {
    job.0["status"] = json!({});
}

/// Selects its own Pods by its uid, unless `manualSelector` is set.
fn identify(job: &mut Object) {
    let (uid, name) = (job.uid().to_owned(), job.name().to_owned());
    let Some(spec) = job.0["spec"].as_object_mut() else { return };
    if spec.get("manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    let labels = made(made(made(spec, "template"), "metadata"), "labels");
    for (keys, value) in [(UID_LABELS, &uid), (NAME_LABELS, &name)] {
        for key in keys {
            labels.entry(key).or_insert_with(|| value.as_str().into());
        }
    }
    let selector = made(made(spec, "selector"), "matchLabels");
    if !UID_LABELS.iter().any(|key| selector.contains_key(*key)) {
        selector.insert(UID_LABELS[1].into(), uid.into());
    }
    labels_of_template(job);
}

fn validate(job: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let root = At::root(&job.0);
    let spec = root.get("spec");
    rules::generated_selector(job, &spec, &mut errs);
    rules::spec(&spec, &mut errs);
    let selector = spec.get("selector");
    if !selector.is_set() {
        errs.required(&selector.path, "");
    }
    workload::selector_matches(&spec, &mut errs);
    rules::indexed_name(&root, &spec, &mut errs);
    errs.0
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    rules::update(new, old, &mut errs);
    errs.0
}

fn validate_status(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    rules::status(new, old, &mut errs);
    errs.0
}

fn has_condition(job: &Object, name: &str) -> bool {
    let conditions = job.at("status.conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == name && c["status"] == "True")
}

fn status(job: &Object) -> &'static str {
    const BEFORE: &[&str] = &["Complete", "Failed"];
    const AFTER: &[&str] = &["Suspended", "FailureTarget", "SuccessCriteriaMet"];
    let first = |names: &[&'static str]| names.iter().copied().find(|name| has_condition(job, name));
    let terminating = || job.is_terminating().then_some("Terminating");
    first(BEFORE).or_else(terminating).or_else(|| first(AFTER)).unwrap_or("Running")
}

fn completions(job: &Object) -> String {
    let done = number(job, "status.succeeded");
    match (job.at("spec.completions"), number(job, "spec.parallelism")) {
        (Some(all), _) => format!("{done}/{all}"),
        (None, many) if many > 1 => format!("{done}/1 of {many}"),
        _ => format!("{done}/1"),
    }
}

fn took(job: &Object, now: Timestamp) -> String {
    let time = |path: &str| job.at(path).and_then(Value::as_str).and_then(|t| t.parse::<Timestamp>().ok());
    let Some(start) = time("status.startTime") else { return String::new() };
    duration::human(time("status.completionTime").unwrap_or(now).duration_since(start).as_secs())
}
