//! ResourceQuota: a write must fit into the quotas of its namespace. They are charged in the transaction that writes the object, so
//! two writes never get the same remainder, and failed writes cost nothing.

use futures::future::BoxFuture;

use super::{Charge, operation::Operation, review::Review};
use crate::large::Weighed;
use podwright_api::quota::{self, Counter};
use podwright_api::{Object, Status, pod_totals};

const QUOTAS: &str = "resourcequotas";

pub(super) fn charge(review: &Review<'_>, object: &Object) -> Result<Vec<Charge>, Status> {
    let is_pod = review.call.kind.resource() == "pods";
    let counts = match (review.operation, review.subresource()) {
        (Operation::Create, "") | (Operation::Update, "resize") => true,
        // No other update changes a Pod's usage; as upstream's evaluator.
        (Operation::Update, "") => !is_pod,
        _ => false,
    };
    if !counts {
        return Ok(Vec::new());
    }
    let now = review.server.env.now();
    let mut charges = Vec::new();
    for item in review.items(QUOTAS, Some(review.namespace())) {
        let mut quota = item.decode(Weighed::own())?.object;
        let after = quota::charge(&quota, review.call.kind, object, review.old, now);
        let Some(used) = after.map_err(|why| review.forbidden(object, why))? else { continue };
        quota.0["status"]["used"] = quota::to_json(&used);
        let bytes = review.resource(QUOTAS)?.head.store(&quota);
        charges.push(Charge { key: item.key.to_string(), revision: item.revision, value: bytes });
    }
    Ok(charges)
}

/// Checks the status of a quota. (`charge` decides what is charged.)
pub(super) fn concerns(review: &Review<'_>) -> bool {
    review.call.kind.built_in() == "ResourceQuota" && review.subresource() == "status"
}

/// Reported usage may not be lowered: a controller may not have seen the latest charges yet.
pub(super) fn validate<'a>(review: &'a Review<'_>, new: &'a Object) -> BoxFuture<'a, Result<(), Status>> {
    Box::pin(async move {
        review.server.cache.fresh().await?;
        let mut counter = Counter::new(new, review.server.env.now());
        for (kind, number) in counter.kinds() {
            let items = review.items(&kind.resource(), Some(review.namespace()));
            match number {
                true => counter.add_number(kind, items.len()),
                false => {
                    for item in items {
                        review.server.look(&review.call.user, &item, |object| counter.add(kind, object)).await?;
                    }
                }
            }
        }
        let kinds = review.server.kinds();
        for resource in counter.custom() {
            let kind = kinds.custom().find(|kind| kind.namespaced && kind.resource() == resource);
            let number = kind.map_or(0, |kind| review.items(&kind.exact(), Some(review.namespace())).len());
            counter.add_custom(&resource, number);
        }
        let told = pod_totals::quantities(&new.0["status"]["used"]);
        let less = counter.used().iter().find(|(resource, used)| told.get(*resource).is_some_and(|told| told < used));
        match less {
            None => Ok(()),
            Some((resource, used)) => Err(review.call.conflict(format!("{used} of {resource} is used by now"))),
        }
    })
}
