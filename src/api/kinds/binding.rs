//! Binding, as created in a namespace: upstream's method before `pods/binding`, still used by older schedulers. The body of the
//! Pod's subresource is in [`super::order`].

use super::{Kind, Storage};
use crate::Verb;

pub const KIND: Kind = Kind {
    plural: "bindings",
    namespaced: true,
    storage: Storage::Nowhere,
    verbs: &[Verb::Create],
    columns: &[],
    ..Kind::of::<k8s_openapi::api::core::v1::Binding>("binding")
};
