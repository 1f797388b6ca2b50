//! FlowSchema (flowcontrol.apiserver.k8s.io/v1).

use serde_json::{Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text, text_or};
use crate::defaults::{fill, made};
use crate::validation::{At, Errors, names};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    subresources: &["status"],
    columns: &[
        NAME,
        column("PRIORITYLEVEL", |o, _| text_or(o, "spec.priorityLevelConfiguration.name", "<none>")),
        column("MATCHINGPRECEDENCE", |o, _| text(o, "spec.matchingPrecedence")),
        column("DISTINGUISHERMETHOD", |o, _| text_or(o, "spec.distinguisherMethod.type", "<none>")),
        AGE,
        column("MISSINGPL", |o, _| missing(o)),
    ],
    strategy: Strategy {
        default,
        prepare_create,
        validate,
        metadata_by_status: &[],
        has_generation: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::flowcontrol::v1::FlowSchema>("flowschema")
};

fn missing(schema: &Object) -> String {
    let conditions = schema.at("status.conditions").and_then(Value::as_array).into_iter().flatten();
    let dangling = conditions.filter(|c| c["type"] == "Dangling").filter_map(|c| c["status"].as_str()).next();
    dangling.unwrap_or("?").to_owned()
}

fn default(schema: &mut Object) {
    let Some(map) = schema.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    if spec.get("matchingPrecedence").and_then(Value::as_i64).unwrap_or(0) == 0 {
        spec.insert("matchingPrecedence".into(), 1000.into());
    }
    fill(spec, "priorityLevelConfiguration", json!({}));
}

fn prepare_create(schema: &mut Object) {
    schema.0["status"] = json!({});
}

fn validate(schema: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&schema.0).get("spec");
    let precedence = spec.get("matchingPrecedence");
    let n = precedence.int().unwrap_or(0);
    if n <= 0 {
        errs.invalid(&precedence.path, n, "must be a positive value");
    }
    if n > 10_000 {
        errs.invalid(&precedence.path, n, "must not be greater than 10000");
    }
    if n == 1 && schema.name() != "exempt" {
        errs.invalid(&precedence.path, n, "only the schema named 'exempt' may have matchingPrecedence 1");
    }
    let method = spec.get("distinguisherMethod");
    if method.is_set() {
        errs.one_of(&method.get("type"), &["ByNamespace", "ByUser"]);
    }
    let level = spec.get("priorityLevelConfiguration").get("name");
    match level.is_empty() {
        true => errs.required(&level.path, "must reference a priority level"),
        false => errs.invalid_each(&level.path, level.str(), names::dns1123_subdomain(level.str())),
    }
    for rule in spec.get("rules").items() {
        check_rule(&rule, &mut errs);
    }
    errs.0
}

fn check_rule(rule: &At<'_>, errs: &mut Errors) {
    let subjects = rule.get("subjects");
    if subjects.is_empty() {
        errs.required(&subjects.path, "subjects must contain at least one value");
    }
    for subject in subjects.items() {
        let kind = subject.get("kind");
        let field = match kind.str() {
            "User" => "user",
            "Group" => "group",
            "ServiceAccount" => "serviceAccount",
            other => {
                errs.not_supported(&kind.path, other, &["Group", "ServiceAccount", "User"]);
                continue;
            }
        };
        let it = subject.get(field);
        match it.is_set() {
            false => errs.required(&it.path, &format!("{field} is required when subject kind is '{}'", kind.str())),
            true if it.get("name").is_empty() => errs.required(it.path("name"), ""),
            true => {}
        }
    }
    let (resource, other) = (rule.get("resourceRules"), rule.get("nonResourceRules"));
    if resource.is_empty() && other.is_empty() {
        errs.required(&rule.path, "at least one of resourceRules and nonResourceRules has to be non-empty");
    }
    for at in resource.items() {
        for field in ["verbs", "apiGroups", "resources"] {
            if at.get(field).is_empty() {
                errs.required(at.path(field), "");
            }
        }
        if at.get("namespaces").is_empty() && !at.get("clusterScope").bool() {
            errs.required(
                at.path("namespaces"),
                "resource rules that are not cluster scoped must supply at least one namespace",
            );
        }
    }
    for at in other.items() {
        for field in ["verbs", "nonResourceURLs"] {
            if at.get(field).is_empty() {
                errs.required(at.path(field), "");
            }
        }
    }
}
