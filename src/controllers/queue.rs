//! The work queue: contains a key once, gives it to one worker at a time, and retries failed keys with growing back-off. Namespaces
//! take turns, however many keys each has.
//!
//! The semantics are those of upstream's `client-go/util/workqueue`: `dirty` contains what needs work, `processing` what is being
//! processed; a key added while it is processed is queued again afterwards. (Upstream's queue is first come, first served, with one
//! rate limit for all retries: it does not distinguish tenants.)

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

/// A failing key's first delay; it doubles up to `MOST`.
const FIRST: Duration = Duration::from_millis(5);
const MOST: Duration = Duration::from_secs(1000);
/// The limit for all retries of one namespace: per second, and as a burst.
const RETRIES_PER_SECOND: f64 = 10.0;
const RETRY_BURST: f64 = 100.0;
/// Beyond this number, only namespaces with used-up tokens are kept.
const BUCKETS: usize = 1024;

/// A deduplicating, delaying, rate-limited queue. Clones share it.
#[derive(Clone)]
pub struct Queue(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    /// Each with its arrival.
    ready: FairQueue<(Key, Instant)>,
    dirty: HashSet<Key>,
    /// Each with the start of its processing.
    processing: HashMap<Key, Instant>,
    /// Keys to add later, and when. (tokio's `DelayQueue` does not order keys within a millisecond, which simulations need to be
    /// reproducible from a seed, and panics with delays of years.)
    later: BTreeSet<(Instant, Key)>,
    due: HashMap<Key, Instant>,
    /// Added patiently while being processed.
    patient: HashSet<Key>,
    failures: HashMap<Key, u32>,
    /// By namespace.
    buckets: HashMap<String, Bucket>,
    workers: usize,
    /// How many workers each namespace holds.
    held: HashMap<String, usize>,
    metrics: QueueMetrics,
}

/// The account of a key: its namespace, or for a Namespace itself, as it is the account of its content.
pub(super) fn account(key: &Key) -> &str {
    if key.namespace.is_empty() { &key.name } else { &key.namespace }
}

/// A token bucket with debt: a taker waits until its token has been earned.
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
    /// An empty queue for this many workers; its metrics have the label `name`.
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

    /// Adds `key`: now, or as soon as its current processing is done.
    pub fn add(&self, key: Key) {
        if self.state().add(key) {
            self.0.changed.notify_one();
        }
    }

    /// Adds `key` now or, if it has failed, at its next retry: for events that the controller's failing work may have caused
    /// itself. (Upstream's queue does not wait then; a failure with a different message each time, reported in a status, is then
    /// retried endlessly without delay.)
    pub fn add_patiently(&self, key: Key) {
        let mut state = self.state();
        if state.processing.contains_key(&key) {
            // The result of the processing decides.
            state.patient.insert(key);
        } else if !state.waits_for_retry(&key) && state.add(key) {
            drop(state);
            self.0.changed.notify_one();
        }
    }

    /// Adds `key` after `delay`. Of several delays the earliest counts.
    pub fn add_after(&self, key: Key, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        // A delay beyond the clock's range is ignored.
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

    /// Whether `key` will be processed within `delay` anyway.
    pub fn is_due_within(&self, key: &Key, delay: Duration) -> bool {
        let state = self.state();
        state.dirty.contains(key) || state.due.get(key).is_some_and(|when| when.duration_since(Instant::now()) <= delay)
    }

    /// Adds `key` after a failure: with growing delay, and a rate limit for all failing keys of a namespace.
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

    /// Adds all delayed keys now.
    pub fn hurry(&self) {
        let mut state = self.state();
        for (_, key) in std::mem::take(&mut state.later) {
            state.add(key);
        }
        state.due.clear();
        drop(state);
        self.0.changed.notify_one();
    }

    /// Resets the failures of `key`.
    pub fn forget(&self, key: &Key) {
        self.state().failures.remove(key);
    }

    /// How often `key` has failed since its last reset.
    pub fn failures(&self, key: &Key) -> u32 {
        self.state().failures.get(key).copied().unwrap_or(0)
    }

    /// The next key to process; `done` must follow.
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

    /// The processing of `key` has ended.
    pub fn done(&self, key: &Key) {
        let mut state = self.state();
        state.release(key);
        let patient = state.patient.remove(key) && !state.waits_for_retry(key);
        if state.dirty.contains(key) {
            state.line_up(key.clone());
        } else if patient {
            state.add(key.clone());
        }
        // A key may have waited for the worker that is free now.
        if !state.ready.is_empty() {
            drop(state);
            self.0.changed.notify_one();
        }
    }

    /// One worker: runs `work` on one key after the other until `shutdown`. A panic counts as a failure with back-off, and does not
    /// affect other keys.
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
    /// The next key, and its arrival. A namespace that holds workers gets another one while more are free than it holds, or no
    /// other waits and a quarter of them is free: slow work of one leaves workers to the others.
    fn next(&mut self) -> Option<(Key, Instant)> {
        let free = self.workers.saturating_sub(self.processing.len());
        let held = |namespace: &str| self.held.get(namespace).copied().unwrap_or(0);
        let spare = (self.workers / 4).max(1);
        let may = |namespace: &str| {
            let held = held(namespace);
            held == 0 || held < free || (free > spare && self.ready.is_only(namespace))
        };
        // The borrow of `ready` by `may` ends before it is modified.
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

    /// Whether a worker must be woken.
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

    /// Whether it has failed, and waits for its retry.
    fn waits_for_retry(&self, key: &Key) -> bool {
        self.failures.contains_key(key) && self.due.contains_key(key)
    }

    fn line_up(&mut self, key: Key) {
        self.metrics.depth.inc();
        let account = account(&key).to_owned();
        self.ready.push(&account, (key, Instant::now()));
    }

    /// How long a namespace's retry waits for other ones.
    fn retry(&mut self, namespace: &str, now: Instant) -> Duration {
        if self.buckets.len() >= BUCKETS {
            self.buckets.retain(|_, bucket| bucket.holds(now) < RETRY_BURST);
        }
        let full = Bucket { tokens: RETRY_BURST, at: now };
        self.buckets.entry(namespace.to_owned()).or_insert(full).take(now)
    }

    /// Adds delayed keys that are due.
    fn mature(&mut self, now: Instant) {
        while self.later.first().is_some_and(|(when, _)| *when <= now) {
            let Some((_, key)) = self.later.pop_first() else { return };
            self.due.remove(&key);
            self.add(key);
        }
    }
}
