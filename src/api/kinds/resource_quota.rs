//! ResourceQuota.

use serde_json::{Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column};
use crate::validation::{At, Errors, names, pod, selectors};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["quota"],
    subresources: &["status"],
    columns: &[
        NAME,
        column("REQUEST", |o, _| used(o, |resource| !resource.starts_with("limits."))),
        column("LIMIT", |o, _| used(o, |resource| resource.starts_with("limits."))),
        AGE,
    ],
    strategy: Strategy {
        prepare_create,
        validate,
        validate_update,
        validate_status,
        returns_deleted: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::core::v1::ResourceQuota>("resourcequota")
};

/// `pods: 1/10, requests.cpu: 100m/1`
fn used(quota: &Object, wanted: fn(&str) -> bool) -> String {
    let hard = quota.at("status.hard").and_then(Value::as_object).into_iter().flatten();
    let mut all: Vec<String> = hard
        .filter(|(resource, _)| wanted(resource))
        .map(|(resource, hard)| {
            let used = quota.0["status"]["used"][resource].as_str().unwrap_or("0");
            format!("{resource}: {used}/{}", hard.as_str().unwrap_or("0"))
        })
        .collect();
    all.sort();
    all.join(", ")
}

fn prepare_create(quota: &mut Object) {
    quota.0["status"] = json!({});
}

const SCOPES: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

/// Resources without a domain that a quota may use.
const STANDARD: &[&str] = &[
    "configmaps",
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

fn validate(quota: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&quota.0).get("spec");
    resources(&spec.get("hard"), &mut errs);
    scopes(&spec, &mut errs);
    errs.0
}

fn resources(list: &At<'_>, errs: &mut Errors) {
    for (name, at) in list.entries() {
        errs.invalid_each(&at.path, name, names::qualified_name(name));
        let known = name.contains('/') || STANDARD.contains(&name) || name.starts_with("requests.hugepages-");
        if !known && !name.starts_with("hugepages-") {
            errs.invalid(&at.path, name, "must be a standard resource for quota");
        }
    }
    pod::resource_list(list, errs);
}

fn scopes(spec: &At<'_>, errs: &mut Errors) {
    let list = spec.get("scopes");
    let named: Vec<&str> = list.items().map(|scope| scope.str()).collect();
    // Evaluated once each: there may be as many resources as scopes.
    let unfit: Vec<&str> = SCOPES.iter().copied().filter(|scope| !fits(scope, spec)).collect();
    for scope in &named {
        if !SCOPES.contains(scope) {
            errs.invalid(&list.path, *scope, "unsupported scope");
        } else if unfit.contains(scope) {
            errs.invalid_value(&list.path, list.value, "unsupported scope applied to resource");
        }
    }
    for (a, b) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if named.contains(&a) && named.contains(&b) {
            errs.invalid_value(&list.path, list.value, "conflicting scopes");
        }
    }
    let selector = spec.get("scopeSelector");
    let expressions = selector.get("matchExpressions");
    selectors::bounds(&selector, 0, &expressions, errs);
    for expression in expressions.items() {
        let (scope, operator, values) =
            (expression.get("scopeName"), expression.get("operator"), expression.get("values"));
        if !SCOPES.contains(&scope.str()) {
            errs.invalid(&scope.path, scope.str(), "unsupported scope");
        } else if unfit.contains(&scope.str()) {
            errs.invalid_value(&expression.path, selector.value, "unsupported scope applied to resource");
        }
        let has_values = matches!(scope.str(), "PriorityClass" | "VolumeAttributesClass");
        if SCOPES.contains(&scope.str()) && !has_values && operator.str() != "Exists" {
            let why = "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, \
                       ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or \
                       ResourceQuotaScopeCrossNamespacePodAffinity";
            errs.invalid(&operator.path, operator.str(), why);
        }
        match operator.str() {
            "In" | "NotIn" if values.is_empty() => {
                errs.required(
                    &values.path,
                    "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
                );
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errs.invalid_value(&values.path, values.value, why);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errs.invalid(&operator.path, other, "not a valid selector operator"),
        }
    }
}

/// Whether objects in the scope use all standard resources of a quota.
fn fits(scope: &str, spec: &At<'_>) -> bool {
    let compute = |resource: &str| {
        let bare = resource.strip_prefix("requests.").or(resource.strip_prefix("limits.")).unwrap_or(resource);
        matches!(bare, "cpu" | "memory" | "ephemeral-storage") || bare.starts_with("hugepages-")
    };
    let allowed = |resource: &str| match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ => resource == "pods" || compute(resource),
    };
    let hard = spec.get("hard");
    hard.entries().all(|(resource, _)| !STANDARD.contains(&resource) || allowed(resource))
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let scopes = |quota: &Object| -> Vec<String> {
        let list = quota.at("spec.scopes").and_then(Value::as_array).into_iter().flatten();
        let mut all: Vec<String> = list.filter_map(|s| s.as_str().map(str::to_owned)).collect();
        all.sort();
        all
    };
    if scopes(new) != scopes(old) {
        errs.invalid("spec.scopes", new.0["spec"]["scopes"].clone(), "field is immutable");
    }
    errs.0
}

fn validate_status(new: &Object, _old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let status = At::root(&new.0).get("status");
    for field in ["hard", "used"] {
        resources(&status.get(field), &mut errs);
    }
    errs.0
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;

    /// As many as fit into a request: evaluated for each pair, they would take minutes.
    #[test]
    fn many_scopes_over_many_resources_are_judged_at_once() {
        let hard: serde_json::Map<String, Value> =
            (0..20_000).map(|n| (format!("example.com/r{n}"), json!("1"))).collect();
        let expression = json!({"scopeName": "Terminating", "operator": "Exists"});
        let quota = Object(json!({"spec": {
            "hard": hard, "scopes": vec!["NotTerminating"; 20_000], "scopeSelector": {"matchExpressions": [expression]},
        }}));
        let begun = Instant::now();
        let causes = validate(&quota);
        assert!(begun.elapsed() < Duration::from_secs(10), "it took {:?}", begun.elapsed());
        assert_eq!(causes.len(), 0, "{:?}", causes.first());
    }
}
