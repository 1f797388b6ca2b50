//! A request as webhooks and expressions see it: upstream's `AdmissionRequest`, without its objects.

use serde_json::{Value, json};

use super::{operation::Operation, review::Review};
use crate::resolved_request::ResolvedRequest;
use podwright_api::{Kind, Object, Verb};

/// Whether the object under review is of the request's kind, not of a subresource's own kind.
pub(super) fn is_whole(review: &Review<'_>) -> bool {
    matches!(review.subresource(), "" | "status" | "ephemeralcontainers" | "resize")
}

/// Everything but the objects, in the version that a rule matches.
pub(super) fn describe(review: &Review<'_>, version: &Kind, object: &Object) -> Value {
    let call = review.call;
    let kind = |row: &Kind| match is_whole(review) {
        true => json!({"group": row.group, "version": row.version, "kind": row.kind}),
        false => {
            let (group, version) = object.api_version().split_once('/').unwrap_or(("", object.api_version()));
            json!({"group": group, "version": version, "kind": object.kind()})
        }
    };
    let resource = |row: &Kind| json!({"group": row.group, "version": row.version, "resource": row.plural});
    let name = if call.name().is_empty() { object.name() } else { call.name() };
    let mut request = json!({
        "uid": review.server.env.uid(), "kind": kind(version), "resource": resource(version),
        "requestKind": kind(call.asked()), "requestResource": resource(call.asked()), "name": name,
        "operation": review.operation.as_str(), "userInfo": serde_json::to_value(&call.user).unwrap_or_default(),
        "dryRun": call.options.dry_run, "options": options(call, review.operation),
    });
    if !review.namespace().is_empty() {
        request["namespace"] = review.namespace().into();
    } else if call.kind.built_in() == "Namespace" {
        request["namespace"] = name.into();
    }
    if !review.subresource().is_empty() {
        request["subResource"] = review.subresource().into();
        request["requestSubResource"] = review.subresource().into();
    }
    request
}

/// The request's options, of upstream's type for the operation.
fn options(call: &ResolvedRequest, operation: Operation) -> Value {
    let kind = match operation {
        Operation::Create => "CreateOptions",
        Operation::Update if call.verb == Verb::Patch => "PatchOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
        Operation::Connect => return Value::Null,
    };
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    let given = &call.options;
    if given.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    if let Some(manager) = given.field_manager.as_deref().filter(|_| operation != Operation::Delete) {
        options["fieldManager"] = manager.into();
    }
    if operation == Operation::Delete {
        if let Some(seconds) = given.grace_period_seconds {
            options["gracePeriodSeconds"] = seconds.into();
        }
        if let Some(policy) = &given.propagation_policy {
            options["propagationPolicy"] = policy.as_str().into();
        }
    }
    options
}
