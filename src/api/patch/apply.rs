//! Apply: a three-way merge of the last applied, the new and the live object, like `kubectl apply`.
//!
//! Fields of the new manifest are set. Fields of the last one that the new one lacks are removed. All others (set by controllers,
//! defaults, users) stay. Lists with keys are merged item by item, by upstream's keys.

use serde_json::{Map, Value};

use super::order::{Keys, weave};
use crate::schema::{Field, List, Struct, Type};
use crate::{Kind, Object, Status};

/// The annotation with the last applied manifest.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The object that results from applying the manifest `new` to `live`, with the annotation. Compare the result, after defaulting,
/// with `live` to distinguish `configured` from `unchanged`.
pub fn merge(kind: &Kind, new: &Value, live: Option<&Object>) -> Result<Object, Status> {
    match live {
        Some(live) => merge_into(Some(&kind.schema()), new, live),
        None => Ok(Object(annotated(new)?)),
    }
}

/// kubectl's warning about a live object that was not created by apply: fields removed since then are unknown.
pub fn unapplied(plural: &str, live: &Object) -> Option<String> {
    live.annotation(LAST_APPLIED).is_none().then(|| {
        format!(
            "resource {plural}/{} is missing the {LAST_APPLIED} annotation which is required by podwright apply. podwright apply \
             should only be used on resources created declaratively by either podwright create --save-config or podwright \
             apply. The missing annotation will be patched automatically.",
            live.name()
        )
    })
}

/// The same for an object without a schema: lists are replaced as a whole.
pub fn merge_untyped(new: &Value, live: &Object) -> Result<Object, Status> {
    merge_into(None, new, live)
}

fn merge_into(schema: Option<&Struct>, new: &Value, live: &Object) -> Result<Object, Status> {
    let new = annotated(new)?;
    // A corrupted annotation counts as none, so nothing is removed by mistake.
    let last = live.annotation(LAST_APPLIED).and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
    let mut merged = merge_struct(schema, &last, &new, &live.0, false);
    // Manifests do not set these, even if they contain them.
    for field in ["resourceVersion", "uid", "creationTimestamp", "generation"] {
        if let Some(value) = live.0["metadata"].get(field) {
            merged["metadata"][field] = value.clone();
        }
    }
    if let (Some(status), Some(map)) = (live.0.get("status"), merged.as_object_mut()) {
        map.insert("status".into(), status.clone());
    }
    if let Some(wanted) = new["metadata"]["resourceVersion"].as_str().filter(|v| !v.is_empty()) {
        merged["metadata"]["resourceVersion"] = wanted.into();
    }
    Ok(Object(merged))
}

/// The manifest with itself as an annotation.
pub fn annotated(manifest: &Value) -> Result<Value, Status> {
    let mut bare = Object(manifest.clone());
    if !bare.0.is_object() {
        return Err(Status::bad_request("the object is not a JSON object"));
    }
    if let Some(Value::Object(annotations)) = bare.metadata_mut().get_mut("annotations") {
        annotations.shift_remove(LAST_APPLIED);
    }
    // kubectl encodes with sorted keys, an (empty) annotations map and a final newline.
    let mut shown = bare.0.clone();
    if !shown["metadata"]["annotations"].is_object() {
        shown["metadata"]["annotations"] = Value::Object(Map::new());
    }
    let text = format!("{}\n", sorted(&shown));
    let annotations = crate::defaults::made(bare.metadata_mut(), "annotations");
    annotations.insert(LAST_APPLIED.into(), text.into());
    Ok(bare.0)
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.as_str());
            Value::Object(entries.into_iter().map(|(k, v)| (k.clone(), sorted(v))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        plain => plain.clone(),
    }
}

/// `schema` is `None` inside maps and untyped values. `retain_keys`: fields that `new` lacks are removed.
fn merge_struct(schema: Option<&Struct>, last: &Value, new: &Value, live: &Value, retain_keys: bool) -> Value {
    let (Some(new), Some(live)) = (new.as_object(), live.as_object()) else { return pruned(new) };
    let mut out = Map::with_capacity(live.len());
    // Only unchanged values are copied: otherwise deep nesting would be copied once per level.
    for (key, before) in live {
        let merged = match new.get(key) {
            None if !retain_keys && last.get(key).is_none() => before.clone(),
            None | Some(Value::Null) => continue,
            Some(value) if before.is_null() => pruned(value),
            Some(value) => merge_field(schema.and_then(|s| s.field(key)), &last[key], value, before),
        };
        out.insert(key.clone(), merged);
    }
    for (key, value) in new.iter().filter(|(key, value)| !value.is_null() && !live.contains_key(*key)) {
        out.insert(key.clone(), pruned(value));
    }
    Value::Object(out)
}

fn merge_field(field: Option<&Field>, last: &Value, new: &Value, live: &Value) -> Value {
    let retain_keys = field.is_some_and(|f| f.retain_keys);
    merge_value(field.map(|f| &f.of), last, new, live, retain_keys)
}

fn merge_value(of: Option<&Type>, last: &Value, new: &Value, live: &Value, retain_keys: bool) -> Value {
    match (of, new, live) {
        (Some(Type::Struct(schema)), Value::Object(_), Value::Object(_)) => {
            merge_struct(Some(schema), last, new, live, retain_keys)
        }
        (_, Value::Object(_), Value::Object(_)) => merge_struct(None, last, new, live, false),
        (Some(Type::List(list)), Value::Array(new), Value::Array(live)) if list.kind.merge_key.is_some() => {
            merge_list(list, last, new, live, retain_keys)
        }
        (_, new, _) => pruned(new),
    }
}

fn merge_list(list: &List, last: &Value, new: &[Value], live: &[Value], retain_keys: bool) -> Value {
    // The keys of server-side apply, not the single merge key: two ports may have the same number with different protocols.
    let keys = Keys(list.kind.keys(), Some(list));
    let last = last.as_array().map(Vec::as_slice).unwrap_or_default();
    let (of_last, of_new, of_live) = (keys.index(last), keys.index(new), keys.index(live));
    // Of items with the same key (upstream allows these for environments) the first is merged, the others are used as written: a
    // live item is copied at most once, however often it is named. Validation refuses duplicates where they are not allowed.
    let merged = new.iter().enumerate().map(|(place, value)| match of_live.find(value) {
        Some(at) if of_new.find(value) == Some(place) => {
            let applied = of_last.find(value).map_or(&Value::Null, |i| &last[i]);
            merge_value(Some(&list.item), applied, value, &live[at], retain_keys)
        }
        _ => pruned(value),
    });
    let kept = live.iter().filter(|v| !of_new.has(v) && !of_last.has(v)).cloned();
    Value::Array(weave(merged.collect(), kept.collect(), &of_live))
}

/// A new value: nulls in it have no effect.
fn pruned(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, v)| !v.is_null());
            Value::Object(kept.map(|(k, v)| (k.clone(), pruned(v))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(pruned).collect()),
        plain => plain.clone(),
    }
}
