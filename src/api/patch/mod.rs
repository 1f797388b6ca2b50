//! Patches: JSON patch, merge patch, strategic merge patch, and the three-way merge of `kubectl apply`. Server-side apply
//! is `api::managed_fields`.

use serde_json::Value;

use super::request::PatchType;
use super::{Kind, Object, Status};

pub mod apply;
pub(super) mod order;
pub mod strategic;

/// The most operations of one JSON patch, as upstream limits them.
const MAX_OPERATIONS: usize = 10_000;

/// Applies a patch of any type but `Apply` (see `managed_fields`). The outcome has still to be decoded and validated.
pub fn patch(kind: &Kind, patch_type: PatchType, target: &Object, patch: &Value) -> Result<Value, Status> {
    match patch_type {
        PatchType::Json => json(&target.0, patch),
        PatchType::Merge if !patch.is_object() => Err(Status::bad_request("the patch is not a JSON object")),
        PatchType::Merge => Ok(merge(&target.0, patch)),
        PatchType::Strategic => strategic::merge(&kind.schema(), &target.0, patch),
        PatchType::ThreeWay => apply::merge(kind, patch, Some(target)).map(|o| o.0),
        PatchType::Apply => Err(Status::internal("an apply is no patch of an object alone")),
    }
}

/// RFC 6902. A patch that is no patch is a BadRequest, one that does not fit is Invalid, as upstream has it.
pub fn json(target: &Value, patch: &Value) -> Result<Value, Status> {
    if let Some(got) = patch.as_array().map(Vec::len).filter(|n| *n > MAX_OPERATIONS) {
        let why = format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {got}");
        return Err(Status::failure(413, "RequestEntityTooLarge", why));
    }
    let operations: json_patch::Patch =
        serde_json::from_value(patch.clone()).map_err(|e| Status::bad_request(e.to_string()))?;
    let mut out = target.clone();
    json_patch::patch(&mut out, &operations).map_err(|e| {
        let why = format!("the server rejected our request due to an error in our request: {e}");
        Status::failure(422, "Invalid", why)
    })?;
    Ok(out)
}

/// RFC 7386.
pub fn merge(target: &Value, patch: &Value) -> Value {
    let mut out = target.clone();
    json_patch::merge(&mut out, patch);
    out
}
