//! Patches: JSON patch, merge patch, strategic merge patch, and the three-way merge of `kubectl apply`. Server-side apply
//! is `api::managed_fields`.

use serde_json::{Map, Value};

use super::request::PatchType;
use super::{Kind, Object, Status};

pub mod apply;
mod operations;
pub(super) mod order;
pub mod strategic;
#[cfg(test)]
mod tests;

pub use operations::json;

/// Applies a patch of any type except `Apply` (see `managed_fields`). The result still has to be decoded and validated.
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

/// A patch that cannot be applied, in upstream's words.
fn refused(why: String) -> Status {
    let why = format!("the server rejected our request due to an error in our request: {why}");
    Status::failure(422, "Invalid", why)
}

/// RFC 7386.
pub fn merge(target: &Value, patch: &Value) -> Value {
    let mut out = target.clone();
    json_patch::merge(&mut out, patch);
    out
}

/// The smallest merge patch (RFC 7386) from `old` to `new`; `None` if they are equal.
pub fn difference(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (old, new) if old == new => None,
        (Value::Object(old), Value::Object(new)) => {
            let mut patch = Map::new();
            for key in old.keys().filter(|key| !new.contains_key(*key)) {
                patch.insert(key.clone(), Value::Null);
            }
            for (key, value) in new {
                match old.get(key) {
                    Some(before) => patch.extend(difference(before, value).map(|v| (key.clone(), v))),
                    None => drop(patch.insert(key.clone(), value.clone())),
                }
            }
            Some(Value::Object(patch))
        }
        (_, new) => Some(new.clone()),
    }
}
