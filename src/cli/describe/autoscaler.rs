//! The description of a HorizontalPodAutoscaler.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    related::Related,
    text::{annotations, head, labels, list, or, text, time},
};
use crate::page::Page;
use podwright_api::Object;

pub fn describe(page: &mut Page, it: &Object, _related: &Related, _now: Timestamp) {
    let (metadata, spec, status) = (&it.0["metadata"], &it.0["spec"], &it.0["status"]);
    let target = &spec["scaleTargetRef"];
    head(page, it);
    labels(page, 0, "Labels", &metadata["labels"]);
    annotations(page, 0, &metadata["annotations"]);
    page.line(0, format!("CreationTimestamp:\t{}", time(&metadata["creationTimestamp"])));
    page.line(0, format!("Reference:\t{}/{}", text(&target["kind"]), text(&target["name"])));
    page.line(0, "Metrics:\t( current / target )");
    let current = list(&status["currentMetrics"]);
    for (at, metric) in list(&spec["metrics"]).iter().enumerate() {
        page.line(1, self::metric(metric, current.get(at).unwrap_or(&Value::Null)));
    }
    page.line(0, format!("Min replicas:\t{}", or(&spec["minReplicas"], "<unset>")));
    page.line(0, format!("Max replicas:\t{}", or(&spec["maxReplicas"], "0")));
    if spec["behavior"].is_object() {
        page.line(0, "Behavior:");
        rules(page, "Scale Up", &spec["behavior"]["scaleUp"]);
        rules(page, "Scale Down", &spec["behavior"]["scaleDown"]);
    }
    let [now, wanted] = ["currentReplicas", "desiredReplicas"].map(|field| or(&status[field], "0"));
    page.line(0, format!("{} pods:\t{now} current / {wanted} desired", text(&target["kind"])));
    if !list(&status["conditions"]).is_empty() {
        page.line(0, "Conditions:");
        page.line(1, "Type\tStatus\tReason\tMessage");
        page.line(1, "----\t------\t------\t-------");
        for condition in list(&status["conditions"]) {
            let cells = ["type", "status", "reason", "message"].map(|field| text(&condition[field]));
            page.line(1, cells.join("\t"));
        }
    }
}

/// `resource cpu on pods  (as a percentage of request):  60% (6m) / 50%`
fn metric(metric: &Value, current: &Value) -> String {
    let (kind, known) = (text(&metric["type"]), |field: &str| (&metric[field], &current[field]["current"]));
    let of = |it: &Value| text(&it["metric"]["name"]);
    let amounts = |target: &Value, now: &Value, field: &str| {
        format!("\t{} / {}", or(&now[field], "<unknown>"), text(&target[field]))
    };
    // Object and external metrics are averaged over Pods, or total values.
    let shared = |target: &Value, now: &Value| match target["averageValue"].is_null() {
        true => format!("(target value):{}", amounts(target, now, "value")),
        false => format!("(target average value):{}", amounts(target, now, "averageValue")),
    };
    match kind.as_str() {
        "External" => {
            let (it, now) = known("external");
            format!("\"{}\" {}", of(it), shared(&it["target"], now))
        }
        "Pods" => {
            let (it, now) = known("pods");
            format!("\"{}\" on pods:{}", of(it), amounts(&it["target"], now, "averageValue"))
        }
        "Object" => {
            let (it, now) = known("object");
            let object = &it["describedObject"];
            let on = format!("{}/{}", text(&object["kind"]), text(&object["name"]));
            format!("\"{}\" on {on} {}", of(it), shared(&it["target"], now))
        }
        "Resource" => {
            let (it, now) = known("resource");
            format!("resource {} on pods{}", text(&it["name"]), resource(&it["target"], now))
        }
        "ContainerResource" => {
            let (it, now) = known("containerResource");
            let of = format!("resource {} of container \"{}\"", text(&it["name"]), text(&it["container"]));
            format!("{of} on pods{}", resource(&it["target"], now))
        }
        other => format!("<unknown metric type {other:?}>"),
    }
}

fn resource(target: &Value, now: &Value) -> String {
    if !target["averageValue"].is_null() {
        return format!(":\t{} / {}", or(&now["averageValue"], "<unknown>"), text(&target["averageValue"]));
    }
    let current = match &now["averageUtilization"] {
        Value::Null => "<unknown>".to_owned(),
        percent => format!("{percent}% ({})", text(&now["averageValue"])),
    };
    let wanted = match &target["averageUtilization"] {
        Value::Null => "<auto>".to_owned(),
        percent => format!("{percent}%"),
    };
    format!("  (as a percentage of request):\t{current} / {wanted}")
}

fn rules(page: &mut Page, direction: &str, rules: &Value) {
    if !rules.is_object() {
        return;
    }
    page.line(1, format!("{direction}:"));
    if let Value::Number(seconds) = &rules["stabilizationWindowSeconds"] {
        page.line(2, format!("Stabilization Window: {seconds} seconds"));
    }
    if !list(&rules["policies"]).is_empty() {
        page.line(2, format!("Select Policy: {}", or(&rules["selectPolicy"], "Max")));
        page.line(2, "Policies:");
        for policy in list(&rules["policies"]) {
            let [kind, value, period] = ["type", "value", "periodSeconds"].map(|field| text(&policy[field]));
            page.line(3, format!("- Type: {kind}\tValue: {value}\tPeriod: {period} seconds"));
        }
    }
}
