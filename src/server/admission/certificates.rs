//! CertificateApproval, CertificateSigning and CertificateSubjectRestriction: who may decide on certificates, and what nobody
//! may ask for.

use super::{operation::Operation, review::Review};
use crate::certificates;
use crate::resolved_request::ResolvedRequest;
use podwright_api::{Object, Status};

const KIND: &str = "CertificateSigningRequest";

pub(super) fn concerns(review: &Review<'_>) -> bool {
    review.call.kind.built_in() == KIND
}

/// An approval, in whatever subresource it comes.
pub(super) fn may_approve(review: &Review<'_>, new: &Object) -> Result<(), Status> {
    may_decide(review, new, certificates::approves, "approve")
}

/// A certificate, likewise.
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

/// Before anything is decided by it.
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
