//! What a check sees of a Pod, and how it words a violation.

use serde_json::Value;

/// A Pod, or the template of one.
#[derive(Clone, Copy)]
pub(crate) struct Pod<'a> {
    pub metadata: &'a Value,
    pub spec: &'a Value,
    /// Every node declares support for user namespaces, and one without it refuses the Pod.
    pub users_are_enforced: bool,
}

impl<'a> Pod<'a> {
    pub fn containers(self) -> impl Iterator<Item = &'a Value> {
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        lists.into_iter().flat_map(move |list| self.spec[list].as_array().into_iter().flatten())
    }
    pub fn annotations(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let all = self.metadata["annotations"].as_object().into_iter().flatten();
        all.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or("")))
    }
    pub fn is_windows(self) -> bool {
        self.spec["os"]["name"] == "windows"
    }
    /// Whether its root is never the host's root, wherever it runs.
    pub fn has_own_users(self) -> bool {
        self.spec["hostUsers"] == false && self.users_are_enforced
    }
}

/// What a check finds wrong with a Pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub reason: String,
    pub detail: String,
}

/// The subject of a violation: `container "a" ...`, `containers "a", "b" ...`.
pub(super) fn containers(names: &[&str]) -> String {
    format!("{} {}", plural(names.len(), "container"), quoted(names))
}

/// `"a", "b"`
pub(super) fn quoted<T: AsRef<str>>(items: &[T]) -> String {
    let each: Vec<String> = items.iter().map(|item| format!("\"{}\"", item.as_ref())).collect();
    each.join(", ")
}

/// `container`, `containers`
pub(super) fn plural(count: usize, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

pub(super) fn name(container: &Value) -> &str {
    container["name"].as_str().unwrap_or("")
}

/// Sorted, without duplicates.
pub(super) fn sorted<T: Ord>(mut items: Vec<T>) -> Vec<T> {
    items.sort();
    items.dedup();
    items
}

/// The Pod and its containers whose security context is bad: `pod`, `container "a"`, both joined by ` and `; empty if none is.
/// Called with each security context, the Pod's first.
pub(super) fn setters(pod: Pod<'_>, mut is_bad: impl FnMut(&Value) -> bool) -> String {
    let mut all = Vec::new();
    if is_bad(&pod.spec["securityContext"]) {
        all.push("pod".to_owned());
    }
    let bad: Vec<&str> = pod.containers().filter(|c| is_bad(&c["securityContext"])).map(name).collect();
    if !bad.is_empty() {
        all.push(containers(&bad));
    }
    all.join(" and ")
}

/// The names of the bad containers.
pub(super) fn bad<'a>(pod: Pod<'a>, mut is_bad: impl FnMut(&'a Value) -> bool) -> Vec<&'a str> {
    pod.containers().filter(|container| is_bad(container)).map(name).collect()
}

pub(super) fn violation(reason: impl Into<String>, detail: impl Into<String>) -> Option<Violation> {
    Some(Violation { reason: reason.into(), detail: detail.into() })
}
