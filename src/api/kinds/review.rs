//! The reviews (authentication.k8s.io, authorization.k8s.io): creating one asks a question, and its status is the answer.

use k8s_openapi::api::{authentication::v1 as authentication, authorization::v1 as authorization};

use super::{Kind, Storage};
use crate::Verb;

/// A kind that is answered, and not stored.
const fn review(kind: Kind) -> Kind {
    Kind { storage: Storage::Nowhere, verbs: &[Verb::Create], columns: &[], ..kind }
}

pub const TOKEN: Kind = review(Kind::of::<authentication::TokenReview>("tokenreview"));
pub const SELF_SUBJECT: Kind = review(Kind::of::<authentication::SelfSubjectReview>("selfsubjectreview"));
pub const LOCAL_SUBJECT_ACCESS: Kind =
    review(Kind::of::<authorization::LocalSubjectAccessReview>("localsubjectaccessreview"));
pub const SELF_SUBJECT_ACCESS: Kind =
    review(Kind::of::<authorization::SelfSubjectAccessReview>("selfsubjectaccessreview"));
pub const SELF_SUBJECT_RULES: Kind =
    review(Kind::of::<authorization::SelfSubjectRulesReview>("selfsubjectrulesreview"));
pub const SUBJECT_ACCESS: Kind = review(Kind::of::<authorization::SubjectAccessReview>("subjectaccessreview"));
