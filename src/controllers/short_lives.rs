//! How soon Pods are made anew whose owner's last ones have ended right after their birth.
//!
//! A template may name a node that refuses its Pods, or that is lost: each is replaced at once, and nothing comes of it but more
//! objects. (At upstream all that controllers write has one pace, and nothing else slows that down.) Here whoever makes Pods waits
//! ever longer while they end so, as a kubelet does with a container. Rounds are counted, not Pods: those that have been made
//! together, and end together, are one, however many.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::meta;
use podwright_client::Delta;

/// A Pod that has lived no longer has lived shortly.
const SHORT: Duration = Duration::from_secs(10);
/// The wait after the first round is twice as long; it doubles up to `MOST`.
const FIRST: Duration = Duration::from_millis(10);
const MOST: Duration = Duration::from_secs(60);
/// When so much more time than the wait has passed without another round, all is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Of more owners only those are remembered that still count.
const OWNERS: usize = 1024;

/// The rounds of all owners, by their uids.
#[derive(Default)]
pub struct ShortLives(Mutex<HashMap<String, Rounds>>);

struct Rounds {
    /// So many in a row.
    count: u32,
    /// When the last one began to end.
    at: Instant,
    /// Whether Pods have been made since then.
    made: bool,
}

impl Rounds {
    fn wait(&self) -> Duration {
        FIRST.saturating_mul(1u32.checked_shl(self.count).unwrap_or(u32::MAX)).min(MOST)
    }

    fn counts(&self) -> bool {
        self.at.elapsed() < self.wait() + FORGOTTEN
    }
}

impl ShortLives {
    /// Sees whether a Pod of an owner of `kind` ends by this change, and how long it has lived.
    pub fn observe(&self, change: &Delta<Pod>, kind: &str, now: Timestamp) {
        let Some(new) = change.new.as_ref().filter(|new| has_failed(new)) else { return };
        if change.old.as_ref().is_some_and(|old| has_failed(old)) || !is_short(new, kind, now) {
            return;
        }
        if let Some(owner) = meta::controller(&new.metadata).filter(|owner| owner.kind == kind) {
            self.ended(&owner.uid);
        }
    }

    fn ended(&self, owner: &str) {
        let at = Instant::now();
        let mut all = self.rounds();
        match all.get_mut(owner).filter(|rounds| rounds.counts()) {
            Some(rounds) if rounds.made => *rounds = Rounds { count: rounds.count.saturating_add(1), at, made: false },
            Some(_) => {}
            None => {
                if all.len() >= OWNERS {
                    all.retain(|_, rounds| rounds.counts());
                }
                all.insert(owner.to_owned(), Rounds { count: 1, at, made: false });
            }
        }
    }

    /// How long an owner has to wait before it makes Pods.
    pub fn wait(&self, owner: &str) -> Option<Duration> {
        let all = self.rounds();
        let rounds = all.get(owner)?;
        rounds.wait().checked_sub(rounds.at.elapsed()).filter(|wait| !wait.is_zero())
    }

    /// The owner makes Pods now.
    pub fn made(&self, owner: &str) {
        if let Some(rounds) = self.rounds().get_mut(owner) {
            rounds.made = true;
        }
    }

    fn rounds(&self) -> MutexGuard<'_, HashMap<String, Rounds>> {
        // Nothing between its changes panics.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Whether a Pod has failed, or has to go, without that anybody has asked for it.
fn has_failed(pod: &Pod) -> bool {
    let goes = |reason: Option<&str>| matches!(reason, Some("DeletionByTaintManager" | "DeletionByPodGC"));
    (meta::phase(pod) == "Failed" && !meta::is_terminating(&pod.metadata))
        || meta::pod_condition(pod, "DisruptionTarget")
            .is_some_and(|it| it.status == "True" && goes(it.reason.as_deref()))
}

/// Whether a Pod that ends now has lived shortly, or not at all. What a Job's do may be short; how often it is tried says the Job.
fn is_short(pod: &Pod, kind: &str, now: Timestamp) -> bool {
    let young = || meta::later(meta::created(&pod.metadata), SHORT) >= now;
    !has_run(pod) || (kind != "Job" && young())
}

fn has_run(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    { all }.any(|container| {
        let state = container.state.as_ref();
        container.restart_count > 0 || state.is_some_and(|it| it.running.is_some() || it.terminated.is_some())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use podwright_client::Key;
    use serde_json::{Value, json};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("a time")
    }

    /// A Pod that was made at 0 gets this status at that time.
    fn ends(lives: &ShortLives, kind: &str, status: Value, seconds: i64) {
        let pod = |status: Value| {
            let owner = json!([{"apiVersion": "v1", "kind": kind, "name": "x", "uid": "u", "controller": true}]);
            let meta = json!({"name": "p", "ownerReferences": owner, "creationTimestamp": "1970-01-01T00:00:00Z"});
            serde_json::from_value(json!({ "metadata": meta, "status": status })).map(Arc::new).ok()
        };
        let delta = Delta { key: Key::new("ns", "p"), old: pod(json!({})), new: pod(status), undecodable: None };
        lives.observe(&delta, kind, at(seconds));
    }

    #[tokio::test(start_paused = true)]
    async fn each_round_doubles_the_wait_however_many_pods_it_has() {
        let lives = ShortLives::default();
        assert_eq!(lives.wait("u"), None);
        let mut waits = Vec::new();
        for _ in 0..20 {
            lives.made("u");
            for _ in 0..100 {
                lives.ended("u");
            }
            waits.push(lives.wait("u").expect("a wait").as_millis());
            tokio::time::advance(lives.wait("u").expect("a wait")).await;
            assert_eq!(lives.wait("u"), None);
        }
        assert_eq!((&waits[..4], waits[19]), (&[20, 40, 80, 160][..], 60_000));
        lives.made("u");
        tokio::time::advance(FORGOTTEN).await;
        lives.ended("u");
        assert_eq!(lives.wait("u"), Some(Duration::from_millis(20)), "they have lived meanwhile");
    }

    #[tokio::test(start_paused = true)]
    async fn what_counts_has_failed_soon_or_has_never_run() {
        let ran = json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1}}}]);
        let failed = json!({"phase": "Failed"});
        let failed_by_itself = json!({"phase": "Failed", "containerStatuses": ran});
        let target =
            |reason: &str| json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]});
        for (kind, status, seconds, expected) in [
            ("ReplicaSet", &failed, 1, true),
            ("ReplicaSet", &failed, 1000, true),
            ("ReplicaSet", &failed_by_itself, 1, true),
            ("ReplicaSet", &failed_by_itself, 1000, false),
            ("ReplicaSet", &json!({"phase": "Running"}), 1, false),
            ("ReplicaSet", &target("DeletionByTaintManager"), 1, true),
            ("ReplicaSet", &target("EvictionByEvictionAPI"), 1, false),
            ("Job", &failed, 1, true),
            ("Job", &failed_by_itself, 1, false),
        ] {
            let lives = ShortLives::default();
            ends(&lives, kind, status.clone(), seconds);
            assert_eq!(lives.wait("u").is_some(), expected, "{kind} {status} after {seconds} s");
        }
    }
}
