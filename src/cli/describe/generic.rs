//! The description of any other kind: all its fields, with readable names.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    related::Related,
    text::{head_with_labels, text},
};
use crate::page::Page;
use podwright_api::Object;

/// Shown in the head already, or not useful to humans.
const SKIPPED: [&str; 5] =
    ["metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.managedFields"];

pub fn describe(page: &mut Page, object: &Object, _related: &Related, _now: Timestamp) {
    head_with_labels(page, object);
    fields(page, 0, &object.0, "");
}

fn fields(page: &mut Page, level: usize, value: &Value, path: &str) {
    let mut all: Vec<_> = value.as_object().into_iter().flatten().collect();
    all.sort_by_key(|(name, _)| name.as_str());
    for (name, value) in all {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        if SKIPPED.contains(&path.as_str()) {
            continue;
        }
        match value {
            Value::Object(_) => {
                page.line(level, format!("{}:", title(name)));
                fields(page, level + 1, value, &path);
            }
            Value::Array(items) => {
                page.line(level, format!("{}:", title(name)));
                for item in items {
                    match item {
                        Value::Object(_) => fields(page, level + 1, item, &path),
                        plain => page.line(level + 1, text(plain)),
                    }
                }
            }
            plain => page.line(level, format!("{}:\t{}", title(name), text(plain))),
        }
    }
}

/// `leaseDurationSeconds` becomes `Lease Duration Seconds`, `apiVersion` `API Version`.
fn title(name: &str) -> String {
    const SHOUTED: [&str; 6] = ["api", "uid", "ip", "url", "tls", "id"];
    if name.contains(['/', '.', '-']) {
        return name.to_owned();
    }
    let mut words: Vec<String> = Vec::new();
    let mut before = ' ';
    for letter in name.chars() {
        match words.last_mut() {
            Some(word) if !(letter.is_uppercase() && before.is_lowercase()) => word.push(letter),
            _ => words.push(letter.to_string()),
        }
        before = letter;
    }
    let titled = |word: &String| match SHOUTED.contains(&word.to_lowercase().as_str()) {
        true => word.to_uppercase(),
        false => word.chars().take(1).flat_map(char::to_uppercase).chain(word.chars().skip(1)).collect(),
    };
    words.iter().map(titled).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn field_names_become_titles() {
        let titles = ["leaseDurationSeconds", "apiVersion", "kind", "resourceVersion", "uid"].map(super::title);
        assert_eq!(titles, ["Lease Duration Seconds", "API Version", "Kind", "Resource Version", "UID"]);
    }
}
