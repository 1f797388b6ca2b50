//! IngressClass (networking.k8s.io/v1).

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text};
use crate::validation::{At, Errors, names, path_segment};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    columns: &[
        NAME,
        column("CONTROLLER", |o, _| text(o, "spec.controller")),
        column("PARAMETERS", |o, _| parameters(o)),
        AGE,
    ],
    strategy: Strategy { default, validate, validate_update, has_generation: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::networking::v1::IngressClass>("ingressclass")
};

fn parameters(class: &Object) -> String {
    if class.at("spec.parameters").is_none() {
        return "<none>".into();
    }
    let (kind, name) = (text(class, "spec.parameters.kind"), text(class, "spec.parameters.name"));
    match text(class, "spec.parameters.apiGroup").as_str() {
        "" => format!("{kind}/{name}"),
        group => format!("{kind}.{group}/{name}"),
    }
}

fn default(class: &mut Object) {
    use crate::defaults::{fill, object};
    let parameters = class.0.as_object_mut().and_then(|m| object(m, "spec")).and_then(|s| object(s, "parameters"));
    if let Some(parameters) = parameters {
        fill(parameters, "scope", "Cluster");
    }
}

fn validate(class: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&class.0).get("spec");
    let (controller, parameters) = (spec.get("controller"), spec.get("parameters"));
    match controller.is_empty() {
        true => errs.required(&controller.path, ""),
        false => errs.invalid_each(&controller.path, controller.str(), names::domain_prefixed_path(controller.str())),
    }
    if controller.len() > 250 {
        errs.too_long(&controller.path, 250);
    }
    if !parameters.is_set() {
        return errs.0;
    }
    for field in ["kind", "name"] {
        let at = parameters.get(field);
        match at.is_empty() {
            true => errs.required(&at.path, ""),
            false => errs.invalid_each(&at.path, at.str(), path_segment(at.str())),
        }
    }
    let (scope, namespace) = (parameters.get("scope"), parameters.get("namespace"));
    errs.one_of(&scope, &["Cluster", "Namespace"]);
    match scope.str() {
        "Namespace" if namespace.is_empty() => {
            errs.required(&namespace.path, "`parameters.scope` is set to 'Namespace'");
        }
        "Cluster" if namespace.is_set() => {
            errs.forbidden(&namespace.path, "`parameters.scope` is set to 'Cluster'");
        }
        _ => {}
    }
    errs.0
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let at = |o| At::root(o).get("spec").get("controller");
    errs.immutable(&at(&new.0), &at(&old.0));
    errs.0
}
