//! The patch verb, of all patch types; apply creates what is not there.

use serde_json::Value;

use crate::api::request::PatchType;
use crate::api::{Response, Status, Verb, patch};

use super::Server;
use super::call::Call;
use super::encode::Current;
use super::transact::Taken;
use super::update::{part_of, respond};

/// How often apply changes its mind between creating and patching.
const TURNS: usize = 8;

impl Server {
    pub(super) async fn patch(&self, mut call: Call) -> Result<Response, Status> {
        let body = call.take_body()?;
        let Some(of_type) = call.options.patch_type else {
            return Err(Status::failure(415, "UnsupportedMediaType", "the patch names no patchType"));
        };
        if of_type == PatchType::Apply && call.subresource.is_none() {
            return self.apply(call, body).await;
        }
        self.patch_existing(&call, of_type, &body).await
    }

    /// Creates the object, or merges into the one that is there.
    async fn apply(&self, mut call: Call, body: Value) -> Result<Response, Status> {
        for _ in 0..TURNS {
            match self.patch_existing(&call, PatchType::Apply, &body).await {
                Err(status) if status.is_not_found() => {}
                done => return done,
            }
            let body = patch::apply::annotated(&body)?;
            let create = Call { verb: Verb::Create, body: Some(body), ..call };
            call = Call { verb: Verb::Patch, body: None, ..create.again() };
            match self.create(create).await {
                Err(status) if status.is_already_exists() => {}
                done => return done,
            }
        }
        Err(call.conflict("the object is created and deleted by others meanwhile; please try again"))
    }

    async fn patch_existing(&self, call: &Call, of_type: PatchType, body: &Value) -> Result<Response, Status> {
        let part = part_of(call)?;
        let validation = call.options.field_validation.unwrap_or_default();
        let mut warnings = Vec::new();
        let decide = |current: Option<&Current>, taken: &Taken| {
            let current = current.ok_or_else(|| call.not_found())?;
            let patched = patch::patch(call.asked(), of_type, &call.shown(&current.object), body)?;
            let (object, unknown) = self.decode_update(call, patched, validation)?;
            warnings = unknown;
            self.replace(call, part, object, current, taken)
        };
        let written = self.transact(call, &call.key(), decide).await?;
        Ok(Response { warnings, ..respond(call, written) })
    }
}
