//! Retries of failed work, with a back-off per object.
//!
//! The server's loops process objects that any user may have written. One that fails permanently (too large to be updated, say)
//! must neither delay others nor spin: only that one is retried, with growing delays.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use futures::StreamExt;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// A wait that doubles from one second to five minutes.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The delay after another failure.
    pub fn next(&mut self) -> Duration {
        let wait = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        wait
    }
}

/// The keys of failed objects, each due after its own delay.
#[derive(Debug)]
pub(super) struct Retries<K> {
    due: DelayQueue<K>,
    known: HashMap<K, (Backoff, Option<delay_queue::Key>)>,
}

impl<K> Default for Retries<K> {
    fn default() -> Retries<K> {
        Retries { due: DelayQueue::new(), known: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> Retries<K> {
    /// Records another failure of the object.
    pub fn failed(&mut self, key: K) {
        let (backoff, place) = self.known.entry(key.clone()).or_default();
        let wait = backoff.next();
        match place {
            Some(place) => self.due.reset(place, wait),
            None => *place = Some(self.due.insert(key, wait)),
        }
    }

    /// Records that nothing is left to retry for the object: it succeeded, or is gone.
    pub fn forget(&mut self, key: &K) {
        if let Some((_, Some(place))) = self.known.remove(key) {
            self.due.remove(&place);
        }
    }

    /// Whether a retry for the object is pending.
    pub fn has(&self, key: &K) -> bool {
        self.known.contains_key(key)
    }

    /// The next object that is due; never resolves while none waits.
    pub async fn next(&mut self) -> K {
        match self.due.next().await {
            Some(due) => {
                let key = due.into_inner();
                if let Some((_, place)) = self.known.get_mut(&key) {
                    *place = None;
                }
                key
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_doubles_to_five_minutes() {
        let mut backoff = Backoff::default();
        let waits: Vec<u64> = (0..20).map(|_| backoff.next().as_secs()).collect();
        assert_eq!(waits[..10], [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(waits[19], 300);
    }

    #[tokio::test(start_paused = true)]
    async fn each_object_waits_for_itself() {
        let mut retries = Retries::default();
        let begun = tokio::time::Instant::now();
        let mut seen = Vec::new();
        retries.failed("a");
        retries.failed("c");
        retries.forget(&"c");
        for _ in 0..3 {
            let key = retries.next().await;
            retries.failed(key);
            seen.push((key, begun.elapsed().as_secs()));
            if seen.len() == 1 {
                retries.failed("b");
            }
        }
        assert_eq!(seen, [("a", 1), ("b", 2), ("a", 3)]);
        assert!(retries.has(&"a") && !retries.has(&"c"));
        retries.forget(&"a");
        retries.forget(&"b");
        assert!(tokio::time::timeout(LONGEST * 2, retries.next()).await.is_err(), "nothing is left to try");
    }
}
