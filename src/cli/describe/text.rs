//! Common parts of descriptions: labels, annotations, times, names.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use crate::page::Page;
use podwright_api::Object;

/// Longer annotations have lines of their own, and are truncated to this.
pub const LONG: usize = 140;
const HIDDEN: &str = "kubectl.kubernetes.io/last-applied-configuration";

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A string unquoted, null as empty, others as JSON.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

pub fn or(value: &Value, other: &str) -> String {
    Some(text(value)).filter(|t| !t.is_empty()).unwrap_or_else(|| other.to_owned())
}

/// A list in Go's format: `[a b]`.
pub fn bracketed(value: &Value) -> String {
    format!("[{}]", list(value).iter().map(text).collect::<Vec<_>>().join(" "))
}

pub fn boolean(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// `Fri, 20 Nov 2026 17:51:00 +0000`
pub fn time(value: &Value) -> String {
    let parsed = value.as_str().and_then(|t| t.parse::<Timestamp>().ok());
    parsed.map_or_else(|| "<unset>".to_owned(), |t| t.strftime("%a, %d %b %Y %H:%M:%S +0000").to_string())
}

fn sorted(map: &Value) -> BTreeMap<&str, String> {
    map.as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), text(v))).collect()
}

/// `Labels:  a=b`, with further ones on the next lines.
pub fn labels(page: &mut Page, level: usize, title: &str, map: &Value) {
    lines(page, level, title, sorted(map).into_iter().map(|(k, v)| format!("{k}={v}")).collect());
}

/// A title and its lines, one below the other; `<none>` without any.
pub fn lines(page: &mut Page, level: usize, title: &str, lines: Vec<String>) {
    if lines.is_empty() {
        return page.line(level, format!("{title}:\t<none>"));
    }
    for (at, line) in lines.iter().enumerate() {
        let title = if at == 0 { format!("{title}:") } else { String::new() };
        page.line(level, format!("{title}\t{line}"));
    }
}

pub fn annotations(page: &mut Page, level: usize, map: &Value) {
    let mut all = Vec::new();
    for (key, value) in sorted(map).into_iter().filter(|(key, _)| *key != HIDDEN) {
        let value = value.trim_end_matches('\n');
        if value.len() + key.len() + 2 <= LONG && !value.contains('\n') {
            all.push(format!("{key}: {value}"));
            continue;
        }
        all.push(format!("{key}:"));
        all.extend(value.split('\n').map(|line| format!("  {}", shortened(line, LONG - 2))));
    }
    lines(page, level, "Annotations", all);
}

/// The beginning of a line that is too long.
pub fn shortened(line: &str, length: usize) -> String {
    if line.chars().count() <= length {
        line.to_owned()
    } else {
        line.chars().take(length).chain("...".chars()).collect()
    }
}

/// The metadata at the beginning of most descriptions.
pub fn head(page: &mut Page, object: &Object) {
    page.line(0, format!("Name:\t{}", object.name()));
    if let Some(namespace) = object.namespace() {
        page.line(0, format!("Namespace:\t{namespace}"));
    }
}

pub fn head_with_labels(page: &mut Page, object: &Object) {
    head(page, object);
    labels(page, 0, "Labels", &object.0["metadata"]["labels"]);
    annotations(page, 0, &object.0["metadata"]["annotations"]);
}

/// `Controlled By:  ReplicaSet/x`, if it has a controller.
pub fn controller(page: &mut Page, object: &Object) {
    if let Some(owner) = object.controller() {
        page.line(0, format!("Controlled By:\t{}/{}", owner.kind, owner.name));
    }
}
