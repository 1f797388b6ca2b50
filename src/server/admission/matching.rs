//! Which requests a webhook or a policy applies to: rules, match policy, selectors.
//! <https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#matching-requests-rules>

use serde_json::Value;

use super::{operation::Operation, review::Review};
use podwright_api::selector::LabelSelector;
use podwright_api::{Kind, Object, Status};

/// Resources that webhooks and policies never see: they could lock themselves in.
const EXEMPT: &[&str] = &[
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];

pub(super) fn is_exempt(review: &Review<'_>) -> bool {
    EXEMPT.contains(&review.call.kind.built_in())
}

/// The version in which the rules want to see the object, if they match the request: the requested version, or an equivalent one
/// where `matchPolicy` allows that.
pub(super) fn by_rules(review: &Review<'_>, rules: &Value, match_policy: &Value) -> Option<&'static Kind> {
    let asked = review.call.asked();
    let named = |row: &Kind| rules.as_array().is_some_and(|rules| rules.iter().any(|rule| names(review, rule, row)));
    if named(asked) {
        return Some(asked);
    }
    if match_policy == "Exact" {
        return None;
    }
    let kinds = review.server.kinds();
    let versions = kinds.all().filter(|row| std::ptr::eq(row.stored(), review.call.kind));
    { versions }.find(|row| !std::ptr::eq(*row, asked) && named(row))
}

/// Whether a rule matches the request if it came in this version.
fn names(review: &Review<'_>, rule: &Value, row: &Kind) -> bool {
    let list = |field: &str| rule[field].as_array().map(Vec::as_slice).unwrap_or_default();
    let has = |field: &str, wanted: &str| list(field).iter().any(|it| it == "*" || it == wanted);
    let resource = |it: &Value| {
        let text = it.as_str().unwrap_or("");
        let (resource, sub) = text.split_once('/').unwrap_or((text, ""));
        (resource == "*" || resource == row.plural) && (sub == "*" || sub == review.subresource())
    };
    let scope = match rule["scope"].as_str().unwrap_or("*") {
        "Namespaced" => row.namespaced,
        "Cluster" => !row.namespaced,
        _ => true,
    };
    // A policy's rule may be restricted to named objects.
    let names = list("resourceNames");
    scope
        && has("operations", review.operation.as_str())
        && has("apiGroups", row.group)
        && has("apiVersions", row.version)
        && list("resources").iter().any(resource)
        && (names.is_empty() || names.iter().any(|name| name == review.call.name()))
}

/// Whether the selectors match the namespace's labels and those of the object, before or after the change.
pub(super) fn by_selectors(review: &Review<'_>, object: &Object, it: &Value) -> Result<bool, Status> {
    let namespaces = LabelSelector::from_json(&it["namespaceSelector"])?;
    let objects = LabelSelector::from_json(&it["objectSelector"])?;
    let in_namespace = || {
        let is_namespace = review.call.kind.built_in() == "Namespace";
        match is_namespace {
            true => namespaces.matches_labels(object.labels()),
            false if review.namespace().is_empty() => true,
            false => {
                let namespace = review.namespace_item();
                namespace.is_some_and(|namespace| namespaces.matches(|key| namespace.label(key)))
            }
        }
    };
    let selected = |object: &Object| objects.matches_labels(object.labels());
    let old = if review.operation == Operation::Delete { None } else { review.old };
    Ok((namespaces.is_empty() || in_namespace())
        && (objects.is_empty() || selected(object) || old.is_some_and(selected)))
}

/// The version in which a policy's `matchConstraints`, or a binding's `matchResources`, match the request; `None` if they do not.
/// Constraints without rules match nothing, resources without rules everything.
pub(super) fn by_resources(
    review: &Review<'_>,
    object: &Object,
    it: &Value,
    needs_rules: bool,
) -> Result<Option<&'static Kind>, Status> {
    let policy = &it["matchPolicy"];
    let has_rules = it["resourceRules"].as_array().is_some_and(|rules| !rules.is_empty());
    if by_rules(review, &it["excludeResourceRules"], policy).is_some() {
        return Ok(None);
    }
    let version = match has_rules {
        true => by_rules(review, &it["resourceRules"], policy),
        false if needs_rules => None,
        false => Some(review.call.asked()),
    };
    match version {
        Some(version) if by_selectors(review, object, it)? => Ok(Some(version)),
        _ => Ok(None),
    }
}
