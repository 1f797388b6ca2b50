//! PodSecurity: holds Pods to the standards that their namespaces' labels require. `enforce` refuses, `audit` annotates, `warn`
//! warns, also the author of a workload that would create such Pods.
//! <https://kubernetes.io/docs/concepts/security/pod-security-admission/>

use futures::future::BoxFuture;
use serde_json::Value;

use super::{operation::Operation, review::Review};
use crate::resolved_request::bad_value;
use podwright_api::pod_warnings::TEMPLATES;
use podwright_api::{Cause, Object, Status};

mod baseline;
mod config;
mod restricted;
mod standards;
mod violation;

pub use config::PodSecurity;
use config::{LabelError, Policy};
use standards::{Level, Standard, violations};
use violation::{Pod, Violation};

const DOMAIN: &str = "pod-security.kubernetes.io";
/// At most this many Pods of a namespace are checked when its label changes.
const MOST_PODS: usize = 3000;

pub(super) fn concerns(review: &Review<'_>) -> bool {
    let kind = review.call.kind.built_in();
    matches!(review.operation, Operation::Create | Operation::Update)
        && (matches!(kind, "Pod" | "Namespace") || TEMPLATES.iter().any(|(known, _)| *known == kind))
}

pub(super) fn validate<'a>(review: &'a Review<'_>, object: &'a Object) -> BoxFuture<'a, Result<(), Status>> {
    Box::pin(async move {
        let own_users = template_of(review, object).unwrap_or(&object.0)["spec"]["hostUsers"] == false;
        if own_users || (review.is_about("Namespace") && review.operation == Operation::Update) {
            // All existing nodes and all admitted Pods are considered.
            review.server.cache.fresh().await?;
        }
        decide(review, object)
    })
}

fn decide(review: &Review<'_>, object: &Object) -> Result<(), Status> {
    match (review.call.kind.built_in(), review.subresource()) {
        ("Namespace", "") => namespace(review, object),
        ("Pod", "" | "ephemeralcontainers" | "resize") => match review.old {
            Some(old) if !is_significant(object, old) => Ok(()),
            _ => evaluate(review, object, judged(review, &object.0), true),
        },
        (_, "") => match template_of(review, object) {
            Some(template) => evaluate(review, object, judged(review, template), false),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// The Pod template of a workload.
fn template_of<'a>(review: &Review<'_>, object: &'a Object) -> Option<&'a Value> {
    let (_, path) = TEMPLATES.iter().find(|(kind, _)| *kind == review.call.kind.built_in())?;
    object.at(path).filter(|template| template["spec"].is_object())
}

fn judged<'a>(review: &Review<'_>, pod: &'a Value) -> Pod<'a> {
    // Other Pods do not depend on what nodes support, and there may be thousands of nodes.
    let users_are_enforced = pod["spec"]["hostUsers"] == false && users_are_enforced(review);
    Pod { metadata: &pod["metadata"], spec: &pod["spec"], users_are_enforced }
}

/// Whether every node that may run a Pod declares support for user namespaces; false while there is no such node. Upstream assumes
/// it from 1.35 on.
fn users_are_enforced(review: &Review<'_>) -> bool {
    let declares = |node: &Object| {
        let handlers = node.0["status"]["runtimeHandlers"].as_array().into_iter().flatten();
        let mut default = handlers.filter(|handler| handler["name"].as_str().unwrap_or_default().is_empty());
        default.any(|handler| handler["features"]["userNamespaces"] == true)
    };
    let nodes = review.list("nodes", None);
    !nodes.is_empty() && nodes.iter().all(declares)
}

/// Whether an update changes something that is checked: images, seccomp annotations, ephemeral containers.
fn is_significant(new: &Object, old: &Object) -> bool {
    let images = |pod: &Object| -> Vec<(String, Value)> {
        let lists = ["containers", "initContainers", "ephemeralContainers"];
        let all = lists.into_iter().flat_map(|list| pod.0["spec"][list].as_array().into_iter().flatten());
        all.map(|container| (container["name"].to_string(), container["image"].clone())).collect()
    };
    let annotations = |pod: &Object| -> Vec<(String, Value)> {
        let all = pod.0["metadata"]["annotations"].as_object().into_iter().flatten();
        let seccomp = all.filter(|(key, _)| key.contains("seccomp.security.alpha.kubernetes.io/"));
        seccomp.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    images(new) != images(old) || annotations(new) != annotations(old)
}

fn evaluate(review: &Review<'_>, object: &Object, pod: Pod<'_>, enforced: bool) -> Result<(), Status> {
    let config = &review.server.config.pod_security;
    let annotate = |key: &str, value: &str| review.call.notes.annotate(format!("{DOMAIN}/{key}"), value);
    let runtime_class = pod.spec["runtimeClassName"].as_str().unwrap_or("");
    if let Some(why) = config.exempts(review.namespace(), &review.call.user.name, runtime_class) {
        annotate("exempt", why);
        return Ok(());
    }
    let namespace = review.namespace_item();
    let label = |name: &str| namespace.as_deref().and_then(|ns| ns.label(&format!("{DOMAIN}/{name}")));
    let (policy, errors) = Policy::of_labels(&config.defaults, label);
    if let Some((key, _, why)) = errors.first() {
        annotate("error", &format!("Failed to parse policy: metadata.labels[{key}]: {why}"));
    }
    if enforced {
        let found = violations(policy.enforce, pod);
        if !found.is_empty() {
            let why = format!("violates PodSecurity \"{}\": {}", policy.enforce, details(&found));
            return Err(review.forbidden(object, why));
        }
        annotate("enforce-policy", &policy.enforce.to_string());
    }
    let would = |standard: Standard| {
        let found = violations(standard, pod);
        (!found.is_empty()).then(|| format!("would violate PodSecurity \"{standard}\": {}", details(&found)))
    };
    if let Some(audit) = would(policy.audit) {
        annotate("audit-violations", &audit);
    }
    if let Some(warning) = would(policy.warn) {
        review.call.notes.warn(warning);
    }
    Ok(())
}

/// Upstream's `reason (detail), ...`.
fn details(violations: &[Violation]) -> String {
    let each: Vec<String> = violations.iter().map(|v| format!("{} ({})", v.reason, v.detail)).collect();
    each.join(", ")
}

/// Labels must be valid; a stricter standard is checked against existing Pods.
fn namespace(review: &Review<'_>, new: &Object) -> Result<(), Status> {
    let config = &review.server.config.pod_security;
    let of = |object: &Object| Policy::of_labels(&config.defaults, |name| object.label(&format!("{DOMAIN}/{name}")));
    let (policy, errors) = of(new);
    let old = review.old.map(of);
    let was_so = old.as_ref().is_some_and(|(_, before)| *before == errors);
    if !errors.is_empty() && !was_so {
        let cause = |(key, value, why): &LabelError| -> Cause {
            bad_value(&format!("metadata.labels[{key}]"), &Value::from(value.as_str()), &why.to_string())
        };
        return Err(review.call.invalid(new.name(), errors.iter().map(cause).collect()));
    }
    let Some((old, _)) = old else { return Ok(()) };
    let (now, before) = (policy.enforce, old.enforce);
    let relaxed = now.version == before.version && now.level <= before.level;
    if now == before || now.level == Level::Privileged || relaxed || config.exempts(new.name(), "", "").is_some() {
        return Ok(());
    }
    for warning in existing(review, new.name(), now) {
        review.call.notes.warn(warning);
    }
    Ok(())
}

/// Warnings about a namespace's Pods under a new standard.
fn existing(review: &Review<'_>, namespace: &str, standard: Standard) -> Vec<String> {
    let config = &review.server.config.pod_security;
    let pods = review.list("pods", Some(namespace));
    // Reasons, each with the first Pod and their number. Pods are ordered by name.
    let mut found: Vec<(String, String, usize)> = Vec::new();
    for pod in pods.iter().take(MOST_PODS) {
        let runtime_class = pod.0["spec"]["runtimeClassName"].as_str().unwrap_or("");
        if config.exempts("", "", runtime_class).is_some() {
            continue;
        }
        let violations = violations(standard, judged(review, &pod.0));
        let reasons: Vec<&str> = violations.iter().map(|v| v.reason.as_str()).collect();
        let reasons = reasons.join(", ");
        match found.iter_mut().find(|(known, ..)| *known == reasons) {
            _ if reasons.is_empty() => {}
            Some((.., count)) => *count += 1,
            None => found.push((reasons, pod.name().to_owned(), 1)),
        }
    }
    let mut warnings = Vec::new();
    if pods.len() > MOST_PODS {
        let total = pods.len();
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {MOST_PODS} of {total} existing pods"
        ));
    }
    if !found.is_empty() {
        warnings.push(format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{standard}\""
        ));
    }
    let mut each: Vec<String> = found
        .into_iter()
        .map(|(reasons, pod, count)| match count {
            1 => format!("{pod}: {reasons}"),
            2 => format!("{pod} (and 1 other pod): {reasons}"),
            _ => format!("{pod} (and {} other pods): {reasons}", count - 1),
        })
        .collect();
    each.sort();
    warnings.extend(each);
    warnings
}
