//! The rules shared by Deployments, ReplicaSets and the like: selector, template, counts, rolling updates.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{At, Errors, pod, selectors};
use crate::int_or_string::percent;
use crate::selector::LabelSelector;
use crate::{Cause, Object};

/// The selector must exist, not be empty, and match the template, whose Pods must run forever. `claims`: volumes of the Pods in
/// addition to the template's.
pub fn selector_and_template(spec: &At<'_>, kind: &str, claims: &[&str], errs: &mut Errors) {
    let selector = spec.get("selector");
    if !selector.is_set() {
        errs.required(&selector.path, "");
    } else {
        selectors::label_selector(&selector, errs);
        if selector.get("matchLabels").is_empty() && selector.get("matchExpressions").is_empty() {
            let why = format!("empty selector is invalid for {}", kind.to_lowercase());
            errs.invalid_value(&selector.path, selector.value, why);
        }
    }
    selector_matches(spec, errs);
    runs_for_ever(spec, kind, claims, errs);
}

/// The template's Pods must run forever.
pub fn runs_for_ever(spec: &At<'_>, kind: &str, claims: &[&str], errs: &mut Errors) {
    let template = spec.get("template");
    if claims.is_empty() {
        pod::template(&template, errs);
    } else {
        let value = with_claims(template.value, claims);
        pod::template(&At { value: &value, path: template.path.clone() }, errs);
    }
    let its_spec = template.get("spec");
    let policy = its_spec.get("restartPolicy");
    if !matches!(policy.str(), "Always" | "") {
        errs.not_supported(&policy.path, policy.str(), &["Always"]);
    }
    if its_spec.get("activeDeadlineSeconds").is_set() {
        let why = format!("activeDeadlineSeconds in {kind} is not Supported");
        errs.forbidden(its_spec.path("activeDeadlineSeconds"), why);
    }
}

/// The selector, if any, must match the template's labels.
pub fn selector_matches(spec: &At<'_>, errs: &mut Errors) {
    let labels = spec.get("template").get("metadata").get("labels");
    if let Ok(parsed) = LabelSelector::from_json(spec.get("selector").value)
        && !parsed.is_empty()
        && !parsed.matches_labels(labels.value.as_object())
    {
        errs.invalid_value(&labels.path, labels.value, "`selector` does not match template `labels`");
    }
}

/// A Pod template with additional volumes from claims.
fn with_claims(template: &Value, claims: &[&str]) -> Value {
    let mut template = template.clone();
    let volumes = &mut template["spec"]["volumes"];
    if !volumes.is_array() {
        *volumes = json!([]);
    }
    if let Some(list) = volumes.as_array_mut() {
        // Upstream lets a claim replace a volume.
        let taken: HashSet<&str> = claims.iter().copied().collect();
        list.retain(|volume| volume["name"].as_str().is_none_or(|name| !taken.contains(name)));
        list.extend(claims.iter().map(|c| json!({"name": c, "persistentVolumeClaim": {"claimName": c}})));
    }
    template
}

pub fn selector_immutable(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let at = |o| At::root(o).get("spec").get("selector");
    errs.immutable(&at(&new.0), &at(&old.0));
    errs.0
}

/// Counts must not be negative, and the first of each pair must not exceed the second.
pub fn status(status: &At<'_>, counts: &[&str], order: &[(&str, &str)], errs: &mut Errors) {
    for field in counts {
        errs.non_negative(&status.get(field));
    }
    for (less, more) in order {
        let at = status.get(less);
        let n = at.int().unwrap_or(0);
        if n > status.get(more).int().unwrap_or(0) {
            let what = if *more == "replicas" { "status.replicas" } else { more };
            errs.invalid(&at.path, n, format!("cannot be greater than {what}"));
        }
    }
}

/// `maxUnavailable` and `maxSurge`.
pub fn rolling_update(rolling: &At<'_>, errs: &mut Errors) {
    if !rolling.is_set() {
        errs.required(&rolling.path, "this should be defaulted and never be nil");
        return;
    }
    let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
    for at in [&unavailable, &surge] {
        int_or_percent(at, errs);
    }
    if is_zero(unavailable.value) && is_zero(surge.value) {
        errs.invalid_value(&unavailable.path, unavailable.value, "may not be 0 when `maxSurge` is 0");
    }
    at_most_100_percent(&unavailable, errs);
}

/// A count in the status that only grows.
pub fn not_decremented(new: &At<'_>, old: &At<'_>, errs: &mut Errors) {
    if new.int().unwrap_or(0) < old.int().unwrap_or(0) {
        errs.invalid(&new.path, new.int().unwrap_or(0), "cannot be decremented");
    }
}

pub fn is_zero(v: &Value) -> bool {
    v.as_i64() == Some(0) || percent(v) == Some(0)
}

pub fn at_most_100_percent(at: &At<'_>, errs: &mut Errors) {
    if percent(at.value).is_some_and(|n| n > 100) {
        errs.invalid_value(&at.path, at.value, "must not be greater than 100%");
    }
}

/// A non-negative number, or a percentage.
pub fn int_or_percent(at: &At<'_>, errs: &mut Errors) {
    if at.value.is_string() && percent(at.value).is_none() {
        let why = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex \
                   used for validation is '[0-9]+%')";
        errs.invalid_value(&at.path, at.value, why);
    }
    errs.non_negative(at);
}
