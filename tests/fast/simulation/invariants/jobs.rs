//! Jobs and CronJobs: how many at once, how often, and when.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::api::{
    batch::v1::{CronJob, Job},
    core::v1::Pod,
};
use podwright::{
    api::cron::Schedule,
    client::Key,
    controllers::{
        job::{FINALIZER, finished, is_finished},
        meta,
    },
};

use super::super::{
    past::LAG,
    world::{Change, Step, World},
};

fn job_of<'w>(world: &'w World, pod: &Pod) -> Option<&'w Arc<Job>> {
    let owner = meta::controller(&pod.metadata).filter(|owner| owner.kind == "Job")?;
    let job = world.jobs.get(&Key::new(meta::namespace(&pod.metadata), &owner.name))?;
    (job.metadata.uid.as_ref() == Some(&owner.uid)).then_some(job)
}

fn is_held(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

pub fn parallelism(world: &World, step: &Step) -> Option<String> {
    let Step::Pod(change) = step else { return None };
    let job = job_of(world, change.made()?)?;
    let bounds = world.past.bounds.get(&job.metadata.uid)?;
    let replaces_late = job.spec.as_ref()?.pod_replacement_policy.as_deref() == Some("Failed");
    // With that policy one that is going counts until it has ended.
    let counts = |pod: &Pod| meta::is_active(pod) || (replaces_late && !meta::is_finished(pod));
    let number = world.pods.owned(&job.metadata.uid).filter(|pod| counts(pod)).count() as i32;
    (number > bounds.most).then(|| format!("{} is the {number}th of {bounds:?}", change.key))
}

fn index_of(pod: &Pod) -> Option<&str> {
    meta::annotation(&pod.metadata, "batch.kubernetes.io/job-completion-index")
}

pub fn index(world: &World, step: &Step) -> Option<String> {
    let Step::Pod(change) = step else { return None };
    let made = change.made()?;
    let (job, at) = (job_of(world, made)?, index_of(made)?);
    let mut others = world.pods.owned(&job.metadata.uid).filter(|pod| pod.metadata.uid != made.metadata.uid);
    let other = others.find(|p| index_of(p) == Some(at) && (meta::is_active(p) || meta::phase(p) == "Succeeded"))?;
    Some(format!("{} works on what {} does", change.key, meta::name(&other.metadata)))
}

fn succeeded(job: &Job) -> i32 {
    job.status.as_ref().and_then(|status| status.succeeded).unwrap_or(0)
}

fn failed(job: &Job) -> i32 {
    job.status.as_ref().and_then(|status| status.failed).unwrap_or(0)
}

pub fn counts(world: &World, step: &Step) -> Option<String> {
    let Step::Job(change) = step else { return None };
    let new = change.new.as_ref()?;
    let happened = world.past.succeeded.get(new.metadata.uid.as_deref()?).map_or(0, |pods| pods.len()) as i32;
    let counted = succeeded(new);
    if counted > happened {
        return Some(format!("{} counts {counted} of {happened}", change.key));
    }
    let completions = new.spec.as_ref().and_then(|spec| spec.completions);
    let done = finished(new);
    let is_complete = done.is_some_and(|done| done.type_ == "Complete");
    if is_complete && new.spec.as_ref()?.success_policy.is_none() && completions.is_some_and(|all| counted < all) {
        return Some(format!("{} is complete with {counted} of {completions:?}", change.key));
    }
    let old = change.old.as_ref()?;
    if succeeded(old) > counted || failed(old) > failed(new) {
        return Some(format!("{} forgets what it has counted", change.key));
    }
    (is_finished(old) && finished(old) != done).then(|| format!("{} is finished otherwise than before", change.key))
}

pub fn let_go(world: &World) -> Vec<String> {
    let held =
        world.pods.all().filter(|(_, pod)| is_held(pod) && job_of(world, pod).is_none_or(|job| is_finished(job)));
    held.map(|(key, _)| format!("{key} is still held")).collect()
}

/// A Job that a CronJob has just made.
fn started<'w>(world: &'w World, step: &'w Step) -> Option<(&'w Change<Job>, &'w Arc<CronJob>, &'w str)> {
    let Step::Job(change) = step else { return None };
    let job = change.made()?;
    let owner = meta::controller(&job.metadata).filter(|owner| owner.kind == "CronJob")?;
    let cron = world.cron_jobs.get(&Key::new(change.key.namespace.clone(), &owner.name))?;
    let at = meta::annotation(&job.metadata, "batch.kubernetes.io/cronjob-scheduled-timestamp")?;
    (cron.metadata.uid.as_ref() == Some(&owner.uid)).then_some((change, cron, at))
}

pub fn one_for_a_time(world: &World, step: &Step) -> Option<String> {
    let (change, cron, at) = started(world, step)?;
    let number = world.past.started.get(&(cron.metadata.uid.clone()?, at.to_owned()))?.len();
    (number > 1).then(|| format!("{} is the {number}th for {at}", change.key))
}

pub fn due(world: &World, step: &Step) -> Option<String> {
    let (change, cron, at) = started(world, step)?;
    let spec = cron.spec.as_ref()?;
    let at = at.parse::<Timestamp>().ok()?;
    // A controller may act on any of those that were wished lately. An interval counts from the last time; a calendar has
    // its own.
    let is_time = world.past.schedules.get(&cron.metadata.uid)?.iter().any(|(schedule, zone)| {
        let zone = zone.as_deref().and_then(|name| TimeZone::get(name).ok());
        let zone = zone.or(world.zone.clone()).unwrap_or(TimeZone::UTC);
        let schedule = Schedule::parse(schedule).ok();
        schedule.is_some_and(|schedule| match schedule {
            Schedule::Every(_) => true,
            Schedule::Fields(_) => schedule.next(at - SignedDuration::from_secs(1), &zone) == Some(at),
        })
    });
    let deadline = spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    let late = deadline.is_some_and(|deadline| world.now.duration_since(at) > deadline + LAG);
    let made = cron.metadata.creation_timestamp.as_ref()?.0;
    (!is_time || late || at > world.now + LAG || at < made)
        .then(|| format!("{} for {at} of {:?} is made at {}", change.key, spec.schedule, world.now))
}

/// The others of a CronJob that have not finished.
fn unfinished<'w>(world: &'w World, cron: &'w CronJob, but: &'w Key) -> impl Iterator<Item = &'w Arc<Job>> {
    let others = world.jobs.owned(&cron.metadata.uid).filter(|job| Key::of(&***job) != *but);
    others.filter(|job| !is_finished(job))
}

pub fn forbid(world: &World, step: &Step) -> Option<String> {
    let (change, cron, _) = started(world, step)?;
    let forbids = cron.spec.as_ref()?.concurrency_policy.as_deref() == Some("Forbid");
    let other = unfinished(world, cron, &change.key).find(|_| forbids)?;
    Some(format!("{} starts beside {}", change.key, meta::name(&other.metadata)))
}

pub fn replace(world: &World, step: &Step) -> Option<String> {
    let (change, cron, _) = started(world, step)?;
    let replaces = cron.spec.as_ref()?.concurrency_policy.as_deref() == Some("Replace");
    let other = unfinished(world, cron, &change.key).find(|job| replaces && !meta::is_terminating(&job.metadata))?;
    Some(format!("{} starts beside {}", change.key, meta::name(&other.metadata)))
}

pub fn suspended(world: &World, step: &Step) -> Option<String> {
    let (change, cron, _) = started(world, step)?;
    let since = *world.past.suspended.get(&cron.metadata.uid)?;
    (world.now.duration_since(since) > LAG).then(|| format!("{} starts, suspended since {since}", change.key))
}

pub fn history(world: &World) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, cron) in world.cron_jobs.all() {
        let Some(spec) = cron.spec.as_ref() else { continue };
        let mut ends: BTreeMap<&str, i32> = BTreeMap::new();
        for job in world.jobs.owned(&cron.metadata.uid) {
            if let Some(end) = finished(job) {
                *ends.entry(end.type_.as_str()).or_default() += 1;
            }
        }
        let limits = [
            ("Complete", spec.successful_jobs_history_limit.unwrap_or(3)),
            ("Failed", spec.failed_jobs_history_limit.unwrap_or(1)),
        ];
        for (end, limit) in limits {
            if ends.get(end).is_some_and(|count| *count > limit) {
                wrong.push(format!("{key} keeps {ends:?}, limits are {limits:?}"));
            }
        }
    }
    wrong
}
