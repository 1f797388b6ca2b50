//! Which Pods a Job needs, and which it no longer needs.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;

use super::{
    super::{meta, write::Write},
    backoff, pods,
    record::Ending,
    tally::{Inputs, Tally},
};

/// The most Pods created or deleted for one Job at a time.
const BURST: usize = 500;

/// What to do about unfinished Pods. At most one of the lists is not empty.
#[derive(Default)]
pub struct Needs<'a> {
    pub created: Vec<Write>,
    /// To delete without counting their results.
    pub dismissed: Vec<&'a Arc<Pod>>,
    /// To delete, and to count like others.
    pub deleted: Vec<&'a Arc<Pod>>,
    /// When there may be more to do.
    pub wait: Option<Duration>,
}

impl<'a> Needs<'a> {
    pub fn is_empty(&self) -> bool {
        self.created.is_empty() && self.dismissed.is_empty() && self.deleted.is_empty()
    }

    /// Ends all active Pods.
    pub fn end(&mut self, tally: &Tally<'a>, ending: Ending) {
        match ending {
            Ending::Success => self.dismissed = tally.active.clone(),
            Ending::Failure => self.deleted = tally.active.clone(),
        }
    }

    /// What an unfinished Job needs.
    pub fn of(view: &Inputs<'a>, tally: &Tally<'a>) -> Needs<'a> {
        let mut work = Needs::default();
        if view.spec().is_suspended() {
            work.dismissed = tally.active.clone();
            return work;
        }
        let (active, wanted) = (tally.active.len(), wanted(view, tally));
        work.dismissed = pods::superfluous(view.job, &tally.active, active.saturating_sub(wanted), view.now);
        work.dismissed.truncate(BURST);
        if !work.dismissed.is_empty() {
            return work;
        }
        let ending = if pods::replaces_failed_only(view.job) { tally.ending } else { 0 };
        let missing = wanted.saturating_sub(active + ending).min(BURST).min(view.most);
        if missing > 0 {
            work.create(view, tally, missing);
        }
        work
    }

    fn create(&mut self, view: &Inputs<'a>, tally: &Tally<'a>, missing: usize) {
        let missing = missing.min(pods::create(view.job, Some(0), None).burst(BURST));
        if !pods::has_limit_per_index(view.job) {
            self.wait = wait(view, tally);
            if self.wait.is_some() {
                return;
            }
        }
        if !pods::is_indexed(view.job) {
            self.created = vec![pods::create(view.job, None, None); missing];
            return;
        }
        for index in pending(view, tally, missing) {
            let replaced = tally.held_back.get(&index).copied();
            let wait = replaced.and_then(|pod| {
                let failures = pods::all_failures_before(pod).saturating_add(1);
                backoff::after(failures, backoff::finished_at(pod), view.now)
            });
            match wait {
                None => self.created.push(pods::create(view.job, Some(index), replaced.map(|pod| &**pod))),
                Some(wait) => self.wait = Some(self.wait.map_or(wait, |other| other.min(wait))),
            }
        }
    }
}

/// The desired number of active Pods.
fn wanted(view: &Inputs<'_>, tally: &Tally<'_>) -> usize {
    let parallelism = view.spec().parallelism();
    let wanted = match view.spec().0.completions {
        Some(completions) => completions.saturating_sub(tally.succeeded).min(parallelism),
        None if tally.succeeded == 0 => parallelism,
        // The work queue is empty: running Pods finish by themselves.
        None => return tally.active.len(),
    };
    usize::try_from(wanted).unwrap_or(0)
}

/// The remaining back-off after the last failures.
fn wait(view: &Inputs<'_>, tally: &Tally<'_>) -> Option<Duration> {
    let counts = |pod: &&Arc<Pod>| !tally.was_dismissed(pod) && pods::takes_part(view.job, pod);
    let own = || view.pods.iter().filter(counts);
    let succeeded = own().filter(|pod| meta::phase(pod) == "Succeeded").map(|pod| backoff::finished_at(pod)).max();
    let succeeded = succeeded.max(view.last_success);
    let failed = own().filter(|pod| pods::is_failed(view.job, pod));
    // As long as none has succeeded, all failures count for the back-off.
    let at_least = if tally.succeeded == 0 { tally.failed } else { 0 };
    backoff::wait(succeeded, failed, at_least, view.now)
}

/// The first indexes that neither have finished nor have an active Pod.
fn pending(view: &Inputs<'_>, tally: &Tally<'_>, most: usize) -> Vec<i32> {
    let mut taken = tally.completed.union(&pods::indexes(tally.active.iter().copied()));
    if pods::replaces_failed_only(view.job) {
        taken = taken.union(&pods::indexes(view.pods.iter().filter(|pod| pods::is_ending(pod))));
    }
    if let Some(failed) = &tally.failed_indexes {
        taken = taken.union(failed);
    }
    taken.missing(pods::completions(view.job).unwrap_or(0), most)
}
