//! OwnerReferencesPermissionEnforcement: whose deletion an object of a namespace may hold up.
//!
//! An object that is deleted in the foreground waits for its dependents that say `blockOwnerDeletion`. Upstream's plugin, which is
//! off there unless it is turned on, asks of all of them whether who says so may set the owner's finalizers, which comes to the
//! same. Here it is on, for owners of the cluster's own scope alone: they are others' than a tenant's; those of a namespace are
//! his who may write there. Owners of a kind that there is not are refused, as upstream's. A reference counts as it is, not by its
//! uid alone: what names another kind is another owner.

use serde_json::Value;

use super::{operation::Operation, review::Review};
use crate::authorize::attributes::Attributes;
use podwright_api::{Object, Status};

pub(super) fn concerns(review: &Review<'_>) -> bool {
    matches!(review.operation, Operation::Create | Operation::Update) && review.call.kind.namespaced
}

/// Refuses what blocks an owner anew that its writer may not keep from going.
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
        // There may be one tomorrow.
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
