//! Lease (coordination.k8s.io/v1).

use super::{Kind, Strategy};
use crate::api::columns::{AGE, NAME, column, text};
use crate::api::schema::of_type;

pub const KIND: Kind = Kind {
    kind: "Lease",
    group: "coordination.k8s.io",
    version: "v1",
    plural: "leases",
    singular: "lease",
    short_names: &[],
    namespaced: true,
    categories: &[],
    subresources: &[],
    selectable: &[],
    schema: of_type::<k8s_openapi::api::coordination::v1::Lease>(),
    columns: &[NAME, column("HOLDER", |o, _| text(o, "spec.holderIdentity")), AGE],
    scale: None,
    strategy: Strategy::PLAIN,
};
