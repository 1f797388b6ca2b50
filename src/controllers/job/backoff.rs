//! How long a Job waits before it replaces a failed Pod.
//!
//! Upstream (`pkg/controller/job/backoff_utils.go`) keeps a record in memory and loses it when it restarts. Here the wait
//! follows from the Pods that are there: failed ones stay until their Job goes. Where somebody else removes them, the status
//! tells how many there were.

use std::{cmp::Ordering, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use super::super::meta;

/// The wait after a first failure; each further one doubles it, up to `MOST` (as upstream documents it; its code has 10 min).
const FIRST: Duration = Duration::from_secs(10);
const MOST: Duration = Duration::from_secs(360);

/// When a Pod ended, as well as that can be told.
pub fn finished_at(pod: &Pod) -> Timestamp {
    let by_containers = containers_finished(pod);
    let unready = || {
        let ready = meta::pod_condition(pod, "Ready").filter(|ready| ready.status == "False");
        ready?.last_transition_time.as_ref().map(|time| time.0)
    };
    let deleted = || {
        let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
        pod.metadata.deletion_timestamp.as_ref()?.0.checked_sub(grace).ok()
    };
    by_containers.or_else(unready).or_else(deleted).unwrap_or_else(|| meta::created(&pod.metadata))
}

/// When the last of its containers ended; nothing while one of them has not.
fn containers_finished(pod: &Pod) -> Option<Timestamp> {
    let containers = pod.status.as_ref()?.container_statuses.as_deref().unwrap_or_default();
    let ends = containers
        .iter()
        .map(|container| container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|time| time.0));
    ends.collect::<Option<Vec<Timestamp>>>()?.into_iter().max()
}

/// The wait after the failures since the last success, of which it is known that there were at least so many.
pub fn wait<'a>(
    succeeded: impl Iterator<Item = &'a Arc<Pod>>,
    failed: impl Iterator<Item = &'a Arc<Pod>>,
    at_least: i32,
    now: Timestamp,
) -> Option<Duration> {
    let success = succeeded.map(|pod| finished_at(pod)).max();
    let since = failed.map(|pod| finished_at(pod)).filter(|at| success.is_none_or(|success| *at > success));
    let (failures, last) = since.fold((0, Timestamp::MIN), |(n, last), at| (n + 1, last.max(at)));
    after(at_least.max(failures), last, now)
}

/// What is left at `now` of the wait after so many failures, the last of them at `last`.
pub fn after(failures: i32, last: Timestamp, now: Timestamp) -> Option<Duration> {
    let doublings = failures.checked_sub(1).filter(|n| *n >= 0)?.unsigned_abs();
    let whole = FIRST.saturating_mul(2u32.saturating_pow(doublings)).min(MOST);
    meta::until(now, meta::later(last, whole))
}

/// By when they ended.
pub fn by_end(a: &Pod, b: &Pod) -> Ordering {
    finished_at(a).cmp(&finished_at(b))
}
