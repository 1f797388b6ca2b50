//! Finds the field at which decoding failed: the error has the position in the text, and the text shows what is there.
//!
//! A decoder that tracks the path itself would duplicate the code that decodes each type.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// The path of the innermost value in which `why` was found: `spec.containers[0].image`; `.` for the text as a whole.
pub fn field(text: &[u8], why: &serde_json::Error) -> String {
    let lines = text.split_inclusive(|byte| *byte == b'\n').take(why.line().saturating_sub(1));
    let at = lines.map(<[u8]>::len).sum::<usize>() + why.column();
    let start = |part: &[u8]| part.as_ptr() as usize - text.as_ptr() as usize;
    // Errors in lists and objects are at their beginning, others at the value's end.
    let holds = |part: &[u8]| (start(part)..=start(part) + part.len()).contains(&at);
    let (mut path, mut inner) = (String::new(), text);
    while let Some((step, part)) = parts(inner).find(|(_, part)| holds(part)) {
        path.push_str(&step);
        inner = part;
    }
    match path.strip_prefix('.') {
        Some(path) => path.to_owned(),
        None if path.is_empty() => ".".to_owned(),
        None => path,
    }
}

/// The fields of an object, or the items of a list, each with its path step.
fn parts(text: &[u8]) -> impl Iterator<Item = (String, &[u8])> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(text).unwrap_or_default();
    let items: Vec<&RawValue> = serde_json::from_slice(text).unwrap_or_default();
    let fields = fields.into_iter().map(|(name, part)| (format!(".{name}"), part));
    let items = items.into_iter().enumerate().map(|(i, part)| (format!("[{i}]"), part));
    fields.chain(items).map(|(step, part)| (step, part.get().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;

    fn blamed(text: &str) -> String {
        field(text.as_bytes(), &serde_json::from_slice::<Pod>(text.as_bytes()).unwrap_err())
    }

    #[test]
    fn the_innermost_field_is_named() {
        let pod = |fields: &str| format!(r#"{{"apiVersion": "v1", "kind": "Pod", {fields}, "x": {{"y": [1]}}}}"#);
        assert_eq!(blamed(&pod(r#""spec": {"priority": "high", "nodeName": "a"}"#)), "spec.priority");
        assert_eq!(blamed(&pod(r#""spec": {"nodeName": 7}"#)), "spec.nodeName");
        assert_eq!(blamed(&pod(r#""spec": {"nodeName": {"a": {"b": 1}}}"#)), "spec.nodeName");
        assert_eq!(blamed(&pod(r#""metadata": {"labels": {"a": "1", "b.c/d": 2}}"#)), "metadata.labels.b.c/d");
        let ports = r#"[{"ports": []}, {"ports": [{"containerPort": 1}, {"containerPort": 80.5}]}]"#;
        let many_lines = pod(&format!(r#""spec": {{"containers": {ports}}}"#)).replace(", ", ",\n  ");
        assert_eq!(blamed(&many_lines), "spec.containers[1].ports[1].containerPort");
        assert_eq!(blamed(&pod(r#""metadata": {"creationTimestamp": "never"}"#)), "metadata.creationTimestamp");
        assert_eq!(blamed("[]"), ".");
        assert_eq!(blamed(r#"{"apiVersion": "v1", "#), ".");
    }
}
