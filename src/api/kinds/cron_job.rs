//! CronJob (batch/v1).

use serde_json::{Value, json};

use super::{Kind, Strategy, job};
use crate::columns::{AGE, NAME, age, column, joined, selector, text_or, wide, yes};
use crate::cron::Schedule;
use crate::defaults::{fill, made};
use crate::validation::{At, Errors, job as rules, names, same};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["cj"],
    categories: &["all"],
    subresources: &["status"],
    columns: &[
        NAME,
        column("SCHEDULE", |o, _| text_or(o, "spec.schedule", "")),
        column("TIMEZONE", |o, _| text_or(o, "spec.timeZone", "<none>")),
        column("SUSPEND", |o, _| yes(o.at("spec.suspend"))),
        column("ACTIVE", |o, _| o.at("status.active").and_then(Value::as_array).map_or(0, Vec::len).to_string()),
        column("LAST SCHEDULE", |o, now| {
            o.at("status.lastScheduleTime").map_or_else(|| "<none>".into(), |t| age(t, now))
        }),
        AGE,
        wide("CONTAINERS", |o, _| containers(o, "name")),
        wide("IMAGES", |o, _| containers(o, "image")),
        wide("SELECTOR", |o, _| selector(o.at("spec.jobTemplate.spec.selector"))),
    ],
    strategy: Strategy {
        default,
        prepare_create,
        stamp,
        validate,
        validate_create,
        has_generation: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::batch::v1::CronJob>("cronjob")
};

/// When the schedule or its time zone last changed: earlier scheduled times are ignored.
pub const SCHEDULED_SINCE: &str = "podwright/scheduled-since";

fn containers(job: &Object, field: &'static str) -> String {
    joined(job.at("spec.jobTemplate.spec.template.spec.containers"), move |c| c[field].as_str())
}

fn default(cron: &mut Object) {
    let Some(map) = cron.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    fill(spec, "concurrencyPolicy", "Allow");
    fill(spec, "suspend", false);
    fill(spec, "successfulJobsHistoryLimit", 3);
    fill(spec, "failedJobsHistoryLimit", 1);
    job::default_spec(made(made(spec, "jobTemplate"), "spec"));
}

fn prepare_create(cron: &mut Object) {
    cron.0["status"] = json!({});
}

fn stamp(new: &mut Object, old: &Object, now: &str) {
    let differs = |field: &str| !same(&new.0["spec"][field], &old.0["spec"][field]);
    let since = match differs("schedule") || differs("timeZone") {
        true => Some(now),
        // Manifests lack it, so a replacement would remove it.
        false => old.annotation(SCHEDULED_SINCE),
    };
    if let Some(since) = since {
        made(new.metadata_mut(), "annotations").insert(SCHEDULED_SINCE.into(), since.into());
    }
}

fn validate(cron: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&cron.0).get("spec");
    let schedule = spec.get("schedule");
    if schedule.is_empty() {
        errs.required(&schedule.path, "");
    } else {
        match schedule.str() {
            text if text.contains("TZ") => {
                let why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
                errs.invalid(&schedule.path, text, why);
            }
            text => {
                if let Err(why) = Schedule::parse(text) {
                    errs.invalid(&schedule.path, text, why.to_string());
                }
            }
        }
    }
    time_zone(&spec.get("timeZone"), &mut errs);
    errs.one_of(&spec.get("concurrencyPolicy"), &["Allow", "Forbid", "Replace"]);
    for field in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        errs.non_negative(&spec.get(field));
    }
    template(&spec.get("jobTemplate").get("spec"), &mut errs);
    errs.0
}

fn time_zone(zone: &At<'_>, errs: &mut Errors) {
    if !zone.is_set() {
        return;
    }
    match zone.str() {
        "" => errs.invalid(&zone.path, "", "timeZone must be nil or non-empty string"),
        name if name.eq_ignore_ascii_case("local") => {
            let why = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
            errs.invalid(&zone.path, name, why);
        }
        name if jiff::tz::TimeZone::get(name).is_err() => {
            errs.invalid(&zone.path, name, format!("unknown time zone {name}"));
        }
        _ => {}
    }
}

fn template(spec: &At<'_>, errs: &mut Errors) {
    rules::spec(spec, errs);
    let (selector, manual) = (spec.get("selector"), spec.get("manualSelector"));
    if selector.is_set() {
        errs.invalid_value(&selector.path, selector.value, "`selector` will be auto-generated");
    }
    if manual.bool() {
        errs.not_supported(&manual.path, "true", &["false", "nil"]);
    }
}

/// The names of its Jobs are 11 characters longer than its own.
fn validate_create(cron: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    if cron.name().len() > 52 {
        errs.invalid("metadata.name", cron.name(), names::max_length(52));
    }
    errs.0
}
