//! Event (core/v1).

use jiff::Timestamp;
use serde_json::Value;

use super::{Kind, Strategy};
use crate::api::columns::{Column, NAME, age, column, text, wide};
use crate::api::validation::{At, Errors, names};
use crate::api::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["ev"],
    selectable: &[
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ],
    columns: &[
        column("LAST SEEN", last_seen),
        column("TYPE", |o, _| text(o, "type")),
        column("REASON", |o, _| text(o, "reason")),
        column("OBJECT", |o, _| involved(o)),
        wide("SUBOBJECT", |o, _| text(o, "involvedObject.fieldPath")),
        wide("SOURCE", |o, _| source(o)),
        column("MESSAGE", |o, _| text(o, "message").trim().to_owned()),
        wide("FIRST SEEN", first_seen),
        wide("COUNT", |o, _| count(o).to_string()),
        Column { wide: true, ..NAME },
    ],
    strategy: Strategy { validate, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::core::v1::Event>("event")
};

fn last_seen(event: &Object, now: Timestamp) -> String {
    let first = first_seen(event, now);
    match event.at("series.lastObservedTime").or(event.at("lastTimestamp")) {
        Some(time) => age(time, now),
        None => first,
    }
}

fn first_seen(event: &Object, now: Timestamp) -> String {
    let micro = event.at("eventTime");
    age(event.at("firstTimestamp").or(micro).unwrap_or(&Value::Null), now)
}

fn involved(event: &Object) -> String {
    let (kind, name) = (text(event, "involvedObject.kind").to_lowercase(), text(event, "involvedObject.name"));
    if name.is_empty() { kind } else { format!("{kind}/{name}") }
}

fn source(event: &Object) -> String {
    let component = match text(event, "source.component").as_str() {
        "" => text(event, "reportingComponent"),
        it => it.to_owned(),
    };
    match text(event, "source.host").as_str() {
        "" => component,
        host => format!("{component}, {host}"),
    }
}

fn count(event: &Object) -> i64 {
    let counted = event.at("series.count").or(event.at("count")).and_then(Value::as_i64).unwrap_or(0);
    counted.max(1)
}

/// Old events need little; those with an `eventTime` follow the rules of events.k8s.io.
fn validate(event: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let root = At::root(&event.0);
    let namespace = root.get("involvedObject").get("namespace");
    let own = event.namespace().unwrap_or("");
    // Events about objects without a namespace live in `default`.
    let expected = if namespace.is_empty() { "default" } else { namespace.str() };
    let system = namespace.is_empty() && matches!(own, "kube-system");
    if own != expected && !system {
        errs.invalid(&namespace.path, namespace.str(), "does not match event.namespace");
    }
    if root.get("eventTime").is_set() {
        for field in ["reportingInstance", "action", "reason"] {
            if root.get(field).is_empty() {
                errs.required(field, "");
            }
        }
        let component = root.get("reportingComponent");
        if component.is_empty() {
            errs.required("reportingController", "");
        } else {
            errs.invalid_each("reportingController", component.str(), names::qualified_name(component.str()));
        }
        let kind = root.get("type");
        if !matches!(kind.str(), "Normal" | "Warning") {
            errs.invalid(&kind.path, kind.str(), "");
        }
    }
    errs.0
}
