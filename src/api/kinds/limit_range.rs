//! LimitRange.

use std::collections::HashSet;

use serde_json::Value;

use super::{Kind, Strategy};
use crate::columns::{NAME, column, text};
use crate::defaults::{each, made};
use crate::validation::{At, Errors, names};
use crate::{Cause, Object, Quantity};

pub const KIND: Kind = Kind {
    short_names: &["limits"],
    columns: &[NAME, column("CREATED AT", |o, _| text(o, "metadata.creationTimestamp"))],
    strategy: Strategy { default, validate, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::core::v1::LimitRange>("limitrange")
};

/// For containers: the default limit is the maximum; the default request is the default limit, or the minimum.
fn default(range: &mut Object) {
    let Some(map) = range.0.as_object_mut() else { return };
    for item in each(made(map, "spec"), "limits").filter(|item| item.get("type").is_some_and(|t| t == "Container")) {
        for (field, from) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")] {
            let Some(Value::Object(values)) = item.get(from).cloned() else { continue };
            let target = made(item, field);
            for (resource, value) in values {
                target.entry(resource).or_insert(value);
            }
        }
    }
}

fn validate(range: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let limits = At::root(&range.0).get("spec").get("limits");
    let mut seen: HashSet<&str> = HashSet::new();
    for limit in limits.items() {
        let kind = limit.get("type");
        if seen.contains(&kind.str()) {
            errs.duplicate(&kind.path, kind.str());
        }
        seen.insert(kind.str());
        match kind.str() {
            "Container" | "PersistentVolumeClaim" | "Pod" => {}
            other => errs.invalid_each(&kind.path, other, names::qualified_name(other)),
        }
        item(&limit, kind.str(), &mut errs);
    }
    errs.0
}

fn item(limit: &At<'_>, kind: &str, errs: &mut Errors) {
    if kind == "Pod" {
        for field in ["default", "defaultRequest"] {
            if !limit.get(field).is_empty() {
                errs.forbidden(limit.path(field), "may not be specified when `type` is 'Pod'");
            }
        }
    }
    if kind == "PersistentVolumeClaim" {
        let has = |field: &str| limit.get(field).get("storage").is_set();
        if !has("min") && !has("max") {
            errs.required(
                limit.path("limits"),
                "either minimum or maximum storage value is required, but neither was provided",
            );
        }
    }
    const FIELDS: &[&str] = &["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
    let (mut resources, mut seen) = (Vec::new(), HashSet::new());
    for field in FIELDS {
        for (name, at) in limit.get(field).entries() {
            errs.invalid_each(&at.path, name, names::qualified_name(name));
            if seen.insert(name) {
                resources.push(name);
            }
        }
    }
    for resource in resources {
        order(limit, resource, errs);
    }
}

/// Validates min <= defaultRequest <= default <= max, and a ratio of at least one that is compatible with min and max.
fn order(limit: &At<'_>, resource: &str, errs: &mut Errors) {
    let value = |field: &str| limit.get(field).get(resource).str().parse::<Quantity>().ok();
    let text = |field: &str| limit.get(field).get(resource).str().to_owned();
    const ORDER: &[(&str, &str, &str)] = &[
        ("min", "max", "min value"),
        ("min", "defaultRequest", "min value"),
        ("defaultRequest", "max", "default request value"),
        ("defaultRequest", "default", "default request value"),
        ("min", "default", "min value"),
        ("default", "max", "default value"),
    ];
    for (low, high, called) in ORDER {
        if let (Some(a), Some(b)) = (value(low), value(high))
            && a > b
        {
            // The invalid field is the one that is neither min nor max.
            let field = if *low == "min" && *high != "max" { high } else { low };
            let other = match *high {
                "max" => "max value",
                "default" => "default limit value",
                _ => "default request value",
            };
            let why = format!("{called} {} is greater than {other} {}", text(low), text(high));
            errs.invalid(limit.get(field).key_path(resource), text(field), why);
        }
    }
    if let (Some(ratio), Some(min), Some(max)) = (value("maxLimitRequestRatio"), value("min"), value("max"))
        && !min.is_zero()
        && ratio.approximately() > max.approximately() / min.approximately()
    {
        let path = limit.get("maxLimitRequestRatio").key_path(resource);
        let most = max.approximately() / min.approximately();
        let why = format!("ratio {} is greater than max/min = {most:.6}", text("maxLimitRequestRatio"));
        errs.invalid(path, text("maxLimitRequestRatio"), why);
    }
    // Devices cannot be overcommitted.
    let shared = resource.starts_with("hugepages-") || (resource.contains('/') && !resource.contains("kubernetes.io/"));
    if let (Some(default), Some(request)) = (value("default"), value("defaultRequest"))
        && shared
        && default != request
    {
        let path = limit.get("defaultRequest").key_path(resource);
        let (default, request) = (text("default"), text("defaultRequest"));
        let why = format!("default value {default} must equal to defaultRequest value {request} in {resource}");
        errs.invalid(path, request, why);
    }
    if let Some(ratio) = value("maxLimitRequestRatio")
        && ratio < Quantity::from_units(1, Default::default())
    {
        let path = limit.get("maxLimitRequestRatio").key_path(resource);
        let why = format!("ratio {} is less than 1", text("maxLimitRequestRatio"));
        errs.invalid(path, text("maxLimitRequestRatio"), why);
    }
}
