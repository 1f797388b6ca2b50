//! Lease (coordination.k8s.io/v1).

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text};
use crate::validation::{At, Errors};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    columns: &[NAME, column("HOLDER", |o, _| text(o, "spec.holderIdentity")), AGE],
    strategy: Strategy { validate, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::coordination::v1::Lease>("lease")
};

fn validate(lease: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&lease.0).get("spec");
    let duration = spec.get("leaseDurationSeconds");
    if let Some(n) = duration.int().filter(|n| *n <= 0) {
        errs.invalid(&duration.path, n, "must be greater than 0");
    }
    errs.non_negative(&spec.get("leaseTransitions"));
    errs.0
}
