//! The inputs of a Job's reconcile, and a summary of its Pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::{Job, JobSpec, JobStatus},
    core::v1::Pod,
};

use super::{
    super::{Failure, meta},
    backoff,
    indexes::Indexes,
    pods,
    policy::Verdict,
};

/// The inputs of one reconcile.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub job: &'a Job,
    /// Its own Pods, but for those that have ended and are counted; of these a Job that waits after failures has the failed ones.
    pub pods: &'a [Arc<Pod>],
    /// When one has last succeeded, also of those that are counted. Known where the Job waits after failures.
    pub last_success: Option<Timestamp>,
    /// The revision of the Pod informer.
    pub seen: u64,
    pub now: Timestamp,
    pub failure: Option<&'a Failure>,
    /// The most Pods that it may create.
    pub most: usize,
}

impl<'a> Inputs<'a> {
    pub fn spec(&self) -> Spec<'a> {
        // The invariant: the server accepts no Job without a spec.
        Spec(self.job.spec.as_ref().expect("a Job has a spec"))
    }

    /// The revision of the Job itself.
    pub fn revision(&self) -> u64 {
        revision(&self.job.metadata.resource_version)
    }

    /// The revision of a Pod.
    pub fn revision_of(&self, pod: &Pod) -> u64 {
        revision(&pod.metadata.resource_version)
    }
}

fn revision(text: &Option<String>) -> u64 {
    text.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A Job's spec with upstream's defaults applied.
pub struct Spec<'a>(pub &'a JobSpec);

impl Spec<'_> {
    pub fn parallelism(&self) -> i32 {
        self.0.parallelism.unwrap_or(1)
    }
    pub fn backoff_limit(&self) -> i32 {
        self.0.backoff_limit.unwrap_or(6)
    }
    pub fn is_suspended(&self) -> bool {
        self.0.suspend == Some(true)
    }
    pub fn restarts_on_failure(&self) -> bool {
        self.0.template.spec.as_ref().is_some_and(|spec| spec.restart_policy.as_deref() == Some("OnFailure"))
    }
}

/// A summary of the Pods.
pub struct Tally<'a> {
    /// Neither finished nor terminating.
    pub active: Vec<&'a Arc<Pod>>,
    /// Terminating and not finished.
    pub ending: usize,
    pub ready: usize,
    /// Including finished ones that are not counted in the status yet.
    pub succeeded: i32,
    pub failed: i32,
    /// The uncounted uids in the status.
    pub uncounted_succeeded: BTreeSet<&'a str>,
    pub uncounted_failed: BTreeSet<&'a str>,
    /// The succeeded indexes in the status.
    pub completed_before: Indexes,
    /// Including those that have succeeded since.
    pub completed: Indexes,
    /// The indexes that may not be retried, if there is a limit per index.
    pub failed_indexes: Option<Indexes>,
    /// For each index that waits for another Pod, its last failed one, which is kept until then: its replacement takes over the
    /// count of failures.
    pub held_back: BTreeMap<i32, &'a Arc<Pod>>,
}

impl<'a> Tally<'a> {
    pub fn of(view: &Inputs<'a>) -> Tally<'a> {
        let (job, all) = (view.job, view.pods);
        let status = job.status.clone().unwrap_or_default();
        let uncounted = job.status.as_ref().and_then(|status| status.uncounted_terminated_pods.as_ref());
        let uids = |list: Option<&'a Vec<String>>| list.into_iter().flatten().map(String::as_str).collect();
        let mut tally = Tally {
            active: all.iter().filter(|pod| meta::is_active(pod)).collect(),
            ending: all.iter().filter(|pod| pods::is_ending(pod)).count(),
            ready: 0,
            succeeded: 0,
            failed: 0,
            uncounted_succeeded: uids(uncounted.and_then(|uncounted| uncounted.succeeded.as_ref())),
            uncounted_failed: uids(uncounted.and_then(|uncounted| uncounted.failed.as_ref())),
            completed_before: Indexes::default(),
            completed: Indexes::default(),
            failed_indexes: None,
            held_back: BTreeMap::new(),
        };
        tally.ready = tally.active.iter().filter(|pod| meta::is_ready(pod)).count();
        tally.count(job, all, &status);
        if pods::is_indexed(job) {
            tally.count_indexes(job, all, &status);
        }
        tally
    }

    /// Whether the Pod was deleted as superfluous, so that its result does not count. (One that was counted and then deleted looks
    /// the same.)
    pub fn was_dismissed(&self, pod: &Pod) -> bool {
        let uncounted = self.uncounted_failed.contains(pods::uid(pod));
        meta::is_terminating(&pod.metadata) && !pods::is_tracked(pod) && !uncounted
    }

    fn count(&mut self, job: &Job, all: &[Arc<Pod>], status: &JobStatus) {
        let new = || all.iter().filter(|pod| pods::is_tracked(pod) && pods::takes_part(job, pod));
        let newly_succeeded =
            |pod: &&Arc<Pod>| meta::phase(pod) == "Succeeded" && !self.uncounted_succeeded.contains(pods::uid(pod));
        let newly_failed = |pod: &&Arc<Pod>| {
            pods::is_failed(job, pod)
                && !self.uncounted_failed.contains(pods::uid(pod))
                && pods::verdict(job, pod) != Verdict::Ignore
        };
        let succeeded = new().filter(newly_succeeded).count() + self.uncounted_succeeded.len();
        let failed = new().filter(newly_failed).count() + self.uncounted_failed.len();
        self.succeeded = status.succeeded.unwrap_or(0).saturating_add(number(succeeded));
        self.failed = status.failed.unwrap_or(0).saturating_add(number(failed));
    }

    fn count_indexes(&mut self, job: &Job, all: &'a [Arc<Pod>], status: &JobStatus) {
        let completions = pods::completions(job).unwrap_or(0);
        let read = |text: &Option<String>| Indexes::parse(text.as_deref().unwrap_or_default(), completions);
        let new = |wanted: &dyn Fn(&Pod) -> bool| -> Indexes {
            let tracked = all.iter().filter(|pod| pods::is_tracked(pod) && wanted(pod));
            tracked.filter_map(|pod| pods::valid_index(job, pod)).collect()
        };
        self.completed_before = read(&status.completed_indexes);
        self.completed = self.completed_before.union(&new(&|pod| meta::phase(pod) == "Succeeded"));
        self.succeeded = self.completed.count();
        if pods::has_limit_per_index(job) {
            let failed = read(&status.failed_indexes).union(&new(&|pod| pods::fails_index(job, pod)));
            self.hold_back(job, all, &failed);
            self.failed_indexes = Some(failed);
        }
    }

    fn hold_back(&mut self, job: &Job, all: &'a [Arc<Pod>], failed: &Indexes) {
        let active = pods::indexes(self.active.iter().copied());
        for pod in all.iter().filter(|pod| pods::is_tracked(pod) && pods::is_failed(job, pod)) {
            let Some(index) = pods::valid_index(job, pod) else { continue };
            if self.completed.has(index) || failed.has(index) || active.has(index) {
                continue;
            }
            let last = self.held_back.entry(index).or_insert(pod);
            if pods::all_failures_before(last) <= pods::all_failures_before(pod) && backoff::by_end(last, pod).is_le() {
                *last = pod;
            }
        }
    }
}

/// A count in the type of API objects.
pub fn number(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
