//! CertificateApproval, CertificateSigning and CertificateSubjectRestriction: who may decide on certificates, and which requests
//! are always refused.

use super::{operation::Operation, review::Review};
use crate::certificates;
use crate::resolved_request::ResolvedRequest;
use podwright_api::{Object, Status};

const KIND: &str = "CertificateSigningRequest";

pub(super) fn concerns(review: &Review<'_>) -> bool {
    review.call.kind.built_in() == KIND
}

/// Checks an approval, through whichever subresource it arrives.
pub(super) fn may_approve(review: &Review<'_>, new: &Object) -> Result<(), Status> {
    may_decide(review, new, certificates::approves, "approve")
}

/// Checks a signing (an issued certificate) in the same way.
pub(super) fn may_sign(review: &Review<'_>, new: &Object) -> Result<(), Status> {
    may_decide(review, new, certificates::signs, "sign")
}

fn may_decide(
    review: &Review<'_>,
    new: &Object,
    decides: fn(&ResolvedRequest, &Object, &Object) -> bool,
    verb: &str,
) -> Result<(), Status> {
    match review.old {
        Some(old) if review.operation == Operation::Update && decides(review.call, new, old) => {
            certificates::may_decide(review.server, review.call, verb, old)
        }
        _ => Ok(()),
    }
}

/// Mutates, so that it runs before any decision that depends on it.
pub(super) fn keep_reason(review: &Review<'_>, new: &mut Object) -> Result<(), Status> {
    if matches!(review.operation, Operation::Create | Operation::Update) {
        certificates::keep_reason(review.call, new, review.old);
    }
    Ok(())
}

pub(super) fn may_ask(review: &Review<'_>, new: &Object) -> Result<(), Status> {
    match review.is(KIND, Operation::Create) {
        true => certificates::may_ask(review.call, new),
        false => Ok(()),
    }
}
