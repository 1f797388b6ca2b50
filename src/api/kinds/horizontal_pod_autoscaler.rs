//! HorizontalPodAutoscaler (autoscaling/v2), and its older form (autoscaling/v1).

use serde_json::{Map, Value, json};

use super::{Conversion, Kind, Storage, Strategy};
use crate::columns::{AGE, NAME, column, number, text};
use crate::defaults::{fill, made, object};
use crate::validation::{At, Errors, path_segment, selectors};
use crate::{Cause, FieldValidation, Object, Quantity};

pub const KIND: Kind = Kind {
    short_names: &["hpa"],
    categories: &["all"],
    subresources: &["status"],
    columns: &[
        NAME,
        column("REFERENCE", |o, _| {
            format!("{}/{}", text(o, "spec.scaleTargetRef.kind"), text(o, "spec.scaleTargetRef.name"))
        }),
        column("TARGETS", |o, _| targets(o)),
        column("MINPODS", |o, _| o.at("spec.minReplicas").map_or_else(|| "<unset>".into(), Value::to_string)),
        column("MAXPODS", |o, _| number(o, "spec.maxReplicas").to_string()),
        column("REPLICAS", |o, _| number(o, "status.currentReplicas").to_string()),
        AGE,
    ],
    strategy: Strategy { default, prepare_create, validate, validate_status, has_generation: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler>("horizontalpodautoscaler")
};

/// A single CPU target instead of metrics; what v1 cannot express is in annotations.
pub const V1: Kind = Kind {
    storage: Storage::As(Conversion {
        stored: || super::row("autoscaling/v2", "HorizontalPodAutoscaler"),
        to_stored: from_v1,
        from_stored: to_v1,
        field: |name| name,
    }),
    short_names: &["hpa"],
    subresources: &["status"],
    columns: KIND.columns,
    ..Kind::of::<k8s_openapi::api::autoscaling::v1::HorizontalPodAutoscaler>("horizontalpodautoscaler")
};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// The field in v2 for each annotation.
const PLACES: &[(&str, &str, &str)] = &[
    (METRICS, "spec", "metrics"),
    (BEHAVIOR, "spec", "behavior"),
    (CURRENT_METRICS, "status", "currentMetrics"),
    (CONDITIONS, "status", "conditions"),
];

fn is_cpu_percentage(metric: &Value) -> bool {
    metric["type"] == "Resource"
        && metric["resource"]["name"] == "cpu"
        && (metric["resource"]["target"]["type"] == "Utilization"
            || metric["resource"]["current"]["averageUtilization"].is_i64())
}

/// Decodes an annotation if it is valid in v2: users write it, and clients of v2 decode it.
fn typed(part: &str, field: &str, value: Value) -> Option<Value> {
    let object = json!({"apiVersion": KIND.api_version(), "kind": KIND.kind, "metadata": {}, part: {field: value}});
    let (mut object, _) = KIND.decode(object, FieldValidation::Ignore).ok()?;
    Some(object.0[part][field].take()).filter(|value| !value.is_null())
}

fn from_v1(it: &mut Object) {
    for (annotation, part, field) in PLACES {
        let text = it.annotation(annotation).map(str::to_owned);
        let Some(text) = text else { continue };
        if let Some(value) = serde_json::from_str(&text).ok().and_then(|value| typed(part, field, value)) {
            it.0[*part][*field] = value;
        }
        remove_annotation(it, annotation);
    }
    let Some(map) = it.0.as_object_mut() else { return };
    if let Some(percentage) = object(map, "spec").and_then(|spec| spec.shift_remove("targetCPUUtilizationPercentage")) {
        let metric = json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": percentage}}});
        prepend(made(map, "spec"), "metrics", metric);
    }
    let current = object(map, "status").and_then(|status| status.shift_remove("currentCPUUtilizationPercentage"));
    if let Some(percentage) = current {
        let metric = json!({"type": "Resource", "resource": {"name": "cpu",
            "current": {"averageUtilization": percentage, "averageValue": "0"}}});
        prepend(made(map, "status"), "currentMetrics", metric);
    }
}

fn prepend(map: &mut Map<String, Value>, field: &str, value: Value) {
    match map.entry(field).or_insert_with(|| json!([])) {
        Value::Array(list) => list.insert(0, value),
        other => *other = json!([value]),
    }
}

fn to_v1(it: &mut Object) {
    for (part, list, field, at) in [
        ("spec", "metrics", "targetCPUUtilizationPercentage", "/resource/target/averageUtilization"),
        ("status", "currentMetrics", "currentCPUUtilizationPercentage", "/resource/current/averageUtilization"),
    ] {
        let Some(map) = it.0.get_mut(part).and_then(Value::as_object_mut) else { continue };
        let Some(Value::Array(metrics)) = map.get_mut(list) else { continue };
        let Some(place) = metrics.iter().position(is_cpu_percentage) else { continue };
        let metric = metrics.remove(place);
        if metrics.is_empty() {
            map.shift_remove(list);
        }
        if let Some(percentage) = metric.pointer(at) {
            map.insert(field.into(), percentage.clone());
        }
    }
    for (annotation, part, field) in PLACES {
        let moved = it.0.get_mut(*part).and_then(Value::as_object_mut).and_then(|map| map.shift_remove(*field));
        if let Some(value) = moved {
            made(it.metadata_mut(), "annotations").insert((*annotation).into(), value.to_string().into());
        }
    }
}

fn remove_annotation(it: &mut Object, name: &str) {
    let meta = it.metadata_mut();
    if let Some(annotations) = object(meta, "annotations") {
        annotations.shift_remove(name);
        if annotations.is_empty() {
            meta.shift_remove("annotations");
        }
    }
}

fn default(it: &mut Object) {
    let Some(map) = it.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    fill(spec, "minReplicas", 1);
    if spec.get("metrics").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        let cpu = json!([{"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 80}}}]);
        spec.insert("metrics".into(), cpu);
    }
    let Some(behavior) = object(spec, "behavior") else { return };
    for (direction, policies) in [
        (
            "scaleUp",
            json!([{"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]),
        ),
        ("scaleDown", json!([{"type": "Percent", "value": 100, "periodSeconds": 15}])),
    ] {
        let rules = made(behavior, direction);
        fill(rules, "selectPolicy", "Max");
        if direction == "scaleUp" {
            fill(rules, "stabilizationWindowSeconds", 0);
        }
        if rules.get("policies").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            rules.insert("policies".into(), policies);
        }
    }
}

fn prepare_create(it: &mut Object) {
    it.0["status"] = json!({"desiredReplicas": 0});
}

fn validate(it: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&it.0).get("spec");
    let (least, most) = (spec.get("minReplicas"), spec.get("maxReplicas"));
    // 0 (HPAScaleToZero) is alpha upstream.
    if let Some(n) = least.int().filter(|n| *n < 1) {
        errs.invalid(&least.path, n, "must be greater than or equal to 1");
    }
    let max = most.int().unwrap_or(0);
    if max < 1 {
        errs.invalid(&most.path, max, "must be greater than 0");
    }
    if least.int().is_some_and(|n| max < n) {
        errs.invalid(&most.path, max, "must be greater than or equal to `minReplicas`");
    }
    reference(&spec.get("scaleTargetRef"), &mut errs);
    for metric in spec.get("metrics").items() {
        metric_spec(&metric, &mut errs);
    }
    for direction in ["scaleUp", "scaleDown"] {
        rules(&spec.get("behavior").get(direction), &mut errs);
    }
    errs.0
}

fn reference(target: &At<'_>, errs: &mut Errors) {
    for field in ["kind", "name"] {
        let at = target.get(field);
        match at.is_empty() {
            true => errs.required(&at.path, ""),
            false => errs.invalid_each(&at.path, at.str(), path_segment(at.str())),
        }
    }
}

const TYPES: &[(&str, &str)] = &[
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];

fn metric_spec(metric: &At<'_>, errs: &mut Errors) {
    let kind = metric.get("type");
    let names: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
    let Some((_, field)) = TYPES.iter().find(|(name, _)| *name == kind.str()) else {
        match kind.is_empty() {
            true => errs.required(&kind.path, "must specify a metric source type"),
            false => errs.not_supported(&kind.path, kind.str(), &names),
        }
        return;
    };
    let source = metric.get(field);
    if !source.is_set() {
        errs.required(&source.path, "must populate information for the given metric source");
        return;
    }
    for (_, other) in TYPES.iter().filter(|(_, other)| other != field && metric.get(other).is_set()) {
        errs.forbidden(metric.path(other), "must populate the given metric source only");
    }
    match *field {
        "resource" | "containerResource" => {
            for name in if *field == "resource" { &["name"][..] } else { &["name", "container"] } {
                if source.get(name).is_empty() {
                    errs.required(source.path(name), "must specify a resource name");
                }
            }
        }
        _ => {
            let it = source.get("metric");
            if it.get("name").is_empty() {
                errs.required(it.path("name"), "must specify a metric name");
            } else {
                errs.invalid_each(&it.path("name"), it.get("name").str(), path_segment(it.get("name").str()));
            }
            let selector = it.get("selector");
            if selector.is_set() {
                selectors::label_selector(&selector, errs);
            }
        }
    }
    if *field == "object" {
        reference(&source.get("describedObject"), errs);
    }
    target(&source.get("target"), field, errs);
}

fn target(target: &At<'_>, source: &str, errs: &mut Errors) {
    errs.one_of(&target.get("type"), &["AverageValue", "Utilization", "Value"]);
    for field in ["value", "averageValue"] {
        let at = target.get(field);
        if at.is_set() && Quantity::from_json(at.value).is_none_or(|q| q <= Quantity::default()) {
            errs.invalid_value(&at.path, at.value, "must be positive");
        }
    }
    let utilization = target.get("averageUtilization");
    if let Some(n) = utilization.int().filter(|n| *n < 1) {
        errs.invalid(&utilization.path, n, "must be greater than 0");
    }
    let has = |field: &str| target.get(field).is_set();
    match source {
        "resource" | "containerResource" if !has("averageUtilization") && !has("averageValue") => {
            errs.required(&utilization.path, "must set either a target raw value or a target utilization");
        }
        "resource" | "containerResource" if has("averageUtilization") && has("averageValue") => {
            errs.forbidden(target.path("averageValue"), "may not set both a target raw value and a target utilization");
        }
        "pods" if !has("averageValue") => {
            errs.required(target.path("averageValue"), "must specify a positive target averageValue");
        }
        "object" | "external" if !has("value") && !has("averageValue") => {
            errs.required(target.path("averageValue"), "must set either a target value for metric or a per-pod target");
        }
        _ => {}
    }
}

const MAX_WINDOW: i64 = 3600;
const MAX_PERIOD: i64 = 1800;

fn rules(rules: &At<'_>, errs: &mut Errors) {
    if !rules.is_set() {
        return;
    }
    let window = rules.get("stabilizationWindowSeconds");
    errs.non_negative(&window);
    if let Some(n) = window.int().filter(|n| *n > MAX_WINDOW) {
        errs.invalid(&window.path, n, format!("must be less than or equal to {MAX_WINDOW}"));
    }
    let tolerance = rules.get("tolerance");
    if tolerance.is_set() && Quantity::from_json(tolerance.value).is_none_or(|q| q.is_negative()) {
        errs.invalid_value(&tolerance.path, tolerance.value, "must be greater or equal to zero");
    }
    let select = rules.get("selectPolicy");
    if select.is_set() {
        errs.one_of(&select, &["Disabled", "Max", "Min"]);
    }
    let policies = rules.get("policies");
    if policies.is_empty() {
        errs.required(&policies.path, "must specify at least one Policy");
    }
    for policy in policies.items() {
        errs.one_of(&policy.get("type"), &["Percent", "Pods"]);
        for field in ["value", "periodSeconds"] {
            let at = policy.get(field);
            if let Some(n) = at.int().filter(|n| *n <= 0) {
                errs.invalid(&at.path, n, "must be greater than zero");
            }
        }
        let period = policy.get("periodSeconds");
        if let Some(n) = period.int().filter(|n| *n > MAX_PERIOD) {
            errs.invalid(&period.path, n, format!("must be less than or equal to {MAX_PERIOD}"));
        }
    }
}

fn validate_status(new: &Object, _old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let status = At::root(&new.0).get("status");
    for field in ["currentReplicas", "desiredReplicas"] {
        errs.non_negative(&status.get(field));
    }
    errs.0
}

/// `cpu: 12%/80%, memory: <unknown>/1Gi`
fn targets(it: &Object) -> String {
    let list = |path: &str| it.at(path).and_then(Value::as_array).cloned().unwrap_or_default();
    let (specs, currents) = (list("spec.metrics"), list("status.currentMetrics"));
    if specs.is_empty() {
        return "<none>".into();
    }
    const SHOWN: usize = 2;
    let all: Vec<String> = specs.iter().enumerate().map(|(i, spec)| shown(spec, currents.get(i))).collect();
    let more = all.len().saturating_sub(SHOWN);
    let text = all[..all.len().min(SHOWN)].join(", ");
    if more == 0 { text } else { format!("{text} + {more} more...") }
}

fn shown(spec: &Value, current: Option<&Value>) -> String {
    let Some((_, field)) = TYPES.iter().find(|(name, _)| spec["type"] == *name) else { return "<unknown type>".into() };
    let (target, now) = (&spec[*field]["target"], current.map(|c| &c[*field]["current"]));
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let pick = |name: &str, unit: &str| {
        let wanted = &target[name];
        (!wanted.is_null()).then(|| {
            let now = now.map(|n| &n[name]).filter(|n| !n.is_null());
            let now = now.map_or_else(|| "<unknown>".into(), |n| format!("{}{unit}", text(n)));
            format!("{now}/{}{unit}", text(wanted))
        })
    };
    let amount = pick("averageUtilization", "%").or_else(|| match *field {
        "object" | "external" => pick("averageValue", "").map(|t| format!("{t} (avg)")).or_else(|| pick("value", "")),
        _ => pick("averageValue", ""),
    });
    let amount = amount.unwrap_or_else(|| "<unknown>/<auto>".into());
    match *field {
        "resource" | "containerResource" => format!("{}: {amount}", spec[*field]["name"].as_str().unwrap_or("")),
        _ => amount,
    }
}
