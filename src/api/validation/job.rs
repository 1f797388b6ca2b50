//! The rules for Jobs, and for the templates in CronJobs.

use std::collections::HashSet;

use serde_json::Value;

use super::{At, Errors, job_indexes, names, pod, same, selectors};
use crate::Object;
use crate::selector::LabelSelector;

const MODES: &[&str] = &["Indexed", "NonIndexed"];

/// The labels that identify a Job's Pods, under old and new names.
pub const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
pub const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];

/// Limits the length of index lists in an indexed Job's status.
const MAX_PARALLELISM: i64 = 100_000;
const MAX_FAILED_INDEXES: i64 = 100_000;
/// With a limit per index and more completions than this, failed and completed indexes may alternate: then both limits are lower.
const MANY_COMPLETIONS: i64 = 100_000;
const MAX_OF_MANY: i64 = 10_000;

/// All rules for a Job's spec except its selector.
pub fn spec(spec: &At<'_>, errs: &mut Errors) {
    const COUNTS: &[&str] = &[
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    for field in COUNTS {
        errs.non_negative(&spec.get(field));
    }
    let selector = spec.get("selector");
    if selector.is_set() {
        selectors::label_selector(&selector, errs);
    }
    if spec.get("maxFailedIndexes").is_set() && !spec.get("backoffLimitPerIndex").is_set() {
        errs.required(spec.path("backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    let manager = spec.get("managedBy");
    if manager.is_set() {
        errs.invalid_each(&manager.path, manager.str(), names::domain_prefixed_path(manager.str()));
        if manager.len() > 63 {
            errs.too_long(&manager.path, 63);
        }
    }
    completion_mode(spec, errs);
    failure_policy(spec, errs);
    replacement_policy(spec, errs);
    pod::template(&spec.get("template"), errs);
    restart_policy(spec, errs);
}

fn completion_mode(spec: &At<'_>, errs: &mut Errors) {
    let mode = spec.get("completionMode");
    // A CronJob's template may omit it.
    if mode.is_set() && !MODES.contains(&mode.str()) {
        errs.not_supported(&mode.path, mode.str(), MODES);
    }
    if mode.str() == "Indexed" {
        indexed(spec, errs);
        return;
    }
    for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
        let at = spec.get(field);
        if at.is_set() {
            errs.invalid_value(&at.path, at.value, "requires indexed completion mode");
        }
    }
    let success = spec.get("successPolicy");
    if success.is_set() {
        errs.invalid_value(&success.path, success.value, "requires indexed completion mode");
    }
}

fn indexed(spec: &At<'_>, errs: &mut Errors) {
    let (completions, limit) = (spec.get("completions"), spec.get("backoffLimitPerIndex"));
    let (parallelism, failed) = (spec.get("parallelism"), spec.get("maxFailedIndexes"));
    if !completions.is_set() {
        errs.required(&completions.path, "when completion mode is Indexed");
    }
    at_most(&parallelism, MAX_PARALLELISM, &format!("{MAX_PARALLELISM} when completion mode is Indexed"), errs);
    if let Some(all) = completions.int() {
        at_most(&failed, all, "completions", errs);
    }
    at_most(&failed, MAX_FAILED_INDEXES, &MAX_FAILED_INDEXES.to_string(), errs);
    if limit.is_set() && completions.int().is_some_and(|n| n > MANY_COMPLETIONS) {
        if !failed.is_set() {
            errs.required(&failed.path, &format!("must be specified when completions is above {MANY_COMPLETIONS}"));
        }
        let words = format!(
            "{MAX_OF_MANY} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index"
        );
        at_most(&parallelism, MAX_OF_MANY, &words, errs);
        at_most(&failed, MAX_OF_MANY, &words, errs);
    }
    let success = spec.get("successPolicy");
    if success.is_set() {
        job_indexes::success_policy(&success, completions.int(), errs);
    }
}

fn at_most(number: &At<'_>, most: i64, words: &str, errs: &mut Errors) {
    if let Some(n) = number.int().filter(|n| *n > most) {
        errs.invalid(&number.path, n, format!("must be less than or equal to {words}"));
    }
}

const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_CONDITIONS: usize = 20;

fn failure_policy(spec: &At<'_>, errs: &mut Errors) {
    let policy = spec.get("podFailurePolicy");
    if !policy.is_set() {
        return;
    }
    let rules = policy.get("rules");
    if rules.len() > MAX_RULES {
        return errs.too_many(&rules.path, rules.len(), MAX_RULES);
    }
    let template = spec.get("template").get("spec");
    let names = |list| template.get(list).items().map(|c| c.get("name").str()).collect::<Vec<_>>();
    let containers: HashSet<&str> = ["containers", "initContainers"].into_iter().flat_map(names).collect();
    for rule in rules.items() {
        failure_rule(&rule, spec, &containers, errs);
    }
}

fn failure_rule(rule: &At<'_>, spec: &At<'_>, containers: &HashSet<&str>, errs: &mut Errors) {
    let action = rule.get("action");
    if action.str() == "FailIndex" && !spec.get("backoffLimitPerIndex").is_set() {
        errs.invalid(&action.path, action.str(), "requires the backoffLimitPerIndex to be set");
    }
    errs.one_of(&action, &["Count", "FailIndex", "FailJob", "Ignore"]);
    let (codes, conditions) = (rule.get("onExitCodes"), rule.get("onPodConditions"));
    match (codes.is_set(), conditions.is_empty()) {
        (true, false) => {
            let why = "specifying both OnExitCodes and OnPodConditions is not supported";
            errs.invalid_value(&rule.path, rule.value, why);
        }
        (false, true) => {
            errs.invalid_value(&rule.path, rule.value, "specifying one of OnExitCodes and OnPodConditions is required");
        }
        (true, true) => exit_codes(&codes, containers, errs),
        (false, false) => pod_conditions(&conditions, errs),
    }
}

fn exit_codes(codes: &At<'_>, containers: &HashSet<&str>, errs: &mut Errors) {
    let (operator, values, container) = (codes.get("operator"), codes.get("values"), codes.get("containerName"));
    errs.one_of(&operator, &["In", "NotIn"]);
    if container.is_set() && !containers.contains(container.str()) {
        errs.invalid(
            &container.path,
            container.str(),
            "must be one of the container or initContainer names in the pod template",
        );
    }
    if values.is_empty() {
        errs.invalid_value(&values.path, values.value, "at least one value is required");
    } else if values.len() > MAX_EXIT_CODES {
        return errs.too_many(&values.path, values.len(), MAX_EXIT_CODES);
    }
    let mut before: Option<i64> = None;
    for value in values.items() {
        let n = value.int().unwrap_or(0);
        if operator.str() == "In" && n == 0 {
            errs.invalid(&value.path, n, "must not be 0 for the In operator");
        }
        match before {
            Some(last) if last == n => errs.duplicate(&value.path, n),
            Some(last) if last > n => {
                errs.invalid_value(&values.path, values.value, "must be ordered");
            }
            _ => {}
        }
        before = Some(n);
    }
}

fn pod_conditions(conditions: &At<'_>, errs: &mut Errors) {
    if conditions.len() > MAX_CONDITIONS {
        return errs.too_many(&conditions.path, conditions.len(), MAX_CONDITIONS);
    }
    for condition in conditions.items() {
        let name = condition.get("type");
        errs.invalid_each(&name.path, name.str(), names::qualified_name(name.str()));
        errs.one_of(&condition.get("status"), &["False", "True", "Unknown"]);
    }
}

fn replacement_policy(spec: &At<'_>, errs: &mut Errors) {
    let policy = spec.get("podReplacementPolicy");
    let supported: &[&str] = match spec.get("podFailurePolicy").is_set() {
        true => &["Failed"],
        false => &["Failed", "TerminatingOrFailed"],
    };
    if policy.is_set() && !supported.contains(&policy.str()) {
        errs.not_supported(&policy.path, policy.str(), supported);
    }
}

fn restart_policy(spec: &At<'_>, errs: &mut Errors) {
    let policy = spec.get("template").get("spec").get("restartPolicy");
    match policy.str() {
        "Never" => {}
        "OnFailure" if spec.get("podFailurePolicy").is_set() => {
            errs.invalid(&policy.path, policy.str(), "only \"Never\" is supported when podFailurePolicy is specified");
        }
        "OnFailure" => {}
        // The default of other Pods is not allowed here.
        "" | "Always" => errs.required(&policy.path, "valid values: \"OnFailure\", \"Never\""),
        other => errs.not_supported(&policy.path, other, &["OnFailure", "Never"]),
    }
}

/// It must be the generated one, unless `manualSelector` is set.
pub fn generated_selector(job: &Object, spec: &At<'_>, errs: &mut Errors) {
    let selector = spec.get("selector");
    if spec.get("manualSelector").bool() || !selector.is_set() {
        return;
    }
    if job.uid().is_empty() {
        errs.required("metadata.uid", "");
    }
    let labels = spec.get("template").get("metadata").get("labels");
    let expected = || {
        let by_uid = UID_LABELS.iter().map(|key| (*key, job.uid()));
        by_uid.chain(NAME_LABELS.iter().map(|key| (*key, job.name())))
    };
    for (key, wanted) in expected() {
        match labels.value.get(key).and_then(Value::as_str) {
            Some(value) if value == wanted => {}
            Some(_) => errs.invalid_value(labels.key_path(key), labels.value, format!("must be '{wanted}'")),
            None => errs.required(labels.key_path(key), &format!("must be '{wanted}'")),
        }
    }
    let all: serde_json::Map<String, Value> = expected().map(|(k, v)| (k.to_owned(), v.into())).collect();
    if LabelSelector::from_json(selector.value).is_ok_and(|parsed| !parsed.matches_labels(Some(&all))) {
        errs.invalid_value(&selector.path, selector.value, "`selector` not auto-generated");
    }
}

/// The Pods of an indexed Job have its name and their index as hostname.
pub fn indexed_name(root: &At<'_>, spec: &At<'_>, errs: &mut Errors) {
    let (name, completions) = (root.get("metadata").get("name"), spec.get("completions").int());
    if let (Some(n), "Indexed") = (completions.filter(|n| *n > 0), spec.get("completionMode").str()) {
        let hostname = format!("{}-{}", name.str(), n - 1);
        for why in names::dns1123_label(&hostname) {
            let why = format!("will not able to create pod with invalid DNS label: {hostname}: {why}");
            errs.invalid(&name.path, name.str(), why);
        }
    }
}

/// Immutable fields.
pub fn update(new: &Object, old: &Object, errs: &mut Errors) {
    let (new, old) = (At::root(&new.0).get("spec"), At::root(&old.0).get("spec"));
    completions(&new, &old, errs);
    for field in
        ["selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    {
        errs.immutable(&new.get(field), &old.get(field));
    }
    let (now, before) = (new.get("template"), old.get("template"));
    // A suspended Job's scheduling directives may still be changed.
    let suspended = old.get("suspend").bool();
    let (a, b) = match suspended {
        true => (without_directives(now.value), without_directives(before.value)),
        false => (now.value.clone(), before.value.clone()),
    };
    if !same(&a, &b) {
        errs.invalid_value(&now.path, now.value, "field is immutable");
    }
}

/// An indexed Job's completions may only change together with its parallelism.
fn completions(new: &At<'_>, old: &At<'_>, errs: &mut Errors) {
    let (now, before) = (new.get("completions"), old.get("completions"));
    if same(now.value, before.value) {
        return;
    }
    let elastic = new.get("completionMode").str() == "Indexed" && now.is_set() && before.is_set();
    if !elastic {
        errs.immutable(&now, &before);
    } else if now.int() != new.get("parallelism").int() {
        let why = "can only be modified in tandem with spec.parallelism";
        errs.invalid_value(&now.path, now.value, why);
    }
}

/// A template without scheduling directives.
fn without_directives(template: &Value) -> Value {
    let mut out = template.clone();
    for field in ["labels", "annotations"] {
        if let Some(meta) = out["metadata"].as_object_mut() {
            meta.shift_remove(field);
        }
    }
    if let Some(spec) = out["spec"].as_object_mut() {
        for field in ["nodeSelector", "tolerations", "schedulingGates"] {
            spec.shift_remove(field);
        }
        if let Some(affinity) = spec.get_mut("affinity").and_then(Value::as_object_mut) {
            affinity.shift_remove("nodeAffinity");
        }
        if spec.get("affinity").is_some_and(|a| same(a, &Value::Null)) {
            spec.shift_remove("affinity");
        }
    }
    out
}

/// The rules for a Job's status.
pub fn status(new: &Object, old: &Object, errs: &mut Errors) {
    let (root, before) = (At::root(&new.0), At::root(&old.0).get("status"));
    let status = root.get("status");
    for field in ["active", "succeeded", "failed", "terminating", "ready"] {
        errs.non_negative(&status.get(field));
    }
    let is = |at: &At<'_>, name: &str| {
        at.get("conditions").items().any(|c| c.get("type").str() == name && c.get("status").str() == "True")
    };
    let (complete, failed) = (is(&status, "Complete"), is(&status, "Failed"));
    if complete && failed {
        let at = status.get("conditions");
        errs.invalid_value(&at.path, at.value, "cannot set Complete=True and Failed=true conditions");
    }
    for name in ["Complete", "Failed"] {
        if is(&before, name) && !is(&status, name) {
            let at = status.get("conditions");
            errs.invalid_value(&at.path, at.value, format!("cannot disable the terminal {name}=True condition"));
        }
    }
    let (done, was) = (status.get("completionTime"), before.get("completionTime"));
    if done.is_set() && !complete {
        errs.invalid_value(
            &done.path,
            done.value,
            "cannot set completionTime when there is no Complete=True condition",
        );
    }
    if was.is_set() && !same(done.value, was.value) {
        errs.invalid_value(&done.path, done.value, "field is immutable");
    }
    if (complete || failed) && status.get("active").int().unwrap_or(0) > 0 {
        let at = status.get("active");
        errs.invalid_value(&at.path, at.value, "active>0 is invalid for finished job");
    }
    if complete && !done.is_set() {
        errs.required(&done.path, "completionTime is required for Complete jobs");
    }
}
