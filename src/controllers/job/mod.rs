//! Jobs: run Pods to completion as often as requested, and count each result once.
//!
//! Upstream: `pkg/controller/job/job_controller.go`. [`tally`] sums up the Pods, [`mod@record`] counts results, [`work`] decides
//! which Pods to create and delete; this file decides the Job's state and assembles the plan.

pub mod backoff;
pub mod indexes;
pub mod last_success;
mod orphans;
mod pods;
pub mod policy;
mod record;
mod tally;
pub mod wake;
mod work;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    batch::v1::{Job, JobCondition, JobStatus},
    core::v1::Pod,
};

use self::{
    record::{Ending, nonzero, record},
    tally::{Tally, number},
    work::Needs,
};
use super::{
    Context, Plan, Row, Work, Writes,
    conditions::{self, Condition},
    meta::{self, Claim},
    short_lives::Maker,
    write::{Note, Write},
};
use podwright_client::{Informers, Key, reference};

pub use orphans::ORPHANS;
pub use pods::FINALIZER;
pub use tally::Inputs;

/// Upstream's name of itself in `spec.managedBy`.
const MANAGER: &str = "kubernetes.io/job-controller";

pub const ROW: Row = Row {
    name: "job-controller",
    workers: 5,
    writes: Writes::Of(&["jobs.batch", "pods"]),
    watch: wake::watch,
    reconcile,
};

fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let (informers, successes) = (&context.world.informers, &context.world.last_successes);
    let Some(job) = informers.jobs.get(key).filter(|job| !is_finished(job) && is_ours(job)) else {
        successes.forget(key);
        return Plan::default();
    };
    let Some(selector) = selector(&job) else { return Plan::default() };
    // Read before the Pods, which are at least this fresh.
    let seen = informers.pods.resource_version().parse().unwrap_or(0);
    let orphans = informers.pods.indexed(Informers::BY_OWNER, &format!("{}/", key.namespace));
    // Those that have ended and are counted stay until somebody removes them, and each of thousands ends one after the other: they are
    // looked at no more.
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    let mut all = informers.pods.indexed(Informers::OPEN, uid);
    all.extend(orphans.into_iter().filter(|pod| meta::matches(&selector, &pod.metadata)));

    let (mut claims, mut own) = (Vec::new(), Vec::new());
    for pod in all {
        match meta::claim(&*job, &selector, &*pod) {
            Claim::Own => own.push(pod),
            Claim::Other => {}
            Claim::Adopt(write) => claims.push(with_finalizers(write, adopted(&pod))),
            Claim::Release(write) => claims.push(with_finalizers(write, pods::others(&pod))),
        }
    }
    if !claims.is_empty() {
        // Adoption and release come before counting.
        let mut plan = Plan::default();
        plan.then(claims);
        return plan;
    }
    let most = context.most_pods(&key.namespace, &Maker::of(&*job));
    let last_success = match waits_after_failures(&job, &own) {
        true => successes.of(key, &job, &own, || informers.pods.indexed(Informers::BY_OWNER, uid)),
        false => {
            successes.forget(key);
            None
        }
    };
    let (now, failure) = (context.now, context.failure());
    plan(&Inputs { job: &job, pods: &own, last_success, seen, now, failure, most })
}

/// Whether the Job has failures for which it waits as a whole: how long, depends on when a Pod has last succeeded.
fn waits_after_failures(job: &Job, own: &[Arc<Pod>]) -> bool {
    let has_failed = job.status.as_ref().is_some_and(|status| status.failed.unwrap_or(0) > 0)
        || own.iter().any(|pod| pods::is_failed(job, pod));
    has_failed && !pods::has_limit_per_index(job)
}

/// The finalizers of a Pod that becomes the Job's own.
fn adopted(pod: &Pod) -> serde_json::Value {
    let mut all = pod.metadata.finalizers.clone().unwrap_or_default();
    all.retain(|finalizer| finalizer != FINALIZER);
    all.push(FINALIZER.to_owned());
    all.into()
}

/// Lets a change of a Pod's owners also change its finalizers.
fn with_finalizers(mut write: Write, finalizers: serde_json::Value) -> Write {
    if let Some(patch) = &mut write.request.body {
        patch["metadata"]["finalizers"] = finalizers;
    }
    write
}

fn selector(job: &Job) -> Option<podwright_api::selector::LabelSelector> {
    meta::selector(job.spec.as_ref()?.selector.as_ref()?)
}

/// Whether this controller manages the Job.
fn is_ours(job: &Job) -> bool {
    job.spec.as_ref().is_some_and(|spec| spec.managed_by.as_deref().is_none_or(|manager| manager == MANAGER))
}

/// The terminal condition of a Job, if any.
pub fn finished(job: &Job) -> Option<&JobCondition> {
    let all = job.status.as_ref()?.conditions.as_deref()?;
    all.iter().find(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")
}

pub fn is_finished(job: &Job) -> bool {
    finished(job).is_some()
}

/// Plans an unfinished Job.
pub fn plan(view: &Inputs<'_>) -> Plan {
    let mut plan = Plan::default();
    let tally = Tally::of(view);
    let mut status = view.job.status.clone().unwrap_or_default();
    if status.start_time.is_none() && !view.spec().is_suspended() {
        status.start_time = Some(meta::time(view.now));
    }
    if is_resumed(view, &status) {
        // The deadline starts now.
        status.start_time = Some(meta::time(view.now));
    }
    let mut verdict = standing(view, &tally, &status, &mut plan);
    let mut work = Needs::default();
    match &verdict {
        Some(verdict) => work.end(&tally, ending(verdict)),
        None if meta::is_terminating(&view.job.metadata) => {}
        None => {
            work = Needs::of(view, &tally);
            verdict = completed(view, &tally, &work);
        }
    }
    let mut told = Vec::new();
    if verdict.is_none() && !meta::is_terminating(&view.job.metadata) {
        told.extend(suspend_or_resume(view, &mut status));
    }
    let recorded = record(view, &tally, verdict.as_ref().map(ending), &mut status);
    status.active = nonzero(number(tally.active.len()));
    status.ready = Some(number(tally.ready));
    status.terminating = Some(number(tally.ending));
    if let Some(verdict) = verdict {
        conditions::set(status.conditions.get_or_insert_default(), verdict.clone());
        if is_over(view, &tally, &status) {
            told.extend(finish(view, &mut status, &verdict));
        }
    }
    put_together(view, plan, status, recorded, work, told)
}

/// The status comes first if it records results: later writes depend on it. If it only reports the number of Pods, it waits until
/// it can include the result of the writes, or why there is none.
fn put_together(
    view: &Inputs<'_>,
    mut plan: Plan,
    status: JobStatus,
    recorded: record::Recorded<'_>,
    work: Needs<'_>,
    mut told: Vec<Note>,
) -> Plan {
    let records = substance(&status) != substance(&view.job.status.clone().unwrap_or_default());
    let is_due = work.is_empty() || view.failure.is_some();
    let mut recording = None;
    let mut new = view.job.clone();
    new.status = Some(status);
    if let Some(mut write) = Write::shared_status(view.job, &new) {
        write.guards.extend(recorded.guard);
        if records || is_due {
            write.done = std::mem::take(&mut told);
        }
        *(match (records, is_due) {
            (true, _) => &mut recording,
            (false, true) => &mut plan.report,
            (false, false) => &mut plan.report_if_held,
        }) = Some(write);
    }
    plan.notes.extend(told);
    let ended = recorded.released.iter().map(|pod| pods::release(pod).into());
    let dismissed = work.dismissed.iter().map(|pod| {
        let first = pods::is_tracked(pod).then(|| pods::dismiss(pod));
        Work::from(first).then(pods::delete(view.job, pod))
    });
    let deleted = work.deleted.iter().map(|pod| pods::delete(view.job, pod).into());
    let pods = Work::Beside(ended.chain(dismissed).chain(deleted).collect());
    let created = work.created.into_iter().map(Work::from).collect();
    plan.work = Work::from(recording).then(pods.beside(Work::SlowStart(created)));
    plan.maker = Some(Maker::of(view.job));
    work.wait.into_iter().for_each(|wait| plan.requeue(wait));
    plan
}

/// The status without the current numbers of Pods.
fn substance(status: &JobStatus) -> JobStatus {
    let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    JobStatus {
        active: None,
        ready: None,
        terminating: None,
        start_time: None,
        uncounted_terminated_pods: Some(uncounted),
        ..status.clone()
    }
}

fn condition(view: &Inputs<'_>, kind: &str, reason: &str, message: impl AsRef<str>) -> JobCondition {
    JobCondition::new(kind, "True", reason, message.as_ref(), view.now)
}

fn ending(verdict: &JobCondition) -> Ending {
    match verdict.type_.as_str() {
        "SuccessCriteriaMet" => Ending::Success,
        _ => Ending::Failure,
    }
}

/// The condition that announces the Job's result, if that is decided: it is never changed.
fn standing(view: &Inputs<'_>, tally: &Tally<'_>, status: &JobStatus, plan: &mut Plan) -> Option<JobCondition> {
    let all = status.conditions.as_deref().unwrap_or_default();
    let known = |kind| conditions::find(all, kind).filter(|c: &&JobCondition| c.status == "True").cloned();
    known("SuccessCriteriaMet")
        .or_else(|| known("FailureTarget"))
        .or_else(|| failed_by_policy(view, tally))
        .or_else(|| failed_by_limits(view, tally, status, plan))
        .or_else(|| decided_by_indexes(view, tally))
}

fn failed_by_policy(view: &Inputs<'_>, tally: &Tally<'_>) -> Option<JobCondition> {
    view.spec().0.pod_failure_policy.as_ref()?;
    let mut failed = view.pods.iter().filter(|pod| pods::is_failed(view.job, pod) && !tally.was_dismissed(pod));
    failed.find_map(|pod| match pods::verdict(view.job, pod) {
        policy::Verdict::FailJob(why) => Some(condition(view, "FailureTarget", "PodFailurePolicy", why)),
        _ => None,
    })
}

fn failed_by_limits(view: &Inputs<'_>, tally: &Tally<'_>, status: &JobStatus, plan: &mut Plan) -> Option<JobCondition> {
    let spec = view.spec();
    let limit = spec.backoff_limit();
    let restarts = if spec.restarts_on_failure() { restarts(view.pods) } else { 0 };
    if tally.failed > limit || restarts > 0 && restarts >= limit {
        let why = "Job has reached the specified backoff limit";
        return Some(condition(view, "FailureTarget", "BackoffLimitExceeded", why));
    }
    let seconds = spec.0.active_deadline_seconds.filter(|_| !spec.is_suspended())?;
    let started = status.start_time.as_ref()?.0;
    let deadline = meta::later(started, Duration::from_secs(seconds.unsigned_abs()));
    if let Some(wait) = meta::until(view.now, deadline) {
        plan.requeue(wait);
        return None;
    }
    let why = "Job was active longer than specified deadline";
    Some(condition(view, "FailureTarget", "DeadlineExceeded", why))
}

/// How often containers of unfinished Pods were restarted.
fn restarts(pods: &[Arc<Pod>]) -> i32 {
    let running = pods.iter().filter(|pod| matches!(meta::phase(pod), "Running" | "Pending"));
    let containers = running.filter_map(|pod| pod.status.as_ref()).flat_map(|status| {
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
    });
    containers.map(|container| container.restart_count).fold(0, i32::saturating_add)
}

fn decided_by_indexes(view: &Inputs<'_>, tally: &Tally<'_>) -> Option<JobCondition> {
    if !pods::is_indexed(view.job) {
        return None;
    }
    let spec = view.spec().0;
    let completions = spec.completions.unwrap_or(0);
    let failed = tally.failed_indexes.as_ref().map_or(0, indexes::Indexes::count);
    if failed > 0 && spec.max_failed_indexes.is_some_and(|most| failed > most) {
        let why = "Job has exceeded the specified maximal number of failed indexes";
        return Some(condition(view, "FailureTarget", "MaxFailedIndexesExceeded", why));
    }
    if failed > 0 && failed + tally.completed.count() >= completions {
        return Some(condition(view, "FailureTarget", "FailedIndexes", "Job has failed indexes"));
    }
    let met = policy::success(spec.success_policy.as_ref(), completions, &tally.completed)?;
    Some(condition(view, "SuccessCriteriaMet", "SuccessPolicy", met))
}

/// Whether the Job is complete: as many successes as completions or, for a work queue, any success and nothing running.
fn completed(view: &Inputs<'_>, tally: &Tally<'_>, work: &Needs<'_>) -> Option<JobCondition> {
    let enough = match view.spec().0.completions {
        Some(completions) => tally.succeeded >= completions,
        None => tally.succeeded > 0,
    };
    let why = "Reached expected number of succeeded pods";
    (enough && tally.active.is_empty() && work.created.is_empty())
        .then(|| condition(view, "SuccessCriteriaMet", "CompletionsReached", why))
}

/// Whether the Job was suspended until now.
fn is_resumed(view: &Inputs<'_>, status: &JobStatus) -> bool {
    let was: Option<&JobCondition> = conditions::find(status.conditions.as_deref().unwrap_or_default(), "Suspended");
    was.is_some_and(|was| was.status == "True") && !view.spec().is_suspended()
}

/// Maintains the condition `Suspended`; returns an event when it changes.
fn suspend_or_resume(view: &Inputs<'_>, status: &mut JobStatus) -> Option<Note> {
    let about = reference(view.job);
    let all = status.conditions.get_or_insert_default();
    let was = conditions::find(all, "Suspended").map(|condition| condition.status.clone());
    let note = match (view.spec().is_suspended(), was.as_deref()) {
        (true, Some("True")) | (false, None | Some("False")) => None,
        (true, _) => {
            conditions::set(all, condition(view, "Suspended", "JobSuspended", "Job suspended"));
            Some(Note::normal(about, "Suspended", "Job suspended"))
        }
        (false, Some(_)) => {
            let resumed = JobCondition::new("Suspended", "False", "JobResumed", "Job resumed", view.now);
            conditions::set(all, resumed);
            Some(Note::normal(about, "Resumed", "Job resumed"))
        }
    };
    if status.conditions.as_ref().is_some_and(Vec::is_empty) {
        status.conditions = None;
    }
    note
}

/// Whether nothing of the Job is left to delete or count.
fn is_over(view: &Inputs<'_>, tally: &Tally<'_>, status: &JobStatus) -> bool {
    let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let counted = uncounted.succeeded.is_none() && uncounted.failed.is_none();
    let released = !view.pods.iter().any(|pod| pods::is_tracked(pod));
    counted && released && tally.ending == 0 && tally.active.is_empty()
}

/// The terminal condition that was announced, and its events.
fn finish(view: &Inputs<'_>, status: &mut JobStatus, verdict: &JobCondition) -> Vec<Note> {
    let about = || reference(view.job);
    let (reason, message) = (verdict.reason(), verdict.message());
    let all = status.conditions.get_or_insert_default();
    if ending(verdict) == Ending::Failure {
        conditions::set(all, condition(view, "Failed", reason, message));
        let reason = FAILURES.iter().find(|known| **known == reason).copied().unwrap_or("Failed");
        return vec![Note::warning(about(), reason, message)];
    }
    conditions::set(all, condition(view, "Complete", reason, message));
    status.completion_time = Some(meta::time(view.now));
    let mut notes = vec![Note::normal(about(), "Completed", "Job completed")];
    if view.spec().0.completions.is_some_and(|wanted| status.succeeded.unwrap_or(0) > wanted) {
        let why = "Too many succeeded pods running after completion count reached";
        notes.push(Note::warning(about(), "TooManySucceededPods", why));
    }
    notes
}

/// The reasons for which Jobs fail.
const FAILURES: &[&str] =
    &["PodFailurePolicy", "BackoffLimitExceeded", "DeadlineExceeded", "MaxFailedIndexesExceeded", "FailedIndexes"];
