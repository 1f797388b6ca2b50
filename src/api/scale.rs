//! The `scale` subresource: an `autoscaling/v1` Scale as a view of kinds with replicas.

use serde_json::{Value, json};

use super::kinds::Scale;
use super::selector::LabelSelector;
use super::validation::{At, Errors};
use super::{Object, Status};

/// The view of an object.
pub fn get(scale: &Scale<impl AsRef<str>>, object: &Object) -> Object {
    let number = |path: &str| object.at(path).and_then(Value::as_i64).unwrap_or(0);
    // A custom resource has its selector as text.
    let selector = match object.at(scale.selector.as_ref()) {
        Some(Value::String(text)) => text.clone(),
        other => other.map(selector).unwrap_or_default().to_string(),
    };
    let metadata = &object.0["metadata"];
    let mut view = json!({
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {},
        "spec": {"replicas": number(scale.spec_replicas.as_ref())},
        "status": {"replicas": number(scale.status_replicas.as_ref()), "selector": selector},
    });
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = metadata.get(field) {
            view["metadata"][field] = value.clone();
        }
    }
    Object(view)
}

/// A `LabelSelector`, or a plain map of labels.
fn selector(value: &Value) -> LabelSelector {
    let is_map = value.as_object().filter(|m| !m.is_empty() && m.values().all(Value::is_string));
    match is_map {
        Some(labels) => LabelSelector::from_map(labels),
        None => LabelSelector::from_json(value).unwrap_or_default(),
    }
}

/// Applies an updated view to its object; the view's resourceVersion and uid, if given, are copied as preconditions.
pub fn set(scale: &Scale<impl AsRef<str>>, object: &mut Object, view: &Value) -> Result<(), Status> {
    let replicas = match &view["spec"]["replicas"] {
        Value::Null => 0,
        value => match value.as_i64().and_then(|n| i32::try_from(n).ok()) {
            Some(n) => n,
            None => {
                let why = "Scale in version \"v1\" cannot be handled as a Scale: spec.replicas is not an int32";
                return Err(Status::bad_request(why));
            }
        },
    };
    let mut errs = Errors::default();
    errs.non_negative(&At::root(view).get("spec").get("replicas"));
    if !errs.0.is_empty() {
        return Err(Status::invalid("Scale", "autoscaling", object.name(), errs.0));
    }
    let mut at = &mut object.0;
    for step in scale.spec_replicas.as_ref().split('.') {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[step];
    }
    *at = replicas.into();
    for field in ["resourceVersion", "uid"] {
        if let Some(value) = view["metadata"][field].as_str().filter(|v| !v.is_empty()) {
            object.set_meta(field, Value::from(value));
        }
    }
    Ok(())
}
