//! Pods without a node: active ones by priority and alternating namespaces, those in backoff, and parked ones that wait for a
//! helpful change.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use tokio::time::Instant;

use super::{
    config::Config,
    framework::{ClusterEvent, QueueingHint},
    metrics::METRICS,
    plugins::{self, NOBODY, priority_sort},
    pod::PodInfo,
};
use active::Active;
use podwright_client::Key;

mod active;

/// A parked Pod is retried after this time even without a helpful change.
const MAX_PARKED: Duration = Duration::from_secs(5 * 60);

/// The events for a changed node.
pub fn node_changes(old: &Node, new: &Node) -> Vec<ClusterEvent> {
    let spec = |n: &Node| n.spec.clone().unwrap_or_default();
    let allocatable = |n: &Node| n.status.as_ref().and_then(|s| s.allocatable.clone());
    let (before, after) = (spec(old), spec(new));
    let mut changes = Vec::new();
    let mut note = |changed: bool, change| changes.extend(changed.then_some(change));
    note(allocatable(old) != allocatable(new), ClusterEvent::NodeAllocatable);
    note(old.metadata.labels != new.metadata.labels, ClusterEvent::NodeLabels);
    note(before.taints != after.taints, ClusterEvent::NodeTaints);
    note(before.unschedulable != after.unschedulable, ClusterEvent::NodeUnschedulable);
    changes
}

/// The state of a queued Pod.
enum SubQueue {
    Active(Reverse<i32>),
    /// With a turn it is tried earlier if no Pod is active.
    Backoff(Instant, Option<Turn>),
    Parked(Parked),
    /// It is being decided, or its binding is being written.
    InFlight,
}

impl SubQueue {
    /// Upstream's name for this part of the queue.
    fn name(&self) -> Option<&'static str> {
        match self {
            SubQueue::Active(_) => Some("active"),
            SubQueue::Backoff(..) => Some("backoff"),
            SubQueue::Parked(_) => Some("unschedulable"),
            SubQueue::InFlight => None,
        }
    }
}

/// Why a Pod enters a part of the queue, in upstream's words; changes have their own names.
mod event {
    pub const ADDED: &str = "PodAdd";
    pub const UPDATED: &str = "PodUpdate";
    pub const FAILED: &str = "ScheduleAttemptFailure";
    pub const BACKED_OFF: &str = "BackoffComplete";
    pub const TIME: &str = "UnschedulableTimeout";
    pub const FORCED: &str = "ForceActivate";
}

/// No node fits.
struct Parked {
    plugins: BTreeSet<&'static str>,
    until: Instant,
}

/// The order of those in backoff: higher priority first, then first come, first served.
type Rank = (Reverse<i32>, u64, Key);

/// Ordered by the second in which the backoff ends, then by rank: Pods that failed more often wait longer.
type Turn = (u64, Rank);

/// What happened to a Pod while it is held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    Nothing,
    /// A change may help it.
    Helped,
}

struct Waiting {
    pod: Arc<PodInfo>,
    place: SubQueue,
    held: Option<Held>,
    /// Why its last attempt failed, as a condition's reason and message.
    failure: Option<(&'static str, Arc<str>)>,
    attempts: u32,
    since: Instant,
    /// When its last attempt ended.
    tried: Instant,
    /// When it was last queued.
    arrival: u64,
}

/// See the module. A Pod is identified by its name; calls about another one of the same name are ignored.
pub struct Queue {
    first_backoff: Duration,
    max_backoff: Duration,
    pods: HashMap<Key, Waiting>,
    active: Active,
    /// The parked ones by the plugins that rejected them, in the order of their attempts.
    parked: BTreeMap<&'static str, BTreeSet<(u64, Key)>>,
    /// When each Pod in backoff or parked is due.
    due: BTreeSet<(Instant, Key)>,
    /// Those in backoff without an error.
    eager: BTreeSet<Turn>,
    arrivals: u64,
    began: Instant,
}

fn is_parked(waiting: &Waiting) -> bool {
    matches!(waiting.place, SubQueue::Parked(_))
}

impl Drop for Queue {
    fn drop(&mut self) {
        let names = self.pods.values().filter_map(|waiting| waiting.place.name());
        names.for_each(|name| METRICS.pending(name, -1));
    }
}

impl Default for Queue {
    fn default() -> Queue {
        let Config { initial_backoff, max_backoff, .. } = Config::default();
        Queue::new(initial_backoff, max_backoff)
    }
}

impl Queue {
    /// After its first failure a Pod waits for `first_backoff`, then twice as long each time up to `max_backoff`.
    pub fn new(first_backoff: Duration, max_backoff: Duration) -> Queue {
        Queue {
            first_backoff,
            max_backoff,
            pods: HashMap::new(),
            active: Active::default(),
            parked: BTreeMap::new(),
            due: BTreeSet::new(),
            eager: BTreeSet::new(),
            arrivals: 0,
            began: Instant::now(),
        }
    }

    /// Adds or updates a Pod. A parked one whose spec or labels changed is retried.
    pub fn add(&mut self, pod: Arc<PodInfo>) {
        let key = pod.key.clone();
        let Some(waiting) = self.pods.get_mut(&key) else { return self.add_new(pod) };
        if waiting.pod.uid != pod.uid {
            self.remove(&key);
            return self.add_new(pod);
        }
        let (old, new) = (&waiting.pod.pod, &pod.pod);
        let changed = old.spec != new.spec || old.metadata.labels != new.metadata.labels;
        waiting.pod = pod;
        if changed && matches!(waiting.place, SubQueue::Parked(_)) {
            self.try_again(&key, event::UPDATED);
        }
    }

    fn add_new(&mut self, pod: Arc<PodInfo>) {
        let key = pod.key.clone();
        let waiting = Waiting {
            pod,
            place: SubQueue::InFlight,
            held: None,
            failure: None,
            attempts: 0,
            since: Instant::now(),
            tried: Instant::now(),
            arrival: 0,
        };
        self.pods.insert(key.clone(), waiting);
        self.activate(&key, event::ADDED);
    }

    pub fn remove(&mut self, key: &Key) {
        self.unplace(key);
        self.pods.remove(key);
    }

    pub fn contains(&self, pod: &PodInfo) -> bool {
        self.pods.get(&pod.key).is_some_and(|waiting| waiting.pod.uid == pod.uid)
    }

    pub fn len(&self) -> usize {
        self.pods.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Whether a Pod is ready to be tried.
    pub fn has_next(&self) -> bool {
        !self.active.is_empty() || !self.eager.is_empty()
    }

    /// The next Pod: if none is active, one in backoff. Backoff keeps failing Pods from delaying others, and there are none
    /// (upstream's `SchedulerPopFromBackoffQ`). After an error the backoff is always waited for. The Pod is in flight until `done`,
    /// `park` or `retry`.
    pub fn pop(&mut self) -> Option<Arc<PodInfo>> {
        let eager = || self.eager.first().map(|(_, (.., key))| key.clone());
        let key = self.active.next().or_else(eager)?;
        self.unplace(&key);
        let waiting = self.pods.get_mut(&key)?;
        waiting.attempts = waiting.attempts.saturating_add(1);
        (waiting.place, waiting.failure) = (SubQueue::InFlight, None);
        Some(waiting.pod.clone())
    }

    /// How often a Pod in flight has been tried, and since when it is queued.
    pub fn tries(&self, pod: &PodInfo) -> Option<(u32, Instant)> {
        let waiting = self.pods.get(&pod.key).filter(|waiting| waiting.pod.uid == pod.uid)?;
        Some((waiting.attempts, waiting.since))
    }

    /// It has a node, or is gone.
    pub fn done(&mut self, pod: &PodInfo) {
        if self.is_in_flight(pod) {
            self.remove(&pod.key);
        }
    }

    /// No node fits, with this message: it waits for a change that one of the plugins registers, or for a timeout.
    pub fn park(&mut self, pod: &PodInfo, mut plugins: BTreeSet<&'static str>, message: &str) {
        if self.is_in_flight(pod) {
            if plugins.is_empty() {
                plugins.insert(NOBODY);
            }
            let until = Instant::now() + MAX_PARKED;
            self.failed(&pod.key, "Unschedulable", message);
            self.set(&pod.key, SubQueue::Parked(Parked { plugins, until }), event::FAILED);
        }
    }

    /// Its binding failed, with this message: it is retried after its backoff.
    pub fn retry(&mut self, pod: &PodInfo, message: &str) {
        if self.is_in_flight(pod) {
            self.failed(&pod.key, "SchedulerError", message);
            self.after_backoff(&pod.key, true, event::FAILED);
        }
    }

    /// Retries a parked Pod.
    pub fn reconsider(&mut self, pod: &PodInfo) {
        if self.is_parked(pod) {
            self.try_again(&pod.key, event::FORCED);
        }
    }

    /// Once parked it stays so until it is let go, as changes made for it are not observed yet.
    pub fn hold(&mut self, pod: &PodInfo) {
        if let Some(waiting) = self.pods.get_mut(&pod.key).filter(|waiting| waiting.pod.uid == pod.uid) {
            waiting.held = Some(Held::Nothing);
        }
    }

    /// Retries it after its backoff if that has `failed`, or if a change would have helped it meanwhile.
    pub fn let_go(&mut self, pod: &PodInfo, failed: bool) {
        let waiting = self.pods.get_mut(&pod.key).filter(|waiting| waiting.pod.uid == pod.uid);
        let held = waiting.and_then(|waiting| waiting.held.take());
        match held.filter(|_| self.is_parked(pod)) {
            Some(_) if failed => self.after_backoff(&pod.key, true, event::FAILED),
            Some(Held::Helped) => self.try_again(&pod.key, event::FORCED),
            _ => {}
        }
    }

    /// A Pod whose last attempt failed, with the condition's reason and message.
    pub fn why(&self, key: &Key) -> Option<(Arc<PodInfo>, &'static str, Arc<str>)> {
        let waiting = self.pods.get(key)?;
        let (reason, message) = waiting.failure.clone()?;
        Some((waiting.pod.clone(), reason, message))
    }

    /// Moves the parked Pods that changes help: those for which a rejecting plugin says so (`queueing_hint`) and, if only on the
    /// changed node, that now fit there (`fits`; otherwise it returns the rejecting plugin). Pods whose plugins have not registered
    /// for a change are skipped: most changes help none.
    pub fn on_changes(
        &mut self,
        changes: &[ClusterEvent],
        queueing_hint: impl Fn(&PodInfo, &str, &ClusterEvent) -> QueueingHint,
        mut fits: impl FnMut(&PodInfo) -> Result<(), Option<&'static str>>,
    ) {
        let event = changes.first().map_or(event::FORCED, ClusterEvent::label);
        for (key, told) in self.helped(changes, queueing_hint) {
            let Some(waiting) = self.pods.get(&key) else { continue };
            match if told == QueueingHint::Anywhere { Ok(()) } else { fits(&waiting.pod) } {
                Ok(()) => self.try_again(&key, event),
                // Now this plugin rejects it there.
                Err(plugin) => plugin.into_iter().for_each(|plugin| self.also_turned_away(&key, plugin)),
            }
        }
    }

    /// The Pods that changes may help and where, in the order of their attempts.
    fn helped(
        &self,
        changes: &[ClusterEvent],
        queueing_hint: impl Fn(&PodInfo, &str, &ClusterEvent) -> QueueingHint,
    ) -> Vec<(Key, QueueingHint)> {
        let events_to_register = |plugin: &str| changes.iter().any(|change| plugins::is_registered(plugin, change));
        let listening = self.parked.iter().filter(|(plugin, _)| events_to_register(plugin));
        let mut asked: Vec<&(u64, Key)> = listening.flat_map(|(_, pods)| pods).collect();
        asked.sort_unstable();
        asked.dedup();
        let helped = |(_, key): &(u64, Key)| {
            let waiting = self.pods.get(key)?;
            let SubQueue::Parked(parked) = &waiting.place else { return None };
            let told =
                parked.plugins.iter().flat_map(|name| changes.iter().map(|c| queueing_hint(&waiting.pod, name, c)));
            told.max().filter(|told| *told != QueueingHint::No).map(|told| (key.clone(), told))
        };
        asked.into_iter().filter_map(helped).collect()
    }

    fn also_turned_away(&mut self, key: &Key, plugin: &'static str) {
        let Some(waiting) = self.pods.get_mut(key) else { return };
        if let SubQueue::Parked(parked) = &mut waiting.place
            && parked.plugins.insert(plugin)
        {
            self.parked.entry(plugin).or_default().insert((waiting.arrival, key.clone()));
        }
    }

    /// When the next Pod is due.
    pub fn next_wake(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Moves due Pods to the active ones.
    pub fn wake(&mut self, now: Instant) {
        while let Some((_, key)) = self.due.first().filter(|(at, _)| *at <= now).cloned() {
            let event = if self.pods.get(&key).is_some_and(is_parked) { event::TIME } else { event::BACKED_OFF };
            self.activate(&key, event);
        }
    }

    fn is_in_flight(&self, pod: &PodInfo) -> bool {
        self.pods.get(&pod.key).is_some_and(|w| w.pod.uid == pod.uid && matches!(w.place, SubQueue::InFlight))
    }

    /// Starts its backoff.
    fn failed(&mut self, key: &Key, reason: &'static str, message: &str) {
        if let Some(waiting) = self.pods.get_mut(key) {
            waiting.failure = Some((reason, message.into()));
            waiting.tried = Instant::now();
        }
    }

    fn is_parked(&self, pod: &PodInfo) -> bool {
        self.pods.get(&pod.key).is_some_and(|w| w.pod.uid == pod.uid && is_parked(w))
    }

    /// In its turn, unless it is held.
    fn try_again(&mut self, key: &Key, event: &'static str) {
        match self.pods.get_mut(key).and_then(|waiting| waiting.held.as_mut()) {
            Some(held) => *held = Held::Helped,
            None => self.after_backoff(key, false, event),
        }
    }

    /// After an error not before its backoff is over.
    fn after_backoff(&mut self, key: &Key, error: bool, event: &'static str) {
        let Some(waiting) = self.pods.get(key) else { return };
        let until = self.backoff_end(waiting);
        if until <= Instant::now() {
            return self.activate(key, event);
        }
        let rank = (priority_sort::rank(&waiting.pod), waiting.arrival, key.clone());
        let second = until.duration_since(self.began).as_secs();
        self.set(key, SubQueue::Backoff(until, (!error).then_some((second, rank))), event);
    }

    fn activate(&mut self, key: &Key, event: &'static str) {
        self.unplace(key);
        let Some(waiting) = self.pods.get_mut(key) else { return };
        self.arrivals += 1;
        (waiting.arrival, waiting.place, waiting.held) = (self.arrivals, SubQueue::InFlight, None);
        let priority = priority_sort::rank(&waiting.pod);
        self.set(key, SubQueue::Active(priority), event);
    }

    fn set(&mut self, key: &Key, place: SubQueue, event: &'static str) {
        self.unplace(key);
        let Some(waiting) = self.pods.get_mut(key) else { return };
        match &place {
            SubQueue::Active(priority) => self.active.insert(*priority, (waiting.arrival, key.clone())),
            SubQueue::Backoff(at, turn) => {
                self.due.insert((*at, key.clone()));
                self.eager.extend(turn.clone());
            }
            SubQueue::Parked(parked) => {
                self.due.insert((parked.until, key.clone()));
                for plugin in &parked.plugins {
                    self.parked.entry(*plugin).or_default().insert((waiting.arrival, key.clone()));
                }
            }
            SubQueue::InFlight => {}
        }
        if let Some(name) = place.name() {
            METRICS.pending(name, 1);
            METRICS.incoming(name, event);
        }
        waiting.place = place;
    }

    /// Removes a Pod from its current order; its state must then be set, or it be removed.
    fn unplace(&mut self, key: &Key) {
        let Some(waiting) = self.pods.get(key) else { return };
        waiting.place.name().into_iter().for_each(|name| METRICS.pending(name, -1));
        match &waiting.place {
            SubQueue::Active(priority) => self.active.remove(*priority, &(waiting.arrival, key.clone())),
            SubQueue::Backoff(at, turn) => {
                self.due.remove(&(*at, key.clone()));
                if let Some(turn) = turn {
                    self.eager.remove(turn);
                }
            }
            SubQueue::Parked(parked) => {
                self.due.remove(&(parked.until, key.clone()));
                let entry = (waiting.arrival, key.clone());
                for plugin in &parked.plugins {
                    if let Some(pods) = self.parked.get_mut(plugin) {
                        pods.remove(&entry);
                    }
                }
            }
            SubQueue::InFlight => {}
        }
    }

    /// The first backoff after the first failure, doubled after each further one, up to the maximum.
    fn backoff_end(&self, waiting: &Waiting) -> Instant {
        if waiting.attempts == 0 {
            return waiting.tried;
        }
        let doublings = (waiting.attempts - 1).min(20);
        waiting.tried + self.first_backoff.saturating_mul(2u32.pow(doublings)).min(self.max_backoff)
    }
}
