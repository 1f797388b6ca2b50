//! Binding, as it is created in a namespace: upstream's way before `pods/binding`, which older schedulers go. What a Pod's own
//! subresource takes is in [`super::order`].

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
