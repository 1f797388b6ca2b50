//! The status of a Deployment: the counts, and the conditions Available, Progressing and ReplicaFailure.
//!
//! Upstream: `pkg/controller/deployment/progress.go` and `sync.go`.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet, ReplicaSetStatus};

use super::{Rollout, Set, is_paused, meta, replicas, rolling};
use crate::{
    Failure,
    conditions::{self, Condition},
};

pub const CREATE_ERROR: &str = "ReplicaSetCreateError";
/// Upstream only logs this.
pub const UPDATE_ERROR: &str = "ReplicaSetUpdateError";
const AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PROGRESSING: &str = "Progressing";

/// The counts, and the existing conditions.
pub fn of(rollout: &Rollout<'_>) -> DeploymentStatus {
    let deployment = rollout.deployment;
    let count = |set: &Set, field: fn(&ReplicaSetStatus) -> i32| set.old.status.as_ref().map_or(0, field);
    let sum = |field: fn(&ReplicaSetStatus) -> i32| -> i32 { rollout.sets().map(|set| count(set, field)).sum() };
    let total = sum(|status| status.replicas);
    let available = sum(|status| status.available_replicas.unwrap_or(0));
    let before = deployment.status.clone().unwrap_or_default();
    DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: Some(total),
        updated_replicas: Some(rollout.new.as_ref().map_or(0, |new| count(new, |status| status.replicas))),
        ready_replicas: Some(sum(|status| status.ready_replicas.unwrap_or(0))),
        available_replicas: Some(available),
        unavailable_replicas: Some((total - available).max(0)),
        collision_count: before.collision_count,
        terminating_replicas: Some(sum(|status| status.terminating_replicas.unwrap_or(0))),
        conditions: before.conditions,
    }
}

/// Whether all Pods have the current template and are available.
pub fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = Some(replicas(deployment));
    status.updated_replicas == wanted
        && status.replicas == wanted
        && status.available_replicas == wanted
        && status.observed_generation >= deployment.metadata.generation
}

/// Why creating the new ReplicaSet failed, if it was tried.
pub fn refusal(new: &ReplicaSet, failure: Option<&Failure>) -> Option<String> {
    let failure = failure.filter(|failure| failure.reason == CREATE_ERROR)?;
    Some(format!("Failed to create new replica set \"{}\": {}", meta::name(&new.metadata), failure.message))
}

/// Whether there was progress since the previous status.
fn has_moved(deployment: &Deployment, new: &DeploymentStatus) -> bool {
    let old = deployment.status.clone().unwrap_or_default();
    let n = |count: Option<i32>| count.unwrap_or(0);
    let outdated = |status: &DeploymentStatus| n(status.replicas) - n(status.updated_replicas);
    n(new.updated_replicas) > n(old.updated_replicas)
        || outdated(new) < outdated(&old)
        || n(new.ready_replicas) > n(old.ready_replicas)
        || n(new.available_replicas) > n(old.available_replicas)
}

/// The progress deadline, if any.
fn deadline(deployment: &Deployment) -> Option<Duration> {
    let seconds = deployment.spec.as_ref().and_then(|spec| spec.progress_deadline_seconds)?;
    (seconds != i32::MAX).then(|| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// The status, and when to check again for the progress deadline.
pub fn next(
    deployment: &Deployment,
    rollout: &Rollout<'_>,
    created: Option<&ReplicaSet>,
    now: Timestamp,
    failure: Option<&Failure>,
) -> (DeploymentStatus, Option<Duration>) {
    let mut status = of(rollout);
    let mut all = status.conditions.take().unwrap_or_default();
    available(deployment, &status, &mut all, now);
    fail(rollout, &mut all);
    let mut requeue = None;
    match deadline(deployment) {
        None => conditions::remove(&mut all, PROGRESSING),
        Some(_) if meta::is_terminating(&deployment.metadata) => {}
        Some(_) if is_paused(deployment) => pause(&mut all, now),
        Some(deadline) => {
            progress(deployment, rollout, &status, created, deadline, &mut all, now, failure);
            requeue = stuck_at(deployment, &status, deadline, &all).and_then(|at| meta::until(now, at));
        }
    }
    status.conditions = (!all.is_empty()).then_some(all);
    (status, requeue)
}

fn available(deployment: &Deployment, status: &DeploymentStatus, all: &mut Vec<DeploymentCondition>, now: Timestamp) {
    let fewest = replicas(deployment) - rolling::max_unavailable(deployment);
    let (status, reason, message) = if status.available_replicas.unwrap_or(0) >= fewest {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    conditions::set(all, DeploymentCondition::new("Available", status, reason, message, now));
}

/// A ReplicaSet's failure becomes the Deployment's; the current one's takes precedence.
fn fail(rollout: &Rollout<'_>, all: &mut Vec<DeploymentCondition>) {
    let failures = rollout.new.iter().chain(&rollout.old).filter_map(|set| {
        let conditions = set.old.status.as_ref()?.conditions.as_deref()?;
        conditions::find(conditions, "ReplicaFailure").filter(|failure| failure.status == "True")
    });
    match { failures }.next().cloned() {
        Some(failure) => conditions::set(
            all,
            DeploymentCondition {
                type_: failure.type_,
                status: failure.status,
                reason: failure.reason,
                message: failure.message,
                last_update_time: failure.last_transition_time.clone(),
                last_transition_time: failure.last_transition_time,
            },
        ),
        None => conditions::remove(all, "ReplicaFailure"),
    }
}

fn pause(all: &mut Vec<DeploymentCondition>, now: Timestamp) {
    if conditions::find(all, PROGRESSING).is_none_or(|known| known.reason() != TIMED_OUT) {
        let new = DeploymentCondition::new(PROGRESSING, "Unknown", "DeploymentPaused", "Deployment is paused", now);
        conditions::set(all, new);
    }
}

#[allow(clippy::too_many_arguments)]
fn progress(
    deployment: &Deployment,
    rollout: &Rollout<'_>,
    status: &DeploymentStatus,
    created: Option<&ReplicaSet>,
    deadline: Duration,
    all: &mut Vec<DeploymentCondition>,
    now: Timestamp,
    failure: Option<&Failure>,
) {
    let known = conditions::find(all, PROGRESSING).cloned();
    let reason = known.as_ref().map_or("", |known| known.reason()).to_owned();
    let is = |status: &str, reason: &str, message: String| {
        DeploymentCondition::new(PROGRESSING, status, reason, &message, now)
    };
    let current = created.or(rollout.new.as_ref().map(|set| &set.new));
    let who = match current {
        Some(set) => format!("ReplicaSet \"{}\"", meta::name(&set.metadata)),
        None => format!("Deployment \"{}\"", meta::name(&deployment.metadata)),
    };
    if let Some(message) = created.and_then(|new| refusal(new, failure)) {
        return conditions::set(all, is("False", CREATE_ERROR, message));
    }
    if reason == "DeploymentPaused" {
        return conditions::set(all, is("Unknown", "DeploymentResumed", "Deployment is resumed".into()));
    }
    if let Some(created) = created {
        let message = format!("Created new replica set \"{}\"", meta::name(&created.metadata));
        return conditions::set(all, is("True", "NewReplicaSetCreated", message));
    }
    if reason == AVAILABLE && status.replicas == status.updated_replicas {
        // The rollout is complete: later failures of Pods are not a lack of progress.
        return;
    }
    if is_complete(deployment, status) {
        conditions::set(all, is("True", AVAILABLE, format!("{who} has successfully progressed.")));
    } else if has_moved(deployment, status) {
        conditions::replace(all, is("True", "ReplicaSetUpdated", format!("{who} is progressing.")));
    } else if (known.is_none() || reason == CREATE_ERROR) && rollout.new.is_some() {
        let message = format!("Found new replica set \"{}\"", current.map_or("", |set| meta::name(&set.metadata)));
        conditions::set(all, is("True", "FoundNewReplicaSet", message));
    } else if known.is_some_and(|known| has_timed_out(&known, deadline, now)) {
        conditions::set(all, is("False", TIMED_OUT, format!("{who} has timed out progressing.")));
    }
}

fn has_timed_out(known: &DeploymentCondition, deadline: Duration, now: Timestamp) -> bool {
    match known.reason() {
        AVAILABLE => false,
        TIMED_OUT => true,
        _ => known.last_update_time.as_ref().is_some_and(|since| meta::later(since.0, deadline) <= now),
    }
}

/// When an incomplete rollout exceeds its progress deadline.
fn stuck_at(
    deployment: &Deployment,
    status: &DeploymentStatus,
    deadline: Duration,
    all: &[DeploymentCondition],
) -> Option<Timestamp> {
    let known = conditions::find(all, PROGRESSING)?;
    if is_complete(deployment, status) || known.reason() == TIMED_OUT || known.reason() == AVAILABLE {
        return None;
    }
    known.last_update_time.as_ref().map(|since| meta::later(since.0, deadline))
}
