//! ValidatingAdmissionPolicy and its binding (admissionregistration.k8s.io/v1).

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{Kind, Strategy};
use crate::cel::Type;
use crate::columns::{AGE, NAME, column, text_or};
use crate::defaults::{each, fill, made, object};
use crate::policy::{Known, Policy};
use crate::validation::{At, Errors, admission as rules, names, path_segment, selectors};
use crate::{Cause, Object};

pub const POLICY: Kind = Kind {
    subresources: &["status"],
    columns: &[
        NAME,
        column("VALIDATIONS", |o, _| count(o, "spec.validations")),
        column("PARAMKIND", |o, _| {
            match (text_or(o, "spec.paramKind.apiVersion", ""), text_or(o, "spec.paramKind.kind", "")) {
                (version, _) if version.is_empty() => "<unset>".into(),
                (version, kind) => format!("{version}/{kind}"),
            }
        }),
        AGE,
    ],
    strategy: Strategy {
        default,
        prepare_create,
        validate,
        metadata_by_status: &[],
        has_generation: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy>("validatingadmissionpolicy")
};

pub const BINDING: Kind = Kind {
    columns: &[
        NAME,
        column("POLICYNAME", |o, _| text_or(o, "spec.policyName", "")),
        column("PARAMREF", |o, _| match (text_or(o, "spec.paramRef.namespace", ""), o.at("spec.paramRef")) {
            (_, None) => "<unset>".into(),
            (namespace, Some(_)) if namespace.is_empty() => text_or(o, "spec.paramRef.name", "<selector>"),
            (namespace, Some(_)) => format!("{namespace}/{}", text_or(o, "spec.paramRef.name", "<selector>")),
        }),
        AGE,
    ],
    strategy: Strategy {
        default: default_binding,
        validate: validate_binding,
        has_generation: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding>(
        "validatingadmissionpolicybinding",
    )
};

fn count(object: &Object, path: &str) -> String {
    object.at(path).and_then(Value::as_array).map_or(0, Vec::len).to_string()
}

fn default(policy: &mut Object) {
    let Some(map) = policy.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    fill(spec, "failurePolicy", "Fail");
    if let Some(constraints) = object(spec, "matchConstraints") {
        matches(constraints);
    }
}

fn default_binding(binding: &mut Object) {
    let Some(spec) = binding.0.as_object_mut().and_then(|map| object(map, "spec")) else { return };
    if let Some(resources) = object(spec, "matchResources") {
        matches(resources);
    }
}

fn matches(it: &mut Map<String, Value>) {
    fill(it, "matchPolicy", "Equivalent");
    fill(it, "namespaceSelector", json!({}));
    fill(it, "objectSelector", json!({}));
    for list in ["resourceRules", "excludeResourceRules"] {
        each(it, list).for_each(|rule| fill(rule, "scope", "*"));
    }
}

fn prepare_create(policy: &mut Object) {
    policy.0["status"] = json!({});
}

fn validate(policy: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&policy.0).get("spec");
    let failure = spec.get("failurePolicy");
    errs.one_of(&failure, &["Fail", "Ignore"]);
    let kind = spec.get("paramKind");
    if kind.is_set() {
        for field in ["apiVersion", "kind"] {
            if kind.get(field).is_empty() {
                errs.required(kind.path(field), "");
            }
        }
    }
    let constraints = spec.get("matchConstraints");
    if !constraints.is_set() {
        errs.required(&constraints.path, "");
    } else {
        rules::match_resources(&constraints, &mut errs);
        let list = constraints.get("resourceRules");
        if list.is_empty() {
            errs.required(&list.path, "");
        }
    }
    rules::match_conditions(&spec.get("matchConditions"), &mut errs);
    variables(&spec.get("variables"), &mut errs);
    let (validations, audits) = (spec.get("validations"), spec.get("auditAnnotations"));
    if validations.is_empty() && audits.is_empty() {
        let why = "validations or auditAnnotations must be specified";
        errs.required(&validations.path, why);
        errs.required(&audits.path, why);
    }
    for validation in validations.items() {
        check_validation(&validation, &mut errs);
    }
    compiled(&policy.0["spec"], &mut errs);
    for annotation in audits.items() {
        let (key, value) = (annotation.get("key"), annotation.get("valueExpression"));
        match key.is_empty() {
            true => errs.required(&key.path, ""),
            false => errs.invalid_each(&key.path, key.str(), names::qualified_name(key.str())),
        }
        if value.str().trim().is_empty() {
            errs.required(&value.path, "");
        }
    }
    errs.0
}

/// Every expression must compile; missing ones are reported elsewhere.
fn compiled(spec: &Value, errs: &mut Errors) {
    let params = (!spec["paramKind"].is_null()).then_some(Type::Dyn);
    for expression in Policy::compile(spec, &Known { object: Type::Dyn, params }).expressions() {
        rules::expression(expression, errs);
    }
}

fn variables(list: &At<'_>, errs: &mut Errors) {
    for variable in list.items() {
        let (name, expression) = (variable.get("name"), variable.get("expression"));
        let mut bytes = name.str().bytes();
        let starts = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        if name.is_empty() {
            errs.required(&name.path, "name is required");
        } else if !starts || !bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            errs.invalid(&name.path, name.str(), "name is not a valid CEL identifier");
        }
        if expression.str().trim().is_empty() {
            errs.required(&expression.path, "expression is required");
        }
    }
}

const REASONS: &[&str] = &["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];

fn check_validation(validation: &At<'_>, errs: &mut Errors) {
    let (expression, message, reason) =
        (validation.get("expression"), validation.get("message"), validation.get("reason"));
    if expression.str().trim().is_empty() {
        errs.required(&expression.path, "expression is not specified");
    }
    if message.is_set() && message.str().trim().is_empty() {
        errs.invalid(&message.path, message.str(), "message must be non-empty if specified");
    } else if message.str().contains('\n') {
        errs.invalid(&message.path, message.str(), "message must not contain line breaks");
    } else if expression.str().contains('\n') && message.is_empty() {
        errs.required(&message.path, "message must be specified if expression contains line breaks");
    }
    if reason.is_set() {
        errs.one_of(&reason, REASONS);
    }
}

fn validate_binding(binding: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&binding.0).get("spec");
    let (policy, param, actions) = (spec.get("policyName"), spec.get("paramRef"), spec.get("validationActions"));
    match policy.is_empty() {
        true => errs.required(&policy.path, ""),
        false => errs.invalid_each(&policy.path, policy.str(), path_segment(policy.str())),
    }
    if param.is_set() {
        param_ref(&param, &mut errs);
    }
    rules::match_resources(&spec.get("matchResources"), &mut errs);
    if actions.is_empty() {
        errs.required(&actions.path, "at least one validation action is required");
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for action in actions.items() {
        errs.one_of(&action, &["Audit", "Deny", "Warn"]);
        if seen.contains(&action.str()) {
            errs.duplicate(&action.path, action.str());
        }
        seen.insert(action.str());
    }
    if seen.contains(&"Deny") && seen.contains(&"Warn") {
        errs.invalid_value(&actions.path, actions.value, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)");
    }
    errs.0
}

fn param_ref(param: &At<'_>, errs: &mut Errors) {
    let (name, selector, action) = (param.get("name"), param.get("selector"), param.get("parameterNotFoundAction"));
    match (name.is_empty(), selector.is_set()) {
        (true, false) => errs.required(&param.path, "one of name or selector must be specified"),
        (false, true) => errs.forbidden(&name.path, "name and selector are mutually exclusive"),
        (true, true) => selectors::label_selector(&selector, errs),
        (false, false) => errs.invalid_each(&name.path, name.str(), path_segment(name.str())),
    }
    match action.str() {
        "" => errs.required(&action.path, ""),
        "Allow" | "Deny" => {}
        other => errs.not_supported(&action.path, other, &["Allow", "Deny"]),
    }
}
