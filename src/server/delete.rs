//! The delete verb: grace, finalizers and preconditions as in upstream's registry store.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use podwright_api::{Kind, Object, Options, Response, Status};

use super::encode::Current;
use super::resolved_request::ResolvedRequest;
use super::timestamp::timestamp;
use super::transact::{Decision, How, Proposal, WritePlan};
use super::{Server, allocate, custom, get};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// The effect of a delete on an object's grace period; upstream's `rest.BeforeDelete`.
#[derive(Debug, PartialEq, Eq)]
enum Grace {
    /// No grace period: delete at once.
    None,
    /// It is terminating already, and this request does not shorten that.
    Pending,
    /// It now has this many seconds.
    Seconds(i64),
}

impl Server {
    pub(super) async fn delete(&self, call: &ResolvedRequest) -> Result<Response, Status> {
        check_propagation(&call.options)?;
        if let Some(deleted) = self.delete_unopened(call).await? {
            return Ok(deleted);
        }
        let mut uid = String::new();
        let propose = |current: Option<&Current>| {
            let current = current.ok_or_else(|| call.not_found())?;
            uid = current.object.uid().to_owned();
            check_preconditions(call, &current.object)?;
            let decision = decide(call.kind, &current.object, &call.options, self.env.now());
            let releases = match decision {
                Decision::Delete => allocate::all_of(call.kind, &current.object),
                _ => Vec::new(),
            };
            let plan = WritePlan { decision, reservations: Vec::new(), releases };
            // An eviction was admitted as one.
            Ok(if call.evicts { Proposal::Plain(plan) } else { Proposal::Remove(plan) })
        };
        let written = self.transact(call, &call.key(), propose).await?;
        match written.how {
            // Upstream's has no code.
            How::Deleted if !call.kind.strategy.returns_deleted => {
                Ok(get::status(Status { code: 0, ..call.success(&uid) }))
            }
            _ => Ok(get::object(written.bytes, false)),
        }
    }
}

pub(super) fn check_propagation(options: &Options) -> Result<(), Status> {
    match options.propagation_policy.as_deref() {
        None | Some("" | "Background" | "Foreground" | "Orphan") => Ok(()),
        Some(other) => Err(Status::bad_request(format!(
            "propagationPolicy: Unsupported value: \"{other}\": supported values: \"Foreground\", \"Background\", \
             \"Orphan\""
        ))),
    }
}

pub(super) fn check_preconditions(call: &ResolvedRequest, object: &Object) -> Result<(), Status> {
    let Some(wanted) = &call.options.preconditions else { return Ok(()) };
    if let Some(uid) = wanted.uid.as_deref().filter(|uid| *uid != object.uid()) {
        return Err(call.conflict(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been \
             deleted and then recreated",
            object.uid()
        )));
    }
    if let Some(rv) = wanted.resource_version.as_deref().filter(|rv| *rv != object.resource_version()) {
        return Err(call.conflict(format!(
            "the ResourceVersion in the precondition ({rv}) does not match the ResourceVersion in record ({}). The \
             object might have been modified",
            object.resource_version()
        )));
    }
    Ok(())
}

/// The effect of a delete on an object.
fn decide(kind: &Kind, old: &Object, options: &Options, now: Timestamp) -> Decision {
    match kind.built_in() {
        "Namespace" => return decide_namespace(old, options, now),
        "CustomResourceDefinition" => return decide_definition(old, options, now),
        _ => {}
    }
    let mut object = old.clone();
    let grace = begin(kind, &mut object, options, now);
    if grace == Grace::Pending {
        // A delete does not change finalizers while another one is pending.
        return Decision::Keep;
    }
    set_finalizers(&mut object, options);
    let held = !object.finalizers().is_empty();
    match grace {
        Grace::Seconds(seconds) if held || seconds > 0 => {}
        _ if held => mark_as_deleting(&mut object, now),
        _ => return Decision::Delete,
    }
    if object == *old { Decision::Keep } else { Decision::Put(object) }
}

/// A Namespace terminates first, and is removed when its content and finalizers are gone.
fn decide_namespace(old: &Object, options: &Options, now: Timestamp) -> Decision {
    let mut object = old.clone();
    if old.is_terminating() {
        let empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
        let finished = empty(&old.0["spec"]["finalizers"]) && old.finalizers().is_empty();
        return if finished { Decision::Delete } else { Decision::Keep };
    }
    set_finalizers(&mut object, options);
    object.set_meta("deletionTimestamp", Value::from(timestamp(now)));
    object.0["status"]["phase"] = "Terminating".into();
    Decision::Put(object)
}

/// A definition's objects are deleted first.
fn decide_definition(old: &Object, options: &Options, now: Timestamp) -> Decision {
    if old.is_terminating() {
        return if old.finalizers().is_empty() { Decision::Delete } else { Decision::Keep };
    }
    let mut object = old.clone();
    set_finalizers(&mut object, options);
    custom::begin(&mut object, &timestamp(now));
    object.set_meta("deletionGracePeriodSeconds", Value::from(0));
    count_generation(&mut object);
    Decision::Put(object)
}

fn begin(kind: &Kind, object: &mut Object, options: &Options, now: Timestamp) -> Grace {
    let Some(default) = (kind.strategy.default_grace)(object) else { return Grace::None };
    // Upstream treats a negative period as one second.
    let asked = options.grace_period_seconds.map(|s| if s < 0 { 1 } else { s });

    if let Some(deleted_at) = object.deletion_timestamp() {
        let Some(running) = object.0["metadata"]["deletionGracePeriodSeconds"].as_i64() else { return Grace::None };
        let Some(shorter) = asked.filter(|seconds| *seconds < running) else { return Grace::Pending };
        // Overflow: a time at the end of the calendar does not tell when the deletion began.
        let began = deleted_at.saturating_sub(SignedDuration::from_secs(running)).unwrap_or(now);
        let began = if began.as_second() < 0 { now } else { began };
        let at = began.saturating_add(SignedDuration::from_secs(shorter)).unwrap_or(now);
        set_deletion(object, at, shorter);
        return Grace::Seconds(shorter);
    }

    // A default of 0 means that there is nothing to wait for, whatever was requested.
    let seconds = if default == 0 { 0 } else { asked.unwrap_or(default.max(1)) };
    let at = now.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(now);
    set_deletion(object, at, seconds);
    count_generation(object);
    Grace::Seconds(seconds)
}

fn set_deletion(object: &mut Object, at: Timestamp, seconds: i64) {
    object.set_meta("deletionTimestamp", Value::from(timestamp(at)));
    object.set_meta("deletionGracePeriodSeconds", Value::from(seconds));
}

/// Deleted, but kept by finalizers.
fn mark_as_deleting(object: &mut Object, now: Timestamp) {
    match object.deletion_timestamp() {
        Some(at) if at <= now => {}
        Some(_) => object.set_meta("deletionTimestamp", Value::from(timestamp(now))),
        None => {
            object.set_meta("deletionTimestamp", Value::from(timestamp(now)));
            count_generation(object);
        }
    }
    object.set_meta("deletionGracePeriodSeconds", Value::from(0));
}

/// Deletion counts as a change of the spec.
fn count_generation(object: &mut Object) {
    if object.generation() > 0 {
        let next = object.generation() + 1;
        object.set_meta("generation", Value::from(next));
    }
}

/// Sets the garbage collector's two finalizers by the propagation policy; without one they stay.
fn set_finalizers(object: &mut Object, options: &Options) {
    let policy = options.propagation_policy.as_deref().unwrap_or("");
    if policy.is_empty() {
        return;
    }
    let others = object.finalizers().into_iter().filter(|f| *f != FOREGROUND && *f != ORPHAN);
    let mut finalizers: Vec<Value> = others.map(Value::from).collect();
    match policy {
        "Foreground" => finalizers.push(FOREGROUND.into()),
        "Orphan" => finalizers.push(ORPHAN.into()),
        _ => {}
    }
    let had_none = object.finalizers().is_empty();
    match finalizers.is_empty() {
        true if had_none => {}
        true => object.set_meta("finalizers", None),
        false => object.set_meta("finalizers", Value::Array(finalizers)),
    }
}
