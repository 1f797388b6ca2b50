//! The Pods that wait for a node: active ones by priority, ones in backoff, and parked ones that a change may help.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use tokio::time::Instant;

use super::plugins::PLUGINS;
use crate::client::Key;

/// Upstream's podInitialBackoffSeconds and podMaxBackoffSeconds.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// A parked Pod is tried again after so long even if nothing seems to help it.
const MAX_PARKED: Duration = Duration::from_secs(5 * 60);

/// Something that happened in the cluster, as far as it may help a parked Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    NodeAdded,
    NodeAllocatable,
    NodeLabels,
    NodeTaints,
    NodeUnschedulable,
    /// A Pod left its node.
    PodRemoved,
}

/// What changed of a node.
pub fn node_changes(old: &Node, new: &Node) -> Vec<Change> {
    let spec = |n: &Node| n.spec.clone().unwrap_or_default();
    let allocatable = |n: &Node| n.status.as_ref().and_then(|s| s.allocatable.clone());
    let (before, after) = (spec(old), spec(new));
    let mut changes = Vec::new();
    let mut note = |changed: bool, change| changes.extend(changed.then_some(change));
    note(allocatable(old) != allocatable(new), Change::NodeAllocatable);
    note(old.metadata.labels != new.metadata.labels, Change::NodeLabels);
    note(before.taints != after.taints, Change::NodeTaints);
    note(before.unschedulable != after.unschedulable, Change::NodeUnschedulable);
    changes
}

/// Where a waiting Pod is.
enum Place {
    Active(Rank),
    Backoff(Instant),
    Parked {
        plugins: BTreeSet<&'static str>,
        until: Instant,
    },
    /// Its binding is being written.
    InFlight,
}

/// Higher priority first, then first come, first served.
type Rank = (Reverse<i32>, u64, Key);

struct Waiting {
    pod: Arc<Pod>,
    place: Place,
    attempts: u32,
    last_try: Instant,
}

/// See the module.
#[derive(Default)]
pub struct Queue {
    pods: HashMap<Key, Waiting>,
    active: BTreeSet<Rank>,
    /// When each Pod in backoff or parked is due.
    due: BTreeMap<(Instant, Key), ()>,
    arrivals: u64,
}

impl Queue {
    /// Takes a Pod in, or its newer form. A parked one whose spec or labels changed is tried again.
    pub fn add(&mut self, key: Key, pod: Arc<Pod>) {
        let Some(waiting) = self.pods.get_mut(&key) else {
            let waiting = Waiting { pod, place: Place::InFlight, attempts: 0, last_try: Instant::now() };
            self.pods.insert(key.clone(), waiting);
            return self.activate(&key);
        };
        let another = waiting.pod.metadata.uid != pod.metadata.uid;
        let changed = waiting.pod.spec != pod.spec || waiting.pod.metadata.labels != pod.metadata.labels;
        waiting.pod = pod;
        if another {
            waiting.attempts = 0;
        }
        match waiting.place {
            Place::Parked { .. } if changed || another => self.activate(&key),
            Place::InFlight if another => self.activate(&key),
            _ => {}
        }
    }

    pub fn remove(&mut self, key: &Key) {
        self.unplace(key);
        self.pods.remove(key);
    }

    pub fn has_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// The Pod whose turn it is.
    pub fn pop(&mut self) -> Option<(Key, Arc<Pod>)> {
        let (.., key) = self.active.pop_first()?;
        let waiting = self.pods.get_mut(&key)?;
        waiting.attempts += 1;
        waiting.last_try = Instant::now();
        waiting.place = Place::InFlight;
        Some((key, waiting.pod.clone()))
    }

    pub fn in_flight(&mut self, key: &Key) {
        if let Some(waiting) = self.pods.get_mut(key) {
            waiting.place = Place::InFlight;
        }
    }

    /// Its binding is written.
    pub fn bound(&mut self, key: &Key) {
        if self.pods.get(key).is_some_and(|w| matches!(w.place, Place::InFlight)) {
            self.remove(key);
        }
    }

    /// No node fits: waits for a change that one of the plugins names, or for a while.
    pub fn park(&mut self, key: Key, _pod: Arc<Pod>, plugins: BTreeSet<&'static str>) {
        let until = Instant::now() + MAX_PARKED;
        self.set(&key, Place::Parked { plugins, until });
    }

    /// Its binding failed: tried again after its backoff.
    pub fn retry(&mut self, key: Key, _pod: Arc<Pod>) {
        let Some(until) = self.pods.get(&key).map(backoff_end) else { return };
        self.set(&key, Place::Backoff(until));
    }

    /// Moves the parked Pods that a change may help.
    pub fn on_change(&mut self, change: &Change) {
        let helps = |plugins: &BTreeSet<&str>| {
            plugins.is_empty() || PLUGINS.iter().any(|p| plugins.contains(p.name) && (p.wakes)(change))
        };
        let woken: Vec<Key> = self
            .pods
            .iter()
            .filter(|(_, w)| matches!(&w.place, Place::Parked { plugins, .. } if helps(plugins)))
            .map(|(key, _)| key.clone())
            .collect();
        for key in woken {
            let Some(until) = self.pods.get(&key).map(backoff_end) else { continue };
            if until <= Instant::now() { self.activate(&key) } else { self.set(&key, Place::Backoff(until)) }
        }
    }

    /// When the next Pod is due.
    pub fn next_wake(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), ())| *at)
    }

    /// Moves what is due to the active ones.
    pub fn wake(&mut self, now: Instant) {
        while let Some((at, key)) = self.due.first_key_value().map(|(k, ())| k.clone()) {
            if at > now {
                break;
            }
            self.activate(&key);
        }
    }

    fn activate(&mut self, key: &Key) {
        let Some(priority) = self.pods.get(key).map(|w| w.pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0))
        else {
            return;
        };
        self.arrivals += 1;
        let rank = (Reverse(priority), self.arrivals, key.clone());
        self.set(key, Place::Active(rank));
    }

    fn set(&mut self, key: &Key, place: Place) {
        self.unplace(key);
        let Some(waiting) = self.pods.get_mut(key) else { return };
        match &place {
            Place::Active(rank) => drop(self.active.insert(rank.clone())),
            Place::Backoff(at) | Place::Parked { until: at, .. } => drop(self.due.insert((*at, key.clone()), ())),
            Place::InFlight => {}
        }
        waiting.place = place;
    }

    /// Takes a Pod out of the order it stands in.
    fn unplace(&mut self, key: &Key) {
        match self.pods.get(key).map(|w| &w.place) {
            Some(Place::Active(rank)) => drop(self.active.remove(rank)),
            Some(Place::Backoff(at) | Place::Parked { until: at, .. }) => drop(self.due.remove(&(*at, key.clone()))),
            _ => {}
        }
    }
}

/// 1 s after the first failure, twice as long after each further one, at most 10 s.
fn backoff_end(waiting: &Waiting) -> Instant {
    let doublings = waiting.attempts.saturating_sub(1).min(10);
    waiting.last_try + (FIRST_BACKOFF * 2u32.pow(doublings)).min(MAX_BACKOFF)
}
