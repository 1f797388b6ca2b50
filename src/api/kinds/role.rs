//! Role and ClusterRole (rbac.authorization.k8s.io/v1).

use super::{Kind, Strategy};
use crate::columns::{NAME, column, text};
use crate::validation::{At, Errors, NameRule, selectors};
use crate::{Cause, Object};

pub const ROLE: Kind = Kind {
    columns: &[NAME, column("CREATED AT", |o, _| text(o, "metadata.creationTimestamp"))],
    strategy: Strategy { validate, name: NameRule::PathSegment, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::rbac::v1::Role>("role")
};

pub const CLUSTER_ROLE: Kind = Kind {
    columns: ROLE.columns,
    strategy: Strategy { validate: validate_cluster, name: NameRule::PathSegment, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::rbac::v1::ClusterRole>("clusterrole")
};

fn validate(role: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    for rule in At::root(&role.0).get("rules").items() {
        policy_rule(&rule, true, &mut errs);
    }
    errs.0
}

fn validate_cluster(role: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let root = At::root(&role.0);
    for rule in root.get("rules").items() {
        policy_rule(&rule, false, &mut errs);
    }
    let aggregation = root.get("aggregationRule");
    if aggregation.is_set() {
        let selectors = aggregation.get("clusterRoleSelectors");
        if selectors.is_empty() {
            errs.required(&selectors.path, "at least one clusterRoleSelector required if aggregationRule is non-nil");
        }
        for selector in selectors.items() {
            selectors::label_selector(&selector, &mut errs);
        }
    }
    errs.0
}

fn policy_rule(rule: &At<'_>, is_namespaced: bool, errs: &mut Errors) {
    let [verbs, urls, groups, resources, resource_names] =
        ["verbs", "nonResourceURLs", "apiGroups", "resources", "resourceNames"].map(|field| rule.get(field));
    if verbs.is_empty() {
        errs.required(&verbs.path, "verbs must contain at least one value");
    }
    if !urls.is_empty() {
        if is_namespaced {
            errs.invalid_value(&urls.path, urls.value, "namespaced rules cannot apply to non-resource URLs");
        }
        if !groups.is_empty() || !resources.is_empty() || !resource_names.is_empty() {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            errs.invalid_value(&urls.path, urls.value, why);
        }
        return;
    }
    if groups.is_empty() {
        errs.required(&groups.path, "resource rules must supply at least one api group");
    }
    if resources.is_empty() {
        errs.required(&resources.path, "resource rules must supply at least one resource");
    }
}
