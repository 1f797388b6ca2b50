//! Counts results: each Pod's exactly once, whatever happens between two steps.
//!
//! A finished Pod is counted in three steps: its uid is added to `status.uncountedTerminatedPods`; its finalizer is removed, so
//! that the Pod can be deleted; its uid is removed and the counter incremented. Each step depends only on what the previous one has
//! written to the server, so a restart continues with the next one. (A succeeded index needs no uid: `status.completedIndexes` is a
//! set.) A reconcile does at most the third step for some Pods and the first two for others.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{
    batch::v1::{JobStatus, UncountedTerminatedPods},
    core::v1::Pod,
};

use super::{
    super::{meta, write::Guard},
    indexes::Indexes,
    pods,
    policy::Verdict,
    tally::{Inputs, Tally, number},
};
use podwright_client::Typed;

/// The most uncounted uids in a status, which must stay below 20 kB.
const MOST_UNCOUNTED: usize = 500;

/// The Job's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Success,
    Failure,
}

/// What the status records.
pub struct Recorded<'a> {
    /// Pods whose finalizers may be removed once the status is written.
    pub released: Vec<&'a Arc<Pod>>,
    /// What the server must confirm if the informers may lag behind the Job.
    pub guard: Option<Guard>,
}

/// Updates the counters of `status` from the Pods.
pub fn record<'a>(
    view: &Inputs<'a>,
    tally: &Tally<'a>,
    ending: Option<Ending>,
    status: &mut JobStatus,
) -> Recorded<'a> {
    let tracked: BTreeSet<&str> =
        view.pods.iter().filter(|pod| pods::is_tracked(pod)).map(|pod| pods::uid(pod)).collect();
    let mut ends = Ends::of(status);
    let free = ends.count_released(&tracked, status);

    let mut recorded = Recorded { released: Vec::new(), guard: None };
    let mut indexes = Vec::new();
    let mut new: Vec<&Arc<Pod>> = Vec::new();
    let known: BTreeSet<String> = ends.failed.iter().chain(&ends.succeeded).cloned().collect();
    for pod in in_order(view) {
        if !may_go(view, tally, ending, pod) {
            continue;
        }
        let uid = pods::uid(pod);
        if known.contains(uid) {
            recorded.released.push(pod);
            continue;
        }
        // The others follow when these have been released.
        if indexes.len() + ends.succeeded.len() + ends.failed.len() >= MOST_UNCOUNTED {
            continue;
        }
        recorded.released.push(pod);
        if meta::phase(pod) == "Succeeded" {
            match pods::is_indexed(view.job) {
                true => indexes.extend(pods::valid_index(view.job, pod)),
                false => {
                    ends.succeeded.push(uid.to_owned());
                    new.push(pod);
                }
            }
        } else if counts_as_failed(view, ending, pod) {
            ends.failed.push(uid.to_owned());
            new.push(pod);
        }
    }
    if pods::is_indexed(view.job) {
        let completed = tally.completed_before.union(&indexes.into_iter().collect());
        status.succeeded = nonzero(completed.count());
        status.completed_indexes = Some(completed.to_string()).filter(|text| !text.is_empty());
        status.failed_indexes = tally.failed_indexes.as_ref().map(Indexes::to_string);
    }
    recorded.guard = guard(view, &new, free);
    ends.put(status);
    recorded
}

/// The tracked Pods; in an indexed Job by index, so that completed indexes are in order.
fn in_order<'a>(view: &Inputs<'a>) -> Vec<&'a Arc<Pod>> {
    let mut all: Vec<&Arc<Pod>> = view.pods.iter().filter(|pod| pods::is_tracked(pod)).collect();
    if pods::is_indexed(view.job) {
        all.sort_by_key(|pod| pods::index(pod));
    }
    all
}

/// Whether nothing needs the Pod any more once its result is recorded.
fn may_go(view: &Inputs<'_>, tally: &Tally<'_>, ending: Option<Ending>, pod: &Pod) -> bool {
    if meta::is_terminating(&view.job.metadata) || meta::phase(pod) == "Succeeded" {
        return true;
    }
    match ending {
        // An active Pod is deleted first, and then counted.
        Some(_) => !meta::is_active(pod),
        None => {
            let held = pods::index(pod).and_then(|index| tally.held_back.get(&index));
            pods::is_failed(view.job, pod) && held.is_none_or(|held| pods::uid(held) != pods::uid(pod))
        }
    }
}

fn counts_as_failed(view: &Inputs<'_>, ending: Option<Ending>, pod: &Pod) -> bool {
    let failed = match ending {
        None => pods::is_failed(view.job, pod),
        // The Job has failed, and its remaining Pods with it.
        Some(Ending::Failure) => true,
        // Pods that were no longer needed do not count as failed.
        Some(Ending::Success) => meta::phase(pod) == "Failed",
    };
    failed && pods::takes_part(view.job, pod) && pods::verdict(view.job, pod) != Verdict::Ignore
}

/// A stale view of Pods with a fresh one of the Job would count Pods twice. The informers' view of Pods is fresh enough if it is
/// newer than the Job's last change; otherwise the server is asked.
fn guard(view: &Inputs<'_>, new: &[&Arc<Pod>], free: Vec<String>) -> Option<Guard> {
    let since = view.revision();
    if view.seen >= since {
        return None;
    }
    let doubtful = new.iter().filter(|pod| view.revision_of(pod) < since);
    let held: Vec<String> = doubtful.map(|pod| pods::uid(pod).to_owned()).collect();
    (!held.is_empty() || !free.is_empty()).then(|| Guard::Finalizers {
        resource: Pod::resource(),
        namespace: meta::namespace(&view.job.metadata).to_owned(),
        finalizer: pods::FINALIZER.to_owned(),
        held,
        free,
    })
}

/// `status.uncountedTerminatedPods`.
struct Ends {
    succeeded: Vec<String>,
    failed: Vec<String>,
}

impl Ends {
    fn of(status: &JobStatus) -> Ends {
        let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
        Ends { succeeded: uncounted.succeeded.unwrap_or_default(), failed: uncounted.failed.unwrap_or_default() }
    }

    /// Counts those without a finalizer, and returns them.
    fn count_released(&mut self, tracked: &BTreeSet<&str>, status: &mut JobStatus) -> Vec<String> {
        let mut released = Vec::new();
        for (uids, counter) in [(&mut self.succeeded, &mut status.succeeded), (&mut self.failed, &mut status.failed)] {
            let (left, gone): (Vec<String>, Vec<String>) =
                uids.drain(..).partition(|uid| tracked.contains(uid.as_str()));
            *counter = nonzero(counter.unwrap_or(0).saturating_add(number(gone.len())));
            *uids = left;
            released.extend(gone);
        }
        released
    }

    fn put(self, status: &mut JobStatus) {
        let some = |uids: Vec<String>| Some(uids).filter(|uids| !uids.is_empty());
        let uncounted = UncountedTerminatedPods { succeeded: some(self.succeeded), failed: some(self.failed) };
        status.uncounted_terminated_pods = Some(uncounted);
    }
}

/// A counter as upstream writes it: absent rather than zero.
pub fn nonzero(n: i32) -> Option<i32> {
    Some(n).filter(|n| *n != 0)
}
