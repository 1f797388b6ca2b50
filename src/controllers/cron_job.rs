//! CronJobs: create Jobs on a schedule.
//!
//! Upstream: `pkg/controller/cronjob/cronjob_controllerv2.go`. The Jobs themselves show what was started: each has its scheduled
//! time in its name and in an annotation. So a crash between a Job's creation and the status update neither loses the Job nor
//! creates another. Scheduled times before the schedule was set are skipped: the server records when it changes.

mod times;
mod unseen;

use std::{cmp::Reverse, sync::Arc, time::Duration};

use jiff::{Timestamp, tz::TimeZone};
use k8s_openapi::{
    api::{
        batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job},
        core::v1::ObjectReference,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};

use super::{
    Context, Plan, Row, Work, Writes, job, meta,
    write::{Note, Write},
};
use podwright_api::{cron::Schedule, kinds::cron_job::SCHEDULED_SINCE};
use podwright_client::{Informers, Key, reference};

pub use times::{Missed, NeverComes, most_recent};

const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// Clocks differ slightly: a Job is started this much late, rather than too early to be due.
const PADDING: Duration = Duration::from_millis(100);

pub const ROW: Row = Row {
    name: "cronjob-controller",
    workers: 5,
    writes: Writes::Of(&["cronjobs.batch", "jobs.batch"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.cron_jobs);
        watches.owner(&informers.jobs, "CronJob");
    },
    reconcile: |context: &Context<'_>, key: &Key| {
        let informers = &context.world.informers;
        let Some(cron) = informers.cron_jobs.get(key) else { return Plan::default() };
        let mut jobs = informers.jobs.indexed(Informers::BY_OWNER, cron.metadata.uid.as_deref().unwrap_or_default());
        match unseen::jobs(&cron, &jobs, context.live_reads) {
            Ok(unseen) => jobs.extend(unseen),
            Err(plan) => return plan,
        }
        let taken = |name: &str| informers.jobs.get(&Key::new(&key.namespace, name)).is_some();
        plan(&Inputs { cron: &cron, jobs: &jobs, taken: &taken, local: &context.world.zone, now: context.now })
    },
};

/// The inputs of one reconcile.
pub struct Inputs<'a> {
    pub cron: &'a CronJob,
    /// Its own Jobs. One that its status lists is only missing if the server does not have it.
    pub jobs: &'a [Arc<Job>],
    /// Whether its namespace has any Job of this name.
    pub taken: &'a dyn Fn(&str) -> bool,
    /// The time zone of schedules without one.
    pub local: &'a TimeZone,
    pub now: Timestamp,
}

impl Inputs<'_> {
    fn spec(&self) -> &CronJobSpec {
        // The invariant: the server accepts no CronJob without a spec.
        self.cron.spec.as_ref().expect("a CronJob has a spec")
    }

    fn about(&self) -> ObjectReference {
        reference(self.cron)
    }

    /// The name of the Job for a time: deterministic, so that it is created only once.
    fn name_at(&self, at: Timestamp) -> String {
        format!("{}-{}", meta::name(&self.cron.metadata), at.as_second().div_euclid(60))
    }

    /// The scheduled time of a Job; `None` for Jobs created by hand from the same template.
    fn due(&self, job: &Job) -> Option<Timestamp> {
        let at: Timestamp = meta::annotation(&job.metadata, SCHEDULED)?.parse().ok()?;
        (self.name_at(at) == meta::name(&job.metadata)).then_some(at)
    }
}

/// What a CronJob needs now.
pub fn plan(view: &Inputs<'_>) -> Plan {
    let mut plan = Plan::default();
    let Seen { mut status, news } = look(view, &mut plan.notes);
    let (mut first, mut created) = (Vec::new(), None);
    if !meta::is_terminating(&view.cron.metadata) && view.spec().suspend != Some(true) {
        match start(view, &status, &mut plan.notes) {
            Start::Never => {}
            Start::Later(wait) => plan.requeue(wait),
            Start::Now { at, replaced, wait } => {
                let active = status.active.get_or_insert_default();
                active.retain(|known| !replaced.iter().any(|job| job.metadata.uid == known.uid));
                first = replaced.into_iter().map(|job| delete(view, job)).collect();
                created = Some(create(view, at));
                plan.requeue(wait);
            }
        }
    }
    status.active = status.active.filter(|active| !active.is_empty());
    let mut new = view.cron.clone();
    new.status = Some(status);
    let told = Write::status(view.cron, &new).map(|write| Write { done: news, ..write });
    plan.work = match first.is_empty() {
        true => {
            plan.report = told;
            created.into()
        }
        // Replaced Jobs are deleted before the status forgets them, and before another starts: whatever fails in between is
        // retried.
        false => Work::from(first).then(Work::from(told).beside(created)),
    };
    let surplus: Vec<Write> = surplus(view).into_iter().map(|job| delete(view, job)).collect();
    plan.work = plan.work.beside(surplus);
    plan
}

/// What the Jobs show.
struct Seen {
    status: CronJobStatus,
    /// Events to emit with the status, which records their cause only once.
    news: Vec<Note>,
}

/// The status according to the Jobs; `told` collects events for lasting conditions.
fn look(view: &Inputs<'_>, told: &mut Vec<Note>) -> Seen {
    let mut status = view.cron.status.clone().unwrap_or_default();
    let mut news = Vec::new();
    let mut saw = |job: &Job, finished: &str| {
        let message = format!("Saw completed job: {}, status: {finished}", meta::name(&job.metadata));
        news.push(Note::normal(view.about(), "SawCompletedJob", message));
    };
    let mut active = status.active.take().unwrap_or_default();
    let (listed, last) = (active.clone(), status.last_schedule_time.as_ref().map(|time| time.0));
    for job in view.jobs {
        let known = listed.iter().any(|known| known.uid == job.metadata.uid);
        let due = view.due(job);
        let is_new = !known && due.is_some_and(|due| last.is_none_or(|last| due > last));
        match job::finished(job) {
            Some(finished) if known || is_new => saw(job, &finished.type_),
            None if is_new && !meta::is_terminating(&job.metadata) => active.push(reference(&**job)),
            _ => {}
        }
        status.last_schedule_time = latest(status.last_schedule_time, due.map(Time));
        status.last_successful_time = latest(status.last_successful_time, succeeded(job));
    }
    active.retain(|known| {
        let job = view.jobs.iter().find(|job| job.metadata.uid == known.uid);
        if job.is_none() {
            let message = format!("Active job went missing: {}", known.name.as_deref().unwrap_or_default());
            news.push(Note::normal(view.about(), "MissingJob", message));
        }
        job.is_some_and(|job| !job::is_finished(job))
    });
    for job in view.jobs.iter().filter(|job| !job::is_finished(job) && view.due(job).is_none()) {
        let name = meta::name(&job.metadata);
        let message = format!("Saw a job that the controller did not create or forgot: {name}");
        told.push(Note::warning(view.about(), "UnexpectedJob", message));
    }
    status.active = Some(active);
    Seen { status, news }
}

fn latest(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    if b.as_ref().map(|time| time.0) > a.as_ref().map(|time| time.0) { b } else { a }
}

fn succeeded(job: &Job) -> Option<Time> {
    let done = job::finished(job).filter(|finished| finished.type_ == "Complete");
    done.and_then(|_| job.status.as_ref()?.completion_time.clone())
}

/// The oldest finished Jobs beyond the history limits.
fn surplus<'a>(view: &Inputs<'a>) -> Vec<&'a Arc<Job>> {
    let spec = view.spec();
    let mut all = Vec::new();
    for (kind, limit) in [("Complete", spec.successful_jobs_history_limit), ("Failed", spec.failed_jobs_history_limit)]
    {
        let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else { continue };
        let is_it = |job: &&Arc<Job>| {
            job::finished(job).is_some_and(|finished| finished.type_ == kind) && !meta::is_terminating(&job.metadata)
        };
        let mut finished: Vec<&Arc<Job>> = view.jobs.iter().filter(is_it).collect();
        // Jobs that never started come last.
        finished.sort_by_key(|job| {
            let started = job.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| Reverse(time.0));
            (Reverse(started), meta::name(&job.metadata).to_owned())
        });
        finished.truncate(finished.len().saturating_sub(limit));
        all.extend(finished);
    }
    all
}

/// Whether to start a Job.
enum Start<'a> {
    /// Not before something changes.
    Never,
    Later(Duration),
    Now {
        at: Timestamp,
        replaced: Vec<&'a Arc<Job>>,
        wait: Duration,
    },
}

fn start<'a>(view: &Inputs<'a>, status: &CronJobStatus, told: &mut Vec<Note>) -> Start<'a> {
    let spec = view.spec();
    let zone = match spec.time_zone.as_deref().map(|name| (name, TimeZone::get(name))) {
        None => view.local.clone(),
        Some((_, Ok(zone))) => zone,
        Some((name, Err(why))) => {
            let message = format!("invalid timeZone: {name:?}: {why}");
            told.push(Note::warning(view.about(), "UnknownTimeZone", message));
            return Start::Never;
        }
    };
    let schedule = match Schedule::parse(&spec.schedule) {
        Ok(schedule) => schedule,
        Err(why) => {
            let message = format!("unparseable schedule: {:?} : {why}", spec.schedule);
            told.push(Note::warning(view.about(), "UnparseableSchedule", message));
            return Start::Never;
        }
    };
    let last = since(view, status);
    let deadline = spec.starting_deadline_seconds.map(|seconds| Duration::from_secs(seconds.unsigned_abs()));
    // Times older than the deadline are not started any more, so they are not examined.
    let oldest = deadline.and_then(|deadline| view.now.checked_sub(deadline).ok());
    let from = oldest.map_or(last, |oldest| oldest.max(last));
    let (found, missed) = match most_recent(&schedule, &zone, from, view.now) {
        Ok(found) => found,
        Err(why) => {
            let message = format!("invalid schedule: {} : {why}", spec.schedule);
            told.push(Note::warning(view.about(), "InvalidSchedule", message));
            return Start::Never;
        }
    };
    let wait = next(&schedule, &zone, last, view.now);
    let later = wait.map_or(Start::Never, Start::Later);
    let Some(at) = found else {
        told.extend(too_late(view, most_recent(&schedule, &zone, last, view.now).ok().and_then(|(found, _)| found)));
        return later;
    };
    if missed == Missed::Many {
        let why = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        told.push(Note::warning(view.about(), "TooManyMissedTimes", why));
    }
    decide(view, status, told, at, wait.unwrap_or(Duration::MAX))
}

/// The time up to which the schedule was handled, or was a different one.
fn since(view: &Inputs<'_>, status: &CronJobStatus) -> Timestamp {
    let last = status.last_schedule_time.as_ref().map_or_else(|| meta::created(&view.cron.metadata), |time| time.0);
    let changed = meta::annotation(&view.cron.metadata, SCHEDULED_SINCE).and_then(|text| text.parse().ok());
    changed.map_or(last, |changed: Timestamp| changed.max(last))
}

/// The next scheduled time after now. (It counts from `last`, which matters for `@every`.)
fn next(schedule: &Schedule, zone: &TimeZone, last: Timestamp, now: Timestamp) -> Option<Duration> {
    let (found, _) = most_recent(schedule, zone, last, now).unwrap_or((Some(now), Missed::None));
    let at = schedule.next(found.unwrap_or(last), zone)?;
    meta::until(now, meta::later(at, PADDING))
}

/// The event for a missed time that is too late to start.
fn too_late(view: &Inputs<'_>, missed: Option<Timestamp>) -> Option<Note> {
    let at = missed.filter(|at| !(view.taken)(&view.name_at(*at)))?;
    let when = at.strftime("%a, %d %b %Y %H:%M:%S +0000");
    let message = format!("Missed scheduled time to start a job: {when}");
    Some(Note::warning(view.about(), "MissSchedule", message))
}

/// What to do about a time that has come.
fn decide<'a>(
    view: &Inputs<'a>,
    status: &CronJobStatus,
    told: &mut Vec<Note>,
    at: Timestamp,
    wait: Duration,
) -> Start<'a> {
    if (view.taken)(&view.name_at(at)) {
        return Start::Later(wait);
    }
    let active = status.active.as_deref().unwrap_or_default();
    let mut replaced = Vec::new();
    match view.spec().concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => {
            let why = "Not starting job because prior execution is running and concurrency policy is Forbid";
            told.push(Note::normal(view.about(), "JobAlreadyActive", why));
            return Start::Later(wait);
        }
        Some("Replace") => {
            let is_active = |job: &&Arc<Job>| active.iter().any(|known| known.uid == job.metadata.uid);
            replaced.extend(view.jobs.iter().filter(is_active));
        }
        _ => {}
    }
    Start::Now { at, replaced, wait }
}

/// Creates the Job for a time.
fn create(view: &Inputs<'_>, at: Timestamp) -> Write {
    let template = view.spec().job_template.clone();
    let from = template.metadata.unwrap_or_default();
    let mut annotations = from.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.to_owned(), rfc3339(at, view.spec().time_zone.as_deref()));
    let job = Job {
        metadata: ObjectMeta {
            name: Some(view.name_at(at)),
            namespace: view.cron.metadata.namespace.clone(),
            labels: from.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![meta::owner_reference(view.cron)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    };
    Write::create(&job).done(Note::normal(view.about(), "SuccessfulCreate", "Created job {}")).failed(Note::warning(
        view.about(),
        "FailedCreate",
        "Error creating job: {}",
    ))
}

/// A time in its zone, or in UTC.
fn rfc3339(at: Timestamp, zone: Option<&str>) -> String {
    let zone = zone.and_then(|name| TimeZone::get(name).ok()).unwrap_or(TimeZone::UTC);
    let zoned = at.to_zoned(zone);
    let offset = if zoned.offset().is_zero() { "Z" } else { "%:z" };
    zoned.strftime(&format!("%Y-%m-%dT%H:%M:%S{offset}")).to_string()
}

/// Deletes a Job with its Pods.
fn delete(view: &Inputs<'_>, job: &Arc<Job>) -> Write {
    let mut write = Write::delete(&**job)
        .done(Note::normal(view.about(), "SuccessfulDelete", format!("Deleted job {}", meta::name(&job.metadata))))
        .failed(Note::warning(view.about(), "FailedDelete", "Deleted job: {}"));
    write.request.options.propagation_policy = Some("Background".into());
    write
}
