//! Whether a Pod's disk usage is read from project quotas, and for how long they are trusted.
//!
//! Upstream: `LocalStorageCapacityIsolationFSQuotaMonitoring` (KEP-1029), which uses quotas only for Pods with user namespaces: no
//! process in a user namespace can change a file's project. But a process outside can, if the Pod hands it an open folder over a
//! socket in a shared volume. So quotas are compared with a walk from time to time.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use podwright_runtime::projects;

use crate::{
    admission::protections::Unavailable,
    spec::PodExt,
    storage::{REST, Usage},
};

/// For how long a Pod's quotas are trusted; longer if a walk is expensive.
const BELIEVED: Duration = Duration::from_secs(300);
/// Tolerance: files removed or moved during the walk.
const SLACK: u64 = 1 << 20;

/// Pods whose quotas are trusted, by uid, and until when.
#[derive(Debug, Default)]
pub struct Quotas(Mutex<HashMap<String, Instant>>);

impl Quotas {
    fn known(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        // The state is consistent even after a panic: entries are changed atomically.
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Whether the Pod's quotas are trusted without a walk.
    pub fn are_believed(&self, uid: &str, now: Instant) -> bool {
        self.known().get(uid).is_some_and(|until| now < *until)
    }

    /// Chooses the Pod's usage. A Pod whose quotas miss something is walked until they no longer do.
    pub fn judge(&self, uid: &str, now: Instant, counted: Usage, walked: Usage) -> Usage {
        let sound = !walked.total().evades && walked.total().bytes <= counted.total().bytes.saturating_add(SLACK);
        match sound {
            true => {
                let until = now + BELIEVED.max(walked.total().cost * REST);
                self.known().insert(uid.to_owned(), until);
                counted
            }
            false => {
                tracing::warn!(uid, "a Pod uses more disk than its project quotas count: measuring it by walking");
                walked
            }
        }
    }

    /// The Pod is removed.
    pub fn forget(&self, uid: &str) {
        self.known().remove(uid);
    }
}

/// Whether quotas can be trusted for this kind of Pod.
pub fn may_count(pod: &Pod) -> bool {
    pod.has_own_users()
}

/// Checks that this node can use quotas for Pods with user namespaces.
///
/// # Errors
///
/// Why it walks instead: there are no such Pods, or the file system of one of these folders has no project quotas.
pub fn in_force(user_namespaces: &Result<(), Unavailable>, folders: &[&Path]) -> Result<(), Unavailable> {
    if let Err(why) = user_namespaces {
        return Err(Unavailable::UserNamespaces(Box::new(why.clone())));
    }
    folders.iter().try_for_each(|folder| projects::supported(folder)).map_err(Unavailable::ProjectQuotas)
}

#[cfg(test)]
mod tests {
    use podwright_runtime::sys::walk::Measure;

    use super::*;

    fn usage(mib: u64) -> Usage {
        Usage { rest: Measure { bytes: mib << 20, inodes: 1, ..Measure::default() }, ..Usage::default() }
    }

    #[test]
    fn quotas_are_believed_for_a_time_after_a_walk_has_seen_no_more() {
        let (quotas, now) = (Quotas::default(), Instant::now());
        assert!(!quotas.are_believed("a", now));
        // Only quotas count unlinked files.
        assert_eq!(quotas.judge("a", now, usage(9), usage(2)), usage(9));
        assert!(quotas.are_believed("a", now) && !quotas.are_believed("b", now));
        assert!(!quotas.are_believed("a", now + BELIEVED));
        let costly = Usage { rest: Measure { cost: BELIEVED, ..usage(2).rest }, ..usage(2) };
        quotas.judge("a", now, usage(2), costly);
        assert!(quotas.are_believed("a", now + BELIEVED * (REST - 1)));
        quotas.forget("a");
        assert!(!quotas.are_believed("a", now));
    }

    #[test]
    fn a_pod_whose_quotas_miss_something_is_walked() {
        let (quotas, now) = (Quotas::default(), Instant::now());
        assert_eq!(quotas.judge("a", now, usage(2), usage(9)), usage(9));
        assert!(!quotas.are_believed("a", now));
        let evades = Usage { rest: Measure { evades: true, ..usage(1).rest }, ..usage(1) };
        assert_eq!(quotas.judge("a", now, usage(2), evades.clone()), evades);
        assert!(!quotas.are_believed("a", now));
        assert_eq!(quotas.judge("a", now, usage(2), usage(3)), usage(2));
        assert!(quotas.are_believed("a", now));
    }
}
