//! The back-off before a Job replaces a failed Pod.
//!
//! Upstream (`pkg/controller/job/backoff_utils.go`) keeps a record in memory and loses it when it restarts. Here the delay follows
//! from the existing Pods: failed ones stay until their Job is deleted. If somebody else removes them, the status has their number. When
//! one has last succeeded is kept in memory too, but only so that not all are looked at for it.

use std::{cmp::Ordering, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use super::super::meta;

/// The delay after a first failure; each further one doubles it, up to `MOST` (as upstream documents it; its code has 10 min).
const FIRST: Duration = Duration::from_secs(10);
const MOST: Duration = Duration::from_secs(360);

/// When a Pod finished, as far as known.
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

/// When the last of its containers finished; `None` while one is running.
fn containers_finished(pod: &Pod) -> Option<Timestamp> {
    let containers = pod.status.as_ref()?.container_statuses.as_deref().unwrap_or_default();
    let ends = containers
        .iter()
        .map(|container| container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|time| time.0));
    ends.collect::<Option<Vec<Timestamp>>>()?.into_iter().max()
}

/// The delay for the failures since the last success, of which at least this many are known.
pub fn wait<'a>(
    success: Option<Timestamp>,
    failed: impl Iterator<Item = &'a Arc<Pod>>,
    at_least: i32,
    now: Timestamp,
) -> Option<Duration> {
    let since = failed.map(|pod| finished_at(pod)).filter(|at| success.is_none_or(|success| *at > success));
    let (failures, last) = since.fold((0, Timestamp::MIN), |(n, last), at| (n + 1, last.max(at)));
    after(at_least.max(failures), last, now)
}

/// The rest of the delay at `now` after this many failures, the last at `last`.
pub fn after(failures: i32, last: Timestamp, now: Timestamp) -> Option<Duration> {
    let doublings = failures.checked_sub(1).filter(|n| *n >= 0)?.unsigned_abs();
    let whole = FIRST.saturating_mul(2u32.saturating_pow(doublings)).min(MOST);
    meta::until(now, meta::later(last, whole))
}

/// By the time when they finished.
pub fn by_end(a: &Pod, b: &Pod) -> Ordering {
    finished_at(a).cmp(&finished_at(b))
}
