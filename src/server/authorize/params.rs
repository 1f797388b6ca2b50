//! Whoever writes an admission policy can read its parameters through its messages, so they must be authorized to read them.
//!
//! Upstream: `authz.go` of `pkg/registry/admissionregistration/validatingadmissionpolicy` and `...policybinding`. A policy requires
//! access to all objects of its `paramKind`, since its bindings, and the namespaces of requests, select them; a binding requires
//! access to those that its `paramRef` names. A selector reveals which objects exist, so it requires `list` as well. A kind or
//! policy that is unknown yet may become anything, so it requires access to everything.

use serde_json::Value;

use super::attributes::{Attributes, Decision};
use crate::Server;
use crate::resolved_request::ResolvedRequest;
use podwright_api::{Cause, Object, Status};

/// Whether the writer of a policy may read the parameters that it newly selects.
pub(super) fn of_policy(
    server: &Server,
    call: &ResolvedRequest,
    new: &Object,
    old: Option<&Object>,
) -> Result<(), Status> {
    let kind = &new.0["spec"]["paramKind"];
    if kind.is_null() || old.is_some_and(|old| old.0["spec"]["paramKind"] == *kind) {
        return Ok(());
    }
    let (group, resource) = resolved(server, kind);
    let asked = Attributes { namespace: "*", name: "*", ..Attributes::new(&call.user, "get", &group, &resource) };
    if server.authorizer.decide(&asked) == Decision::Allow {
        return Ok(());
    }
    let text = |field: &str| kind[field].as_str().unwrap_or("");
    let (user, kind, version) = (&call.user.name, text("kind"), text("apiVersion"));
    let what = format!("all objects of the referenced paramKind (kind={kind}, apiVersion={version})");
    Err(refused(call, new, "spec.paramKind", format!("user {user:?} must have \"get\" permission on {what}")))
}

/// Whether the writer of a binding may read the parameters that it newly refers to.
pub(super) fn of_binding(
    server: &Server,
    call: &ResolvedRequest,
    new: &Object,
    old: Option<&Object>,
) -> Result<(), Status> {
    let (reference, policy) = (&new.0["spec"]["paramRef"], new.0["spec"]["policyName"].as_str().unwrap_or(""));
    let is_same = |old: &Object| old.0["spec"]["paramRef"] == *reference && old.0["spec"]["policyName"] == policy;
    if reference.is_null() || old.is_some_and(is_same) {
        return Ok(());
    }
    let policy = find(server, call, policy)?;
    let (group, resource) = match policy.as_ref().and_then(|policy| policy.at("spec.paramKind")) {
        Some(kind) if kind.is_object() => resolved(server, kind),
        _ => anything(),
    };
    let text = |field: &str| reference[field].as_str().unwrap_or("");
    let verbs: &[&str] = if text("name").is_empty() { &["get", "list"] } else { &["get"] };
    for verb in verbs {
        let asked = Attributes {
            namespace: text("namespace"),
            name: text("name"),
            ..Attributes::new(&call.user, verb, &group, &resource)
        };
        if server.authorizer.decide(&asked) != Decision::Allow {
            let user = &call.user.name;
            let why = format!("user {user:?} does not have {verb:?} permission on the object referenced by paramRef");
            return Err(refused(call, new, "spec.paramRef", why));
        }
    }
    Ok(())
}

/// The policy of a binding, from the cache.
fn find(server: &Server, call: &ResolvedRequest, name: &str) -> Result<Option<Object>, Status> {
    let Some(kind) = server.kinds().lookup("validatingadmissionpolicies.admissionregistration.k8s.io") else {
        return Err(call.forbidden("there are no policies"));
    };
    let item = server.cache.resource(kind).get(&kind.key(None, name));
    item.map(|item| Object::from_slice(&item.bytes)).transpose()
}

fn anything() -> (String, String) {
    ("*".to_owned(), "*".to_owned())
}

/// The group and resource of a `paramKind`; `*` if unknown.
fn resolved(server: &Server, kind: &Value) -> (String, String) {
    let text = |field: &str| kind[field].as_str().unwrap_or("");
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    if version.contains('/') {
        return anything();
    }
    let resource = server.kinds().of(api_version, kind).map_or("*", |kind| kind.plural);
    (group.to_owned(), resource.to_owned())
}

fn refused(call: &ResolvedRequest, new: &Object, field: &str, why: String) -> Status {
    let message = format!("Forbidden: {why}");
    call.invalid(new.name(), vec![Cause { reason: "FieldValueForbidden".into(), message, field: field.into() }])
}
