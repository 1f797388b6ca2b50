//! NodeTaintTimeAdded: sets the time of a node's NoExecute taints, whoever adds them.
//!
//! The taint eviction controller, which may just have restarted, computes from it when a Pod's `tolerationSeconds` run out.
//! Upstream 1.35 leaves taints of users and agents without a time and counts from when its controller saw them; a plugin like this
//! one is proposed there (kubernetes/kubernetes#141453).

use serde_json::Value;

use super::{operation::Operation, review::Review};
use podwright_api::{Object, Status};

pub(super) fn concerns(review: &Review<'_>) -> bool {
    review.is("Node", Operation::Create) || review.is("Node", Operation::Update)
}

pub(super) fn mutate(review: &Review<'_>, node: &mut Object) -> Result<(), Status> {
    let old = review.old.and_then(|old| old.at("spec.taints")).and_then(Value::as_array);
    let Some(taints) = node.0.pointer_mut("/spec/taints").and_then(Value::as_array_mut) else { return Ok(()) };
    for taint in taints.iter_mut().filter(|taint| taint["effect"] == "NoExecute" && taint["timeAdded"].is_null()) {
        // Writing back a list from elsewhere does not restart the time.
        let same = |known: &&Value| known["key"] == taint["key"] && known["effect"] == taint["effect"];
        let known =
            old.into_iter().flatten().find(same).map(|known| &known["timeAdded"]).filter(|time| !time.is_null());
        taint["timeAdded"] = known.cloned().unwrap_or_else(|| review.server.timestamp().into());
    }
    Ok(())
}
