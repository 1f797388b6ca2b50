//! Node selectors: which nodes the affinity of a Pod or volume selects.

use k8s_openapi::api::core::v1::{NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

/// Whether a Pod's `nodeSelector` and its required node affinity allow a node. `label` looks up the node's labels.
pub fn selects<'a>(spec: &PodSpec, name: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    spec.node_selector.iter().flatten().all(|(key, value)| label(key) == Some(value))
        && affinity.and_then(required).is_none_or(|terms| any(terms, name, label))
}

/// The required terms of a node affinity; `None` if it has only preferences.
pub fn required(affinity: &NodeAffinity) -> Option<&[NodeSelectorTerm]> {
    affinity.required_during_scheduling_ignored_during_execution.as_ref().map(|r| r.node_selector_terms.as_slice())
}

/// Whether any of the terms matches a node: they are alternatives, and an empty list matches none. `label` looks up its labels.
pub fn any<'a>(terms: &[NodeSelectorTerm], name: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
    terms.iter().any(|term| matches(term, name, &label))
}

/// Whether all requirements of a term are met. An empty term matches no node.
pub fn matches<'a>(term: &NodeSelectorTerm, name: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |key: &str| (key == "metadata.name").then_some(name);
    (!labels.is_empty() || !fields.is_empty())
        && labels.iter().all(|r| holds(r, label(&r.key)))
        && fields.iter().all(|r| holds(r, field(&r.key)))
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |v: &str| values.iter().any(|w| w == v);
    let numbers = || Some((value?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}
