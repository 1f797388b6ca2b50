//! NamespaceLifecycle: nothing new in a Namespace that is missing or terminating; the built-in ones cannot be deleted.

use super::{operation::Operation, review::Review};
use podwright_api::kinds::{self, Storage};
use podwright_api::{Cause, Object, Status};

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub(super) fn concerns(review: &Review<'_>) -> bool {
    // Reviews may name a Namespace whether it exists or not.
    let is_review = matches!(review.call.kind.storage, Storage::Nowhere);
    let creates = review.operation == Operation::Create && review.subresource().is_empty() && !is_review;
    (creates && !review.namespace().is_empty()) || review.is("Namespace", Operation::Delete)
}

pub(super) async fn may_create(review: &Review<'_>, object: &Object) -> Result<(), Status> {
    let namespace = review.namespace();
    if review.operation != Operation::Create {
        return Ok(());
    }
    let item = match review.namespace_item() {
        Some(item) => item,
        None => {
            // It may have been created just now.
            review.server.cache.fresh().await?;
            review.namespace_item().ok_or_else(|| Status::not_found("namespaces", "", namespace))?
        }
    };
    let kind = kinds::lookup("namespaces").ok_or_else(|| Status::internal("no kind Namespace"))?;
    if item.field(kind, "status.phase") != "Terminating" {
        return Ok(());
    }
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let cause = Cause {
        reason: "NamespaceTerminating".into(),
        message: format!("namespace {namespace} is being terminated"),
        field: "metadata.namespace".into(),
    };
    Err(review.forbidden(object, why).with_causes(vec![cause]))
}

pub(super) fn may_delete(review: &Review<'_>, namespace: &Object) -> Result<(), Status> {
    if review.operation == Operation::Delete && IMMORTAL.contains(&review.call.name()) {
        return Err(review.forbidden(namespace, "this namespace may not be deleted"));
    }
    Ok(())
}
