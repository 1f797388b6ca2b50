//! Access to devices that others use (`adminAccess`): only in namespaces that an administrator labels for that; upstream's
//! `AuthorizedForAdmin`, in the strategies of claims and their templates.

use serde_json::Value;

use crate::Server;
use crate::resolved_request::ResolvedRequest;
use podwright_api::validation::Errors;
use podwright_api::{Object, Status, kinds};

/// The label of such a Namespace.
const LABEL: &str = "resource.kubernetes.io/admin-access";

/// Refuses a claim elsewhere that requests it, or whose status has it. Existing ones stay.
pub(super) fn check(server: &Server, call: &ResolvedRequest, new: &Object, old: Option<&Object>) -> Result<(), Status> {
    let path = match (call.kind.built_in(), call.subresource.as_deref()) {
        ("ResourceClaim", Some("status")) => "/status/allocation/devices/results",
        ("ResourceClaim", _) => "/spec/devices/requests",
        ("ResourceClaimTemplate", _) => "/spec/spec/devices/requests",
        _ => return Ok(()),
    };
    let has = |it: &Value| it["adminAccess"] == true || it["exactly"]["adminAccess"] == true;
    let any = |object: &Object| object.0.pointer(path).and_then(Value::as_array).is_some_and(|all| all.iter().any(has));
    if !any(new) || old.is_some_and(any) {
        return Ok(());
    }
    let namespace =
        kinds::lookup("namespaces").and_then(|kind| server.cache.resource(kind).get(&kind.key(None, call.within())));
    if namespace.is_some_and(|namespace| namespace.label(LABEL) == Some("true")) {
        return Ok(());
    }
    let mut errors = Errors::default();
    errors.forbidden(
        "",
        format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace"),
    );
    Err(call.invalid(new.name(), errors.0))
}
