//! TTL after finished: deletes Jobs when their `ttlSecondsAfterFinished` is over.
//!
//! Upstream: `pkg/controller/ttlafterfinished`.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;

use super::{Context, Plan, Row, Writes, job, meta, write::Write};
use podwright_client::Key;

pub const ROW: Row = Row {
    name: "ttl-after-finished-controller",
    workers: 2,
    writes: Writes::Of(&["jobs.batch"]),
    watch: |watches| {
        let jobs = &watches.world.informers.jobs.clone();
        watches.on(jobs, |_, queue, change| {
            if change.new.as_ref().is_some_and(|job| expiry(job).is_some()) {
                queue.add(change.key.clone());
            }
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| match context.world.informers.jobs.get(key) {
        Some(job) => plan(&job, context.now),
        None => Plan::default(),
    },
};

/// When the Job expires, if it has finished and has a TTL.
fn expiry(job: &Job) -> Option<Timestamp> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    let since = job::finished(job)?.last_transition_time.as_ref()?.0;
    Some(meta::later(since, Duration::from_secs(ttl.unsigned_abs().into())))
}

/// Deletes an expired Job with its Pods, if it has not changed: its TTL may have.
pub fn plan(job: &Job, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let Some(expiry) = expiry(job).filter(|_| !meta::is_terminating(&job.metadata)) else { return plan };
    match meta::until(now, expiry) {
        Some(wait) => plan.requeue(wait),
        None => {
            let mut write = Write::delete(job);
            write.request.options.propagation_policy = Some("Foreground".into());
            if let Some(preconditions) = &mut write.request.options.preconditions {
                preconditions.resource_version = job.metadata.resource_version.clone();
            }
            plan.then(vec![write]);
        }
    }
    plan
}
