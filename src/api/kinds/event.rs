//! Event (core/v1).

use jiff::Timestamp;
use serde_json::Value;

use super::{Conversion, Kind, Storage, Strategy};
use crate::columns::{Column, age, column, text, wide};
use crate::validation::{At, Errors, names};
use crate::{Cause, Object};

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
        wide("NAME", |o, _| o.name().to_owned()),
    ],
    strategy: Strategy { validate, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::core::v1::Event>("event")
};

/// The same events under the names of events.k8s.io.
pub const V1: Kind = Kind {
    storage: Storage::As(Conversion {
        stored: || super::row("v1", "Event"),
        to_stored: |event| rename(event, |(new, old)| (new, old)),
        from_stored: |event| rename(event, |(new, old)| (old, new)),
        field: |name| FIELDS.iter().find(|(new, _)| *new == name).map_or(name, |(_, old)| old),
    }),
    short_names: &["ev"],
    selectable: &[
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "regarding.apiVersion",
        "regarding.resourceVersion",
        "regarding.fieldPath",
        "reason",
        "reportingController",
        "type",
    ],
    columns: V1_COLUMNS,
    ..Kind::of::<k8s_openapi::api::events::v1::Event>("event")
};

/// A table has the requested version.
const V1_COLUMNS: &[Column] = &[
    column("LAST SEEN", |o, now| last_seen(&core(o), now)),
    column("TYPE", |o, _| text(o, "type")),
    column("REASON", |o, _| text(o, "reason")),
    column("OBJECT", |o, _| involved(&core(o))),
    wide("SUBOBJECT", |o, _| text(o, "regarding.fieldPath")),
    wide("SOURCE", |o, _| source(&core(o))),
    column("MESSAGE", |o, _| text(o, "note").trim().to_owned()),
    wide("FIRST SEEN", |o, now| first_seen(&core(o), now)),
    wide("COUNT", |o, _| count(&core(o)).to_string()),
    wide("NAME", |o, _| o.name().to_owned()),
];

/// Fields by their new and their old names.
const RENAMED: &[(&str, &str)] = &[
    ("note", "message"),
    ("regarding", "involvedObject"),
    ("reportingController", "reportingComponent"),
    ("deprecatedCount", "count"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedSource", "source"),
];

/// Selectable fields by their new and their old names.
const FIELDS: &[(&str, &str)] = &[
    ("regarding.kind", "involvedObject.kind"),
    ("regarding.namespace", "involvedObject.namespace"),
    ("regarding.name", "involvedObject.name"),
    ("regarding.uid", "involvedObject.uid"),
    ("regarding.apiVersion", "involvedObject.apiVersion"),
    ("regarding.resourceVersion", "involvedObject.resourceVersion"),
    ("regarding.fieldPath", "involvedObject.fieldPath"),
    ("reportingController", "reportingComponent"),
];

type Names = (&'static str, &'static str);

/// Renames the fields that differ; `way` selects the direction.
fn rename(event: &mut Object, way: fn(Names) -> Names) {
    let Some(map) = event.0.as_object_mut() else { return };
    for (from, to) in RENAMED.iter().map(|names| way(*names)) {
        if let Some(value) = map.shift_remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
}

fn core(event: &Object) -> Object {
    let mut event = event.clone();
    rename(&mut event, |(new, old)| (new, old));
    event
}

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

/// Upstream's `NoteLengthLimit`.
const LONGEST_NOTE: usize = 1024;

/// Old events have few rules; those with an `eventTime` follow those of events.k8s.io.
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
        if root.get("message").str().len() > LONGEST_NOTE {
            errs.invalid("message", "", format!("can have at most {LONGEST_NOTE} bytes"));
        }
    }
    errs.0
}
