//! OwnerReferencesPermissionEnforcement: whose deletion an object may block.
//!
//! An object that is deleted in the foreground waits for its dependents with `blockOwnerDeletion`. Upstream's plugin, which is off
//! by default, requires for all of them that the writer may set the owner's finalizers, which has the same effect. Here it is on,
//! but for cluster-scoped owners only: these belong to others than the tenant; owners within a namespace belong to those who may
//! write there. Owners of an unknown kind are refused, as upstream. References are compared as a whole, not by uid alone: one that
//! names another kind is another owner.

use serde_json::Value;

use super::{operation::Operation, review::Review};
use crate::authorize::attributes::Attributes;
use podwright_api::{Object, Status};

pub(super) fn concerns(review: &Review<'_>) -> bool {
    matches!(review.operation, Operation::Create | Operation::Update)
}

/// Refuses new blocking references to owners whose deletion the writer may not block.
pub(super) async fn validate(review: &Review<'_>, new: &Object) -> Result<(), Status> {
    if blocked(new).next().is_none() {
        return Ok(());
    }
    let kinds = review.server.kinds();
    for owner in blocked(new) {
        if review.old.is_some_and(|old| blocked(old).any(|known| is_same(known, owner))) {
            continue;
        }
        let word = |field: &str| owner[field].as_str().unwrap_or("");
        let (version, kind) = (word("apiVersion"), word("kind"));
        // The kind may be defined later.
        let Some(kind) = kinds.of(version, kind) else {
            let refusal = "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion";
            return Err(review.forbidden(new, format!("{refusal} {version} Kind {kind}")));
        };
        if kind.namespaced {
            continue;
        }
        let asked = Attributes {
            subresource: "finalizers",
            name: word("name"),
            ..Attributes::new(&review.call.user, "update", kind.group, kind.plural)
        };
        if let Err(why) = review.server.authorize(&asked).await {
            let refusal =
                "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on";
            return Err(review.forbidden(new, format!("{refusal}: {}", why.message)));
        }
    }
    Ok(())
}

fn is_same(known: &Value, owner: &Value) -> bool {
    ["apiVersion", "kind", "name", "uid"].iter().all(|field| known[field] == owner[field])
}

fn blocked(object: &Object) -> impl Iterator<Item = &Value> {
    let owners = object.0["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().filter(|owner| owner["blockOwnerDeletion"] == true)
}
