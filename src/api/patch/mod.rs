//! Patches: JSON patch, merge patch, strategic merge patch, and apply (a three-way merge).

use serde_json::Value;

use super::Status;

/// RFC 6902. A patch that is no patch is a BadRequest, one that does not fit is Invalid, as upstream has it.
pub fn json(target: &Value, patch: &Value) -> Result<Value, Status> {
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
