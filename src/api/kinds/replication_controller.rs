//! ReplicationController.

use serde_json::Value;

use super::replica_set::{SCALE, columns, prepare_create, validate_status};
use super::{Kind, Strategy};
use crate::columns::{pairs, wide};
use crate::defaults::{self, fill, made};
use crate::validation::{At, Errors, selectors, workload};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["rc"],
    categories: &["all"],
    subresources: &["status", "scale"],
    selectable: &["status.replicas"],
    columns: &columns(wide("SELECTOR", |o, _| pairs(o.at("spec.selector")))),
    scale: Some(SCALE),
    strategy: Strategy { default, prepare_create, validate, validate_status, has_generation: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::core::v1::ReplicationController>("replicationcontroller")
};

/// The default labels and selector are its template's labels.
fn default(controller: &mut Object) {
    let Some(map) = controller.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    fill(spec, "replicas", 1);
    let empty = |value: Option<&Value>| value.and_then(Value::as_object).is_none_or(|m| m.is_empty());
    if spec.contains_key("template") {
        defaults::pod::template(spec);
    }
    let labels = spec.get("template").map(|t| t["metadata"]["labels"].clone()).filter(|l| !empty(Some(l)));
    let Some(labels) = labels else { return };
    if empty(spec.get("selector")) {
        spec.insert("selector".into(), labels.clone());
    }
    let meta = controller.metadata_mut();
    if empty(meta.get("labels")) {
        meta.insert("labels".into(), labels);
    }
}

fn validate(controller: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&controller.0).get("spec");
    for field in ["replicas", "minReadySeconds"] {
        errs.non_negative(&spec.get(field));
    }
    let (selector, template) = (spec.get("selector"), spec.get("template"));
    selectors::label_map(&selector, &mut errs);
    if selector.is_empty() {
        errs.required(&selector.path, "");
    }
    match template.is_set() {
        true => workload::runs_for_ever(&spec, "ReplicationController", &[], &mut errs),
        false => errs.required(&template.path, ""),
    }
    let labels = template.get("metadata").get("labels");
    if template.is_set() && selector.entries().any(|(key, wanted)| labels.value.get(key) != Some(wanted.value)) {
        errs.invalid_value(&labels.path, labels.value, "`selector` does not match template `labels`");
    }
    errs.0
}
