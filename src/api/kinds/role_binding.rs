//! RoleBinding and ClusterRoleBinding (rbac.authorization.k8s.io/v1).

use serde_json::Value;

use super::{Kind, Strategy};
use crate::columns::{AGE, Column, NAME, column, text, wide};
use crate::defaults::{each, fill, made};
use crate::validation::{At, Errors, NameRule, names, path_segment};
use crate::{Cause, Object};

const COLUMNS: &[Column] = &[
    NAME,
    column("ROLE", |o, _| format!("{}/{}", text(o, "roleRef.kind"), text(o, "roleRef.name"))),
    AGE,
    wide("USERS", |o, _| subjects(o, "User")),
    wide("GROUPS", |o, _| subjects(o, "Group")),
    wide("SERVICEACCOUNTS", |o, _| subjects(o, "ServiceAccount")),
];

pub const ROLE_BINDING: Kind = Kind {
    columns: COLUMNS,
    strategy: Strategy { default, validate, validate_update, name: NameRule::PathSegment, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::rbac::v1::RoleBinding>("rolebinding")
};

pub const CLUSTER_ROLE_BINDING: Kind = Kind {
    columns: COLUMNS,
    strategy: Strategy {
        default,
        validate: validate_cluster,
        validate_update,
        name: NameRule::PathSegment,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::rbac::v1::ClusterRoleBinding>("clusterrolebinding")
};

const RBAC: &str = "rbac.authorization.k8s.io";

fn subjects(binding: &Object, kind: &str) -> String {
    let list = binding.at("subjects").and_then(Value::as_array).into_iter().flatten();
    let name = |s: &Value| match (kind, s["namespace"].as_str()) {
        ("ServiceAccount", Some(namespace)) => format!("{namespace}/{}", s["name"].as_str().unwrap_or("")),
        _ => s["name"].as_str().unwrap_or("").to_owned(),
    };
    list.filter(|s| s["kind"] == kind).map(name).collect::<Vec<_>>().join(", ")
}

fn default(binding: &mut Object) {
    let Some(map) = binding.0.as_object_mut() else { return };
    fill(made(map, "roleRef"), "apiGroup", RBAC);
    for subject in each(map, "subjects") {
        if matches!(subject.get("kind").and_then(Value::as_str), Some("User" | "Group")) {
            fill(subject, "apiGroup", RBAC);
        }
    }
}

fn validate(binding: &Object) -> Vec<Cause> {
    check(binding, &["ClusterRole", "Role"], true)
}

fn validate_cluster(binding: &Object) -> Vec<Cause> {
    check(binding, &["ClusterRole"], false)
}

fn check(binding: &Object, kinds: &[&str], is_namespaced: bool) -> Vec<Cause> {
    let mut errs = Errors::default();
    let root = At::root(&binding.0);
    let role = root.get("roleRef");
    let (group, kind, name) = (role.get("apiGroup"), role.get("kind"), role.get("name"));
    if group.str() != RBAC {
        errs.not_supported(&group.path, group.str(), &[RBAC]);
    }
    if !kinds.contains(&kind.str()) {
        errs.not_supported(&kind.path, kind.str(), kinds);
    }
    match name.is_empty() {
        true => errs.required(&name.path, ""),
        false => errs.invalid_each(&name.path, name.str(), path_segment(name.str())),
    }
    for subject in root.get("subjects").items() {
        check_subject(&subject, is_namespaced, &mut errs);
    }
    errs.0
}

fn check_subject(subject: &At<'_>, is_namespaced: bool, errs: &mut Errors) {
    let (name, kind, group, namespace) =
        (subject.get("name"), subject.get("kind"), subject.get("apiGroup"), subject.get("namespace"));
    if name.is_empty() {
        errs.required(&name.path, "");
    }
    match kind.str() {
        "ServiceAccount" => {
            if !name.is_empty() {
                errs.invalid_each(&name.path, name.str(), names::dns1123_subdomain(name.str()));
            }
            if !group.is_empty() {
                errs.not_supported(&group.path, group.str(), &[""]);
            }
            if !is_namespaced && namespace.is_empty() {
                errs.required(&namespace.path, "");
            }
        }
        "User" | "Group" => {
            if group.str() != RBAC {
                errs.not_supported(&group.path, group.str(), &[RBAC]);
            }
        }
        other => errs.not_supported(&kind.path, other, &["Group", "ServiceAccount", "User"]),
    }
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let (new, old) = (At::root(&new.0).get("roleRef"), At::root(&old.0).get("roleRef"));
    if new.value != old.value {
        errs.invalid_value(&new.path, new.value, "cannot change roleRef");
    }
    errs.0
}
