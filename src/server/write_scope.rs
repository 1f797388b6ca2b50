//! Which part of an object a write may change, by its subresource.

use podwright_api::{Object, Status, strategy};

use super::resolved_request::{ResolvedRequest, WriteScope};

/// Restricts a replacement to the part that may change.
pub(super) fn prepare(call: &ResolvedRequest, part: WriteScope, new: &mut Object, old: &Object) {
    match part {
        WriteScope::Whole => strategy::prepare_update(call.rules(), new, old),
        WriteScope::Status | WriteScope::Ephemeral | WriteScope::Resize => {
            let managers = new.0["metadata"].get("managedFields").cloned();
            match part {
                WriteScope::Ephemeral => strategy::prepare_ephemeral_update(call.rules(), new, old),
                WriteScope::Resize => strategy::prepare_resize_update(call.rules(), new, old),
                _ => strategy::prepare_status_update(call.rules(), new, old),
            }
            new.set_meta("managedFields", managers);
        }
        WriteScope::Approval => {}
        WriteScope::Finalize => {
            let finalizers = new.0.pointer_mut("/spec/finalizers").map(serde_json::Value::take);
            *new = old.clone();
            match (finalizers, new.0.pointer_mut("/spec").and_then(serde_json::Value::as_object_mut)) {
                (None, Some(spec)) => drop(spec.shift_remove("finalizers")),
                (None, None) => {}
                (Some(finalizers), _) => new.0["spec"]["finalizers"] = finalizers,
            }
        }
    }
}

/// The part that a request on an object or its subresource may change.
pub(super) fn part_of(call: &ResolvedRequest) -> Result<WriteScope, Status> {
    match call.subresource.as_deref() {
        None => Ok(WriteScope::Whole),
        Some("status") => Ok(WriteScope::Status),
        Some("finalize") => Ok(WriteScope::Finalize),
        Some("approval") => Ok(WriteScope::Approval),
        Some("ephemeralcontainers") => Ok(WriteScope::Ephemeral),
        Some("resize") => Ok(WriteScope::Resize),
        Some(other) => Err(call.not_allowed(&format!("update of {other}"))),
    }
}
