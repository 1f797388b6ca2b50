//! The `Events:` section of every page.

use jiff::Timestamp;
use serde_json::Value;

use super::text::{or, text};
use crate::page::Page;
use podwright_api::{Object, columns::age};

/// The source of an event.
fn source(event: &Object) -> String {
    or(&event.0["source"]["component"], &text(&event.0["reportingComponent"]))
}

fn last(event: &Object) -> &Value {
    let times = ["series.lastObservedTime", "lastTimestamp", "eventTime", "metadata.creationTimestamp"];
    times.iter().find_map(|path| event.at(path)).unwrap_or(&Value::Null)
}

/// When it was last seen.
pub fn when(event: &Object) -> Option<Timestamp> {
    text(last(event)).parse().ok()
}

/// `5m`, or `10s (x4 over 3m)` for a repeated one.
pub fn seen(event: &Object, now: Timestamp) -> String {
    let first = event.at("firstTimestamp").or(event.at("eventTime")).unwrap_or(last(event));
    let count = event.at("series.count").or(event.at("count")).and_then(Value::as_i64).unwrap_or(1);
    match count {
        0 | 1 => age(last(event), now),
        count => format!("{} (x{count} over {})", age(last(event), now), age(first, now)),
    }
}

pub fn section(page: &mut Page, events: &[Object], now: Timestamp) {
    if events.is_empty() {
        return page.line(0, "Events:\t<none>");
    }
    let mut events: Vec<&Object> = events.iter().collect();
    events.sort_by_key(|event| when(event));
    page.line(0, "Events:");
    page.line(1, "Type\tReason\tAge\tFrom\tMessage");
    page.line(1, "----\t------\t----\t----\t-------");
    for event in events {
        let [kind, reason, message] = ["type", "reason", "message"].map(|field| text(&event.0[field]));
        page.line(1, format!("{kind}\t{reason}\t{}\t{}\t{}", seen(event, now), source(event), message.trim()));
    }
}
