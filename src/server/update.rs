//! The update verb, and what it shares with patch.

use podwright_api::{FieldValidation, Kind, Object, Response, Status, pod_warnings, strategy};

use super::authorize::escalate::may_grant;
use super::encode::Current;
use super::get;
use super::reservation::Occupied;
use super::resolved_request::{ResolvedRequest, WriteScope, bad_value};
use super::transact::{Decision, How, Proposal, WritePlan, Written};
use super::write_scope::{part_of, prepare};
use super::{Server, allocate, certificates, fields};

impl Server {
    pub(super) async fn update(&self, mut call: ResolvedRequest) -> Result<Response, Status> {
        let body = call.take_body()?;
        let validation = call.options.field_validation.unwrap_or_default();
        let (object, warnings) = self.decode_update(&call, body, validation)?;
        let part = part_of(&call)?;
        let call = &call;
        let propose = |current: Option<&Current>| {
            let current = current.ok_or_else(|| call.not_found())?;
            self.replacement(call, part, object.clone(), current)
        };
        let written = self.transact(call, &call.key(), propose).await?;
        Ok(Response { warnings, ..respond(written) })
    }

    pub(super) fn decode_update(
        &self,
        call: &ResolvedRequest,
        body: serde_json::Value,
        validation: FieldValidation,
    ) -> Result<(Object, Vec<String>), Status> {
        let (object, warnings) = call.decode(body, validation)?;
        Ok((call.aligned(object)?, warnings))
    }

    /// The proposal to replace the current object with `new`.
    pub(super) fn replacement<'a>(
        &'a self,
        call: &'a ResolvedRequest,
        part: WriteScope,
        new: Object,
        current: &Current,
    ) -> Result<Proposal<'a>, Status> {
        let new = self.replaced(call, part, new, current)?;
        let settle = move |new: Object, current: Option<&Current>, taken: &Occupied| {
            let current = current.ok_or_else(|| call.not_found())?;
            self.settle(call, part, new, &current.object, taken)
        };
        Ok(Proposal::Put(new, Box::new(settle)))
    }

    /// The object that replaces the current one, before admission.
    pub(super) fn replaced(
        &self,
        call: &ResolvedRequest,
        part: WriteScope,
        mut new: Object,
        current: &Current,
    ) -> Result<Object, Status> {
        let old = &current.object;
        check_preconditions(call, &new, old)?;
        if part == WriteScope::Whole {
            strategy::validate_size(call.rules(), &new, Some(old))?;
        }
        prepare(call, part, &mut new, old);
        match part {
            WriteScope::Whole | WriteScope::Status | WriteScope::Ephemeral | WriteScope::Resize => {
                if part == WriteScope::Status {
                    certificates::date_status(call, &mut new, old, &self.timestamp());
                }
                fields::updated(call, part, &mut new, old, || self.timestamp())
            }
            WriteScope::Approval => new = certificates::with_approval(&new, old, &self.timestamp()),
            WriteScope::Finalize => {}
        }
        Ok(new)
    }

    /// Settles an admitted object that replaces `old`.
    pub(super) fn settle(
        &self,
        call: &ResolvedRequest,
        part: WriteScope,
        mut new: Object,
        old: &Object,
        taken: &Occupied,
    ) -> Result<WritePlan, Status> {
        let (mut reservations, mut releases) = (Vec::new(), Vec::new());
        // Changes by admission outside the part are dropped.
        match part {
            WriteScope::Whole => {
                strategy::count_generation(call.rules(), &mut new, old);
                (call.rules().strategy.stamp)(&mut new, old, &self.timestamp());
            }
            WriteScope::Ephemeral | WriteScope::Resize | WriteScope::Finalize => prepare(call, part, &mut new, old),
            WriteScope::Status => {
                if strategy::content_differs(call.rules(), &new, old) {
                    prepare(call, part, &mut new, old);
                }
                certificates::date_status(call, &mut new, old, &self.timestamp());
            }
            WriteScope::Approval => new = certificates::with_approval(&new, old, &self.timestamp()),
        }
        match part {
            WriteScope::Whole => {
                may_grant(self, call, &new, Some(old))?;
                (reservations, releases) = allocate::plan(self, call, Some(old), &mut new, taken)?;
                strategy::validate_update(call.rules(), &new, old)?;
                let warnings = pod_warnings::of_change(call.kind.built_in(), &new, old);
                warnings.into_iter().for_each(|warning| call.notes.warn(warning));
            }
            WriteScope::Status => {
                may_grant(self, call, &new, Some(old))?;
                strategy::validate_status_update(call.rules(), &new, old)?;
            }
            WriteScope::Approval => strategy::validate_status_update(call.rules(), &new, old)?,
            WriteScope::Ephemeral => strategy::validate_ephemeral_update(call.rules(), &new, old)?,
            WriteScope::Resize => strategy::validate_resize_update(call.rules(), &new, old)?,
            WriteScope::Finalize => {}
        }
        // The object keeps its revision: the store compares again what was compared above.
        new.set_meta("resourceVersion", old.0["metadata"].get("resourceVersion").cloned());
        if new == *old {
            return Ok(Decision::Keep.into());
        }
        let decision = if is_finished(call.kind, &new, old) { Decision::Finish(new) } else { Decision::Put(new) };
        if matches!(decision, Decision::Finish(_)) {
            (reservations, releases) = (Vec::new(), allocate::all_of(call.kind, old));
        }
        Ok(WritePlan { decision, reservations, releases })
    }
}

/// The answer to a change. An object whose last finalizer went is gone; it is answered as it was to be.
pub(super) fn respond(written: Written) -> Response {
    Response { unchanged: written.how == How::Kept, ..get::object(written.bytes, written.how == How::Created) }
}

/// A resourceVersion or uid in an update is a precondition.
fn check_preconditions(call: &ResolvedRequest, new: &Object, old: &Object) -> Result<(), Status> {
    let version = new.resource_version();
    if !version.is_empty() && version != "0" {
        if version.parse::<u64>().is_err() {
            let value = serde_json::Value::from(version);
            let cause = bad_value("metadata.resourceVersion", &value, "must be a number");
            return Err(call.invalid(call.name(), vec![cause]));
        }
        if version != old.resource_version() {
            return Err(call.modified());
        }
    }
    let uid = new.uid();
    if !uid.is_empty() && uid != old.uid() {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", old.uid());
        return Err(call.conflict(why));
    }
    Ok(())
}

/// Whether a terminating object has nothing left to wait for, by upstream's `ShouldDeleteDuringUpdate`.
fn is_finished(kind: &Kind, new: &Object, old: &Object) -> bool {
    let no_grace = old.0["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
    let spec_finalizers =
        kind.built_in() == "Namespace" && new.0["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    new.finalizers().is_empty() && old.is_terminating() && no_grace && !spec_finalizers
}
