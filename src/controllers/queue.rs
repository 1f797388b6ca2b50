//! The work queue: a key is in it once, is worked on by one worker at a time, and comes back ever later while it fails. Each
//! namespace's keys have their turn, however many another has.
//!
//! The semantics are those of upstream's `client-go/util/workqueue`: `dirty` holds what needs work, `processing` what is
//! worked on; a key added while it is worked on comes back when that is done. (There, whoever comes first is served first, and all
//! retries have one rate: that a cluster has many tenants is nothing to upstream's queue.)

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::FutureExt;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{fair_queue::FairQueue, queue_metrics::QueueMetrics};
use podwright_client::Key;

/// A failing key's first wait; it doubles up to `MOST`.
const FIRST: Duration = Duration::from_millis(5);
const MOST: Duration = Duration::from_secs(1000);
/// All retries of one namespace together: so many a second, in bursts of so many.
const RETRIES_PER_SECOND: f64 = 10.0;
const RETRY_BURST: f64 = 100.0;
/// Of more namespaces only those are remembered that have used up some of it.
const BUCKETS: usize = 1024;

/// A deduplicating, delaying, rate-limited queue. Clones share it.
#[derive(Clone)]
pub struct Queue(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    /// Each with when it came.
    ready: FairQueue<(Key, Instant)>,
    dirty: HashSet<Key>,
    /// Each with when the work on it began.
    processing: HashMap<Key, Instant>,
    /// What shall be added later, and for each such key when. (tokio's `DelayQueue` orders no keys within a millisecond, which a
    /// simulated run needs to be the same again from its seed, and panics at waits of years.)
    later: BTreeSet<(Instant, Key)>,
    due: HashMap<Key, Instant>,
    /// What was added patiently while it was worked on.
    patient: HashSet<Key>,
    failures: HashMap<Key, u32>,
    /// By namespace.
    buckets: HashMap<String, Bucket>,
    workers: usize,
    /// How many workers each namespace holds.
    held: HashMap<String, usize>,
    metrics: QueueMetrics,
}

/// On whose account a key is worked on: its namespace's, or its own, as a Namespace is the account of what it holds.
pub(super) fn account(key: &Key) -> &str {
    if key.namespace.is_empty() { &key.name } else { &key.namespace }
}

/// A token bucket that lends: a taker waits until its token has been earned.
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn holds(&self, now: Instant) -> f64 {
        let earned = now.duration_since(self.at).as_secs_f64() * RETRIES_PER_SECOND;
        (self.tokens + earned).min(RETRY_BURST)
    }

    fn take(&mut self, now: Instant) -> Duration {
        (self.tokens, self.at) = (self.holds(now) - 1.0, now);
        Duration::from_secs_f64((-self.tokens / RETRIES_PER_SECOND).max(0.0))
    }
}

impl Default for Queue {
    fn default() -> Queue {
        Queue::new("", usize::MAX)
    }
}

impl Queue {
    /// An empty queue for so many workers; its figures are told under `name`.
    pub fn new(name: &'static str, workers: usize) -> Queue {
        let state = State {
            ready: FairQueue::default(),
            dirty: HashSet::new(),
            processing: HashMap::new(),
            later: BTreeSet::new(),
            due: HashMap::new(),
            patient: HashSet::new(),
            failures: HashMap::new(),
            buckets: HashMap::new(),
            workers,
            held: HashMap::new(),
            metrics: QueueMetrics::of(name),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Notify::new() });
        let queue = Arc::downgrade(&shared);
        QueueMetrics::watch(name, move |began| {
            let Some(queue) = queue.upgrade().map(Queue) else { return false };
            began.extend(queue.state().processing.values());
            true
        });
        Queue(shared)
    }

    /// Wants `key` worked on, now or as soon as the work on it that runs is done.
    pub fn add(&self, key: Key) {
        if self.state().add(key) {
            self.0.changed.notify_one();
        }
    }

    /// Wants `key` worked on now, or, if it has failed, when it is tried again: for what a controller may have brought about by the
    /// very work that has failed. (At upstream, such an event cuts each wait; a failure that says something else each time, and is
    /// told of in a status, is then tried again without end and without rest.)
    pub fn add_patiently(&self, key: Key) {
        let mut state = self.state();
        if state.processing.contains_key(&key) {
            // How that ends decides.
            state.patient.insert(key);
        } else if !state.waits_for_retry(&key) && state.add(key) {
            drop(state);
            self.0.changed.notify_one();
        }
    }

    /// Wants `key` worked on after `delay`. Of several such wishes the earliest counts.
    pub fn add_after(&self, key: Key, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        // A wait beyond what the clock can say is no wish at all.
        let Some(when) = Instant::now().checked_add(delay) else { return };
        let mut state = self.state();
        match state.due.get(&key).copied() {
            Some(sooner) if sooner <= when => return,
            Some(old) => state.later.remove(&(old, key.clone())),
            None => false,
        };
        state.due.insert(key.clone(), when);
        state.later.insert((when, key));
        drop(state);
        self.0.changed.notify_one();
    }

    /// Whether `key` is going to be worked on within `delay` as it is.
    pub fn is_due_within(&self, key: &Key, delay: Duration) -> bool {
        let state = self.state();
        state.dirty.contains(key) || state.due.get(key).is_some_and(|when| when.duration_since(Instant::now()) <= delay)
    }

    /// Wants `key` worked on again after a failure: later each time, and all failing keys of a namespace together at a bounded
    /// rate.
    pub fn add_rate_limited(&self, key: Key) {
        let delay = {
            let mut state = self.state();
            state.metrics.retries.inc();
            let failures = state.failures.entry(key.clone()).or_default();
            let own = FIRST.saturating_mul(1u32.checked_shl(*failures).unwrap_or(u32::MAX)).min(MOST);
            *failures = (*failures + 1).min(31);
            own.max(state.retry(&key.namespace, Instant::now()))
        };
        self.add_after(key, delay);
    }

    /// Wants all keys now that were to be worked on later.
    pub fn hurry(&self) {
        let mut state = self.state();
        for (_, key) in std::mem::take(&mut state.later) {
            state.add(key);
        }
        state.due.clear();
        drop(state);
        self.0.changed.notify_one();
    }

    /// Ends the history of failures of `key`.
    pub fn forget(&self, key: &Key) {
        self.state().failures.remove(key);
    }

    /// How often `key` has failed since it last was forgotten.
    pub fn failures(&self, key: &Key) -> u32 {
        self.state().failures.get(key).copied().unwrap_or(0)
    }

    /// The next key to work on; `done` must follow.
    pub async fn get(&self) -> Key {
        loop {
            let changed = self.0.changed.notified();
            let next = {
                let mut state = self.state();
                state.mature(Instant::now());
                if let Some((key, came)) = state.next() {
                    let now = Instant::now();
                    state.metrics.depth.dec();
                    state.metrics.waited.observe(now.duration_since(came).as_secs_f64());
                    state.dirty.remove(&key);
                    state.hold(&key, now);
                    // Another worker may be asleep while more is ready: one notification may stand for several keys.
                    if !state.ready.is_empty() {
                        self.0.changed.notify_one();
                    }
                    return key;
                }
                state.later.first().map(|(when, _)| *when)
            };
            match next {
                Some(when) => tokio::select! {
                    biased;
                    () = changed => {}
                    () = tokio::time::sleep_until(when) => {}
                },
                None => changed.await,
            }
        }
    }

    /// The work on `key` has ended.
    pub fn done(&self, key: &Key) {
        let mut state = self.state();
        state.release(key);
        let patient = state.patient.remove(key) && !state.waits_for_retry(key);
        if state.dirty.contains(key) {
            state.line_up(key.clone());
        } else if patient {
            state.add(key.clone());
        }
        // The worker that is free now may be what a key has waited for.
        if !state.ready.is_empty() {
            drop(state);
            self.0.changed.notify_one();
        }
    }

    /// One worker: does `work` on one key after the other until `shutdown`. Work that panics is tried again, ever later, and
    /// keeps nobody else from being worked on.
    pub async fn work<F>(&self, controller: &str, shutdown: &CancellationToken, work: impl Fn(Key) -> F)
    where
        F: Future<Output = ()>,
    {
        loop {
            let key = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                key = self.get() => key,
            };
            if let Err(panic) = AssertUnwindSafe(work(key.clone())).catch_unwind().await {
                let words = panic.downcast_ref::<&str>().copied();
                let words = words.or(panic.downcast_ref::<String>().map(String::as_str));
                tracing::error!(controller, %key, panic = words, "a reconcile panicked");
                self.add_rate_limited(key.clone());
            }
            self.done(&key);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    /// The next key, and when it came. A namespace that holds workers gets another one while more are free than it holds, or nobody
    /// else waits and a quarter of them is free: slow work of one leaves workers for the others.
    fn next(&mut self) -> Option<(Key, Instant)> {
        let free = self.workers.saturating_sub(self.processing.len());
        let held = |namespace: &str| self.held.get(namespace).copied().unwrap_or(0);
        let spare = (self.workers / 4).max(1);
        let may = |namespace: &str| {
            let held = held(namespace);
            held == 0 || held < free || (free > spare && self.ready.is_only(namespace))
        };
        // The borrow of `ready` by `may` ends before it is changed.
        let turn = self.ready.turn_of(may)?;
        self.ready.take(turn).map(|(_, next)| next)
    }

    fn hold(&mut self, key: &Key, now: Instant) {
        self.processing.insert(key.clone(), now);
        *self.held.entry(account(key).to_owned()).or_default() += 1;
    }

    fn release(&mut self, key: &Key) {
        let Some(began) = self.processing.remove(key) else { return };
        self.metrics.worked.observe(began.elapsed().as_secs_f64());
        if let Some(held) = self.held.get_mut(account(key)) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(account(key));
            }
        }
    }

    /// Whether a worker has something new to take.
    fn add(&mut self, key: Key) -> bool {
        if !self.dirty.insert(key.clone()) {
            return false;
        }
        self.metrics.adds.inc();
        if self.processing.contains_key(&key) {
            return false;
        }
        self.line_up(key);
        true
    }

    /// Whether it has failed, and is going to be tried again.
    fn waits_for_retry(&self, key: &Key) -> bool {
        self.failures.contains_key(key) && self.due.contains_key(key)
    }

    fn line_up(&mut self, key: Key) {
        self.metrics.depth.inc();
        let account = account(&key).to_owned();
        self.ready.push(&account, (key, Instant::now()));
    }

    /// How long a retry of a namespace has to wait for others of it.
    fn retry(&mut self, namespace: &str, now: Instant) -> Duration {
        if self.buckets.len() >= BUCKETS {
            self.buckets.retain(|_, bucket| bucket.holds(now) < RETRY_BURST);
        }
        let full = Bucket { tokens: RETRY_BURST, at: now };
        self.buckets.entry(namespace.to_owned()).or_insert(full).take(now)
    }

    /// Adds what was to be added later and is due.
    fn mature(&mut self, now: Instant) {
        while self.later.first().is_some_and(|(when, _)| *when <= now) {
            let Some((_, key)) = self.later.pop_first() else { return };
            self.due.remove(&key);
            self.add(key);
        }
    }
}
