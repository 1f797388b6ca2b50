//! Admission: what the server itself adds to a write or refuses, between decoding and validation.

use crate::api::{Object, Status};

use super::authorize::may_grant;
use super::call::Call;
use super::{Server, certificates, tokens};

mod namespace;
mod priority;
mod service_account;

/// Before an object is created. Steps in upstream's order.
pub(super) async fn create(server: &Server, call: &Call, object: &mut Object) -> Result<(), Status> {
    namespace::may_create(server, call, object).await?;
    if call.kind.kind == "Pod" {
        service_account::admit(server, call, object).await?;
        if let Some(spec) = object.0["spec"].as_object_mut() {
            crate::api::pod::add_default_tolerations(spec);
        }
        priority::admit(call, object)?;
    }
    tokens::fill(server, call, object).await?;
    certificates::admit_create(call, object)?;
    may_grant(server, call, object, None)
}

/// Before an object is changed.
pub(super) fn update(server: &Server, call: &Call, new: &mut Object, old: &Object) -> Result<(), Status> {
    may_grant(server, call, new, Some(old))
}

/// Before an object is deleted.
pub(super) fn delete(call: &Call) -> Result<(), Status> {
    namespace::may_delete(call)
}
