//! Back-off for owners whose Pods fail right after their creation.
//!
//! A template may name a node that refuses its Pods, or that is lost: each is replaced at once, which only produces more objects.
//! (Upstream only has a general rate limit for controllers.) Here the owner waits with growing delay while its Pods fail like this,
//! as a kubelet does with containers. Rounds are counted, not Pods: those that were created together and fail together are one,
//! however many. A change of the owner's spec ends the wait.
//!
//! Only Pods created by the owner's controller count: any user can create a Pod that names an owner.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ObjectReference, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use tokio::time::Instant;

use super::{Failure, meta, write::Note};
use podwright_client::{Delta, Typed, reference};

/// A Pod that lived no longer than this is short-lived.
const SHORT: Duration = Duration::from_secs(10);
/// The wait after the first round is twice as long; it doubles up to `MOST`.
const FIRST: Duration = Duration::from_millis(10);
const MOST: Duration = Duration::from_secs(60);
/// Waits that users notice are also reported in the status.
const LONG: Duration = Duration::from_secs(1);
/// When this much more time than the wait has passed without another round, everything is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Beyond this number, idle owners are forgotten.
const MAKERS: usize = 1024;
/// How many of an owner's last Pods are tracked: as many as are created at a time.
const PODS: usize = 500;

/// The reason of events and conditions.
pub const CREATION_BACK_OFF: &str = "CreationBackOff";
const MESSAGE: &str = "Back-off creating Pods: the last ones have ended right after their creation";

/// An object that creates Pods, in its current state.
#[derive(Clone, Debug)]
pub struct Maker {
    about: ObjectReference,
    generation: Option<i64>,
}

impl Maker {
    pub fn of<K: Typed>(object: &K) -> Maker {
        Maker { about: reference(object), generation: object.metadata().generation }
    }

    fn id(&self) -> Id {
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        Id { namespace: text(&self.about.namespace), kind: text(&self.about.kind), uid: text(&self.about.uid) }
    }
}

/// Identifies an owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Id {
    namespace: String,
    kind: String,
    uid: String,
}

impl Id {
    /// A Pod's controller, according to the Pod.
    fn of_controller(pod: &ObjectMeta) -> Option<Id> {
        let owner = meta::controller(pod)?;
        let namespace = meta::namespace(pod).to_owned();
        Some(Id { namespace, kind: owner.kind.clone(), uid: owner.uid.clone() })
    }
}

/// The state of all owners.
#[derive(Default)]
pub struct ShortLives(Mutex<Makers>);

#[derive(Default)]
struct Makers {
    known: HashMap<Id, Rounds>,
    /// How many remained when idle ones were last forgotten.
    left: usize,
}

/// The rounds of one owner.
struct Rounds {
    generation: Option<i64>,
    /// Consecutive rounds.
    count: u32,
    /// When the last one started to fail.
    at: Instant,
    /// Whether Pods were created since then, and when the last was.
    made: bool,
    made_at: Instant,
    /// Whether its wait was reported.
    told: bool,
    /// The last created Pods that have not ended, by hashes of their uids.
    pods: VecDeque<u64>,
}

impl Rounds {
    fn new(generation: Option<i64>) -> Rounds {
        let now = Instant::now();
        Rounds { generation, count: 0, at: now, made: false, made_at: now, told: false, pods: VecDeque::new() }
    }

    fn wait(&self) -> Duration {
        match self.count {
            0 => Duration::ZERO,
            count => FIRST.saturating_mul(1u32.checked_shl(count).unwrap_or(u32::MAX)).min(MOST),
        }
    }

    /// The rest of the wait.
    fn left(&self) -> Option<Duration> {
        self.wait().checked_sub(self.at.elapsed()).filter(|left| !left.is_zero())
    }

    /// For how much longer they count.
    fn count_for(&self) -> Duration {
        (self.wait() + FORGOTTEN).saturating_sub(self.at.elapsed())
    }

    /// Whether it has created nothing for so long that none of it would count.
    fn is_at_rest(&self) -> bool {
        self.count_for().is_zero() && self.made_at.elapsed() > self.wait() + FORGOTTEN
    }

    fn end(&mut self) {
        if self.count_for().is_zero() {
            self.count = 0;
        } else if !self.made {
            return;
        }
        (self.count, self.at, self.made, self.told) = (self.count.saturating_add(1), Instant::now(), false, false);
    }
}

/// An owner's wait.
pub struct Wait {
    pub left: Duration,
    /// The event about it, once for each wait.
    pub news: Option<Note>,
}

impl ShortLives {
    /// Whether an owner has to wait before it creates Pods.
    pub fn must_wait(&self, maker: &Maker) -> bool {
        self.makers().of(maker).is_some_and(|rounds| rounds.left().is_some())
    }

    /// How long it has to wait.
    pub fn wait(&self, maker: &Maker) -> Option<Wait> {
        let mut makers = self.makers();
        let rounds = makers.of(maker)?;
        let left = rounds.left()?;
        // A single one may be a coincidence.
        let is_new = rounds.count > 1 && !std::mem::replace(&mut rounds.told, true);
        let news = is_new.then(|| Note::warning(maker.about.clone(), CREATION_BACK_OFF, MESSAGE));
        Some(Wait { left, news })
    }

    /// What an owner's status reports about its waits, and for how long, if nothing else happens.
    pub fn trouble(&self, maker: &Maker) -> Option<(Failure, Duration)> {
        let mut makers = self.makers();
        let rounds = makers.of(maker)?;
        let left = rounds.count_for();
        let failure = || Failure { reason: CREATION_BACK_OFF, message: MESSAGE.to_owned() };
        (rounds.wait() >= LONG && !left.is_zero()).then(|| (failure(), left))
    }

    /// The owner creates Pods now.
    pub fn make(&self, maker: &Maker) {
        let mut makers = self.makers();
        makers.tidy();
        let rounds = makers.known.entry(maker.id()).or_insert_with(|| Rounds::new(maker.generation));
        if rounds.generation != maker.generation {
            // Existing Pods may still fail.
            let pods = std::mem::take(&mut rounds.pods);
            *rounds = Rounds { pods, ..Rounds::new(maker.generation) };
        }
        (rounds.made, rounds.made_at) = (true, Instant::now());
    }

    /// A Pod with this metadata was created, according to the server.
    pub fn made(&self, pod: &ObjectMeta) {
        let Some(id) = Id::of_controller(pod) else { return };
        if let Some(rounds) = self.makers().known.get_mut(&id) {
            rounds.pods.truncate(PODS - 1);
            rounds.pods.push_front(known_by(pod));
        }
    }

    /// Checks whether a Pod of an owner of `kind` ends with this change, and how long it lived.
    pub fn observe(&self, change: &Delta<Pod>, kind: &str, now: Timestamp) {
        let Some(new) = change.new.as_ref().filter(|new| has_failed(new)) else { return };
        if change.old.as_ref().is_some_and(|old| has_failed(old)) || !is_short(new, kind, now) {
            return;
        }
        let Some(id) = Id::of_controller(&new.metadata).filter(|id| id.kind == kind) else { return };
        let mut makers = self.makers();
        let Some(rounds) = makers.known.get_mut(&id) else { return };
        if let Some(at) = rounds.pods.iter().position(|pod| *pod == known_by(&new.metadata)) {
            rounds.pods.remove(at);
            rounds.end();
        }
    }

    fn makers(&self) -> MutexGuard<'_, Makers> {
        // No panic can occur between its changes.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Makers {
    /// The rounds of an owner in its current state.
    fn of(&mut self, maker: &Maker) -> Option<&mut Rounds> {
        self.known.get_mut(&maker.id()).filter(|rounds| rounds.generation == maker.generation)
    }

    /// Forgets idle owners whenever there are twice as many.
    fn tidy(&mut self) {
        if self.known.len() >= MAKERS.max(2 * self.left) {
            self.known.retain(|_, rounds| !rounds.is_at_rest());
            self.left = self.known.len();
        }
    }
}

/// A Pod's key: the server chooses uids, so users cannot cause collisions.
fn known_by(pod: &ObjectMeta) -> u64 {
    let mut hasher = DefaultHasher::new();
    pod.uid.hash(&mut hasher);
    hasher.finish()
}

/// Whether a Pod has failed, or must be deleted, without anybody having requested it.
fn has_failed(pod: &Pod) -> bool {
    let goes = |reason: Option<&str>| matches!(reason, Some("DeletionByTaintManager" | "DeletionByPodGC"));
    (meta::phase(pod) == "Failed" && !meta::is_terminating(&pod.metadata))
        || meta::pod_condition(pod, "DisruptionTarget")
            .is_some_and(|it| it.status == "True" && goes(it.reason.as_deref()))
}

/// Whether a Pod that ends now is short-lived, or never lived. Successful Pods of a Job may be short; the Job itself limits its
/// retries.
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
mod tests;
