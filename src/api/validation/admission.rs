//! The rules shared by webhooks and admission policies: matching of requests, and failure policies.

use std::collections::HashSet;

use super::{At, Errors, names, selectors};
use crate::policy::Expression;

const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

/// Which operations on which resources.
pub fn rule(rule: &At<'_>, errs: &mut Errors) {
    for (field, called) in [
        ("operations", "operations"),
        ("apiGroups", "apiGroups"),
        ("apiVersions", "apiVersions"),
        ("resources", "resources"),
    ] {
        let list = rule.get(field);
        if list.is_empty() {
            errs.required(&list.path, "");
        }
        let has_star = list.items().any(|it| it.str() == "*");
        if list.len() > 1 && has_star && field != "resources" {
            let why = format!("if '*' is present, must not specify other {called}");
            errs.invalid_value(&list.path, list.value, why);
        }
        if matches!(field, "apiVersions" | "resources") {
            for it in list.items().filter(|it| it.str().is_empty()) {
                errs.required(&it.path, "");
            }
        }
    }
    for operation in rule.get("operations").items().filter(|it| !OPERATIONS.contains(&it.str())) {
        errs.not_supported(&operation.path, operation.str(), OPERATIONS);
    }
    let scope = rule.get("scope");
    if scope.is_set() {
        errs.one_of(&scope, &["*", "Cluster", "Namespaced"]);
    }
    resources(&rule.get("resources"), errs);
}

/// `pods`, `pods/status`, `*/scale`, `*/*`
fn resources(list: &At<'_>, errs: &mut Errors) {
    let all: HashSet<&str> = list.items().map(|it| it.str()).collect();
    if list.len() > 1 && all.contains("*/*") {
        errs.invalid_value(&list.path, list.value, "if '*/*' is present, must not specify other resources");
    }
    for it in list.items() {
        let Some((resource, subresource)) = it.str().split_once('/') else { continue };
        let covered = |other: String| all.contains(other.as_str()) && other != it.str();
        if covered(format!("{resource}/*")) && subresource != "*" {
            errs.invalid(&it.path, it.str(), format!("if '{resource}/*' is present, must not specify {}", it.str()));
        }
        if covered(format!("*/{subresource}")) && resource != "*" {
            errs.invalid(&it.path, it.str(), format!("if '*/{subresource}' is present, must not specify {}", it.str()));
        }
    }
}

/// Common fields of webhooks and policies: failure policy, match policy, selectors.
pub fn policies(it: &At<'_>, errs: &mut Errors) {
    for (field, supported) in [("failurePolicy", &["Fail", "Ignore"][..]), ("matchPolicy", &["Equivalent", "Exact"])] {
        let at = it.get(field);
        if at.is_set() {
            errs.one_of(&at, supported);
        }
    }
    for field in ["namespaceSelector", "objectSelector"] {
        let at = it.get(field);
        if at.is_set() {
            selectors::label_selector(&at, errs);
        }
    }
}

const MAX_CONDITIONS: usize = 64;

pub fn match_conditions(conditions: &At<'_>, errs: &mut Errors) {
    if conditions.len() > MAX_CONDITIONS {
        errs.too_many(&conditions.path, conditions.len(), MAX_CONDITIONS);
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for condition in conditions.items() {
        let (name, expression) = (condition.get("name"), condition.get("expression"));
        match name.is_empty() {
            true => errs.required(&name.path, ""),
            false => errs.invalid_each(&name.path, name.str(), names::qualified_name(name.str())),
        }
        if seen.contains(&name.str()) {
            errs.duplicate(&name.path, name.str());
        }
        seen.insert(name.str());
        if expression.str().trim().is_empty() {
            errs.required(&expression.path, "");
        }
    }
}

/// An expression must compile.
pub fn expression(expression: &Expression, errs: &mut Errors) {
    if let Err(why) = &expression.program
        && !expression.text.trim().is_empty()
    {
        errs.invalid(&expression.field, expression.text.as_str(), format!("compilation failed: {why}"));
    }
}

/// `matchConstraints` of a policy, `matchResources` of a binding.
pub fn match_resources(it: &At<'_>, errs: &mut Errors) {
    policies(it, errs);
    for list in ["resourceRules", "excludeResourceRules"] {
        for at in it.get(list).items() {
            rule(&at, errs);
        }
    }
}
