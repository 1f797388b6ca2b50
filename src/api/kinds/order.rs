//! Kinds for subresources that are not stored: bindings, evictions, token requests, scales.

use k8s_openapi::api::{authentication, autoscaling, core, policy};

use super::{Kind, Storage};

/// A kind that is sent, and not stored.
const fn order(kind: Kind) -> Kind {
    Kind { storage: Storage::Nowhere, verbs: &[], columns: &[], ..kind }
}

static BINDING: Kind = order(Kind::of::<core::v1::Binding>("binding"));
static EVICTION: Kind = order(Kind::of::<policy::v1::Eviction>("eviction"));
static SCALE: Kind = order(Kind::of::<autoscaling::v1::Scale>("scale"));
static TOKEN_REQUEST: Kind = order(Kind::of::<authentication::v1::TokenRequest>("tokenrequest"));

/// The kind of a subresource's body, if it differs from the object's kind.
pub fn of(subresource: &str) -> Option<&'static Kind> {
    match subresource {
        "binding" => Some(&BINDING),
        "eviction" => Some(&EVICTION),
        "scale" => Some(&SCALE),
        "token" => Some(&TOKEN_REQUEST),
        _ => None,
    }
}
