//! RuntimeClass (node.k8s.io/v1).

use std::collections::HashSet;

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text};
use crate::validation::{At, Errors, names, pod, selectors};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    columns: &[NAME, column("HANDLER", |o, _| text(o, "handler")), AGE],
    strategy: Strategy { validate, validate_update, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::node::v1::RuntimeClass>("runtimeclass")
};

fn validate(class: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let root = At::root(&class.0);
    let handler = root.get("handler");
    errs.invalid_each(&handler.path, handler.str(), names::dns1123_label(handler.str()));
    pod::resource_list(&root.get("overhead").get("podFixed"), &mut errs);
    let scheduling = root.get("scheduling");
    selectors::label_map(&scheduling.get("nodeSelector"), &mut errs);
    let mut seen: HashSet<&serde_json::Value> = HashSet::new();
    for toleration in scheduling.get("tolerations").items() {
        pod::toleration(&toleration, &mut errs);
        if seen.contains(&toleration.value) {
            errs.duplicate(&toleration.path, toleration.value.clone());
        }
        seen.insert(toleration.value);
    }
    errs.0
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    errs.immutable(&At::root(&new.0).get("handler"), &At::root(&old.0).get("handler"));
    errs.0
}
