//! A fair lock for long work: one piece at a time, with sources taking turns, however many pieces each has waiting.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};

use tokio::sync::{Mutex, OwnedMutexGuard};

/// The current holder, and the waiters.
#[derive(Default)]
pub struct FairLock {
    work: Arc<Mutex<()>>,
    /// A queue for each source with work: its first entry competes with other sources.
    lines: Lock<HashMap<IpAddr, Arc<Mutex<()>>>>,
}

/// The lock, held until dropped.
pub struct Turn<'a> {
    lock: &'a FairLock,
    source: IpAddr,
    /// Released in this order: the source's next entry must not precede other waiting sources.
    _work: OwnedMutexGuard<()>,
    _line: OwnedMutexGuard<()>,
}

impl FairLock {
    /// Waits for a turn of `source`. (The locks are fair: first come, first served.)
    pub async fn take(&self, source: IpAddr) -> Turn<'_> {
        let source = source.to_canonical();
        let line = self.lines().entry(source).or_default().clone();
        let line = line.lock_owned().await;
        let work = self.work.clone().lock_owned().await;
        Turn { lock: self, source, _work: work, _line: line }
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<Mutex<()>>>> {
        // The state is consistent even after a panic: each change is atomic.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut lines = self.lock.lines();
        // The map's reference and ours: no one else waits. (A waiter that gave up is cleaned up with the next.)
        if lines.get(&self.source).is_some_and(|line| Arc::strong_count(line) <= 2) {
            lines.remove(&self.source);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn source(n: u8) -> IpAddr {
        IpAddr::from([10, 244, 1, n])
    }

    #[tokio::test]
    async fn a_source_that_waits_with_much_is_one_among_the_others() {
        let lock = FairLock::default();
        let first = lock.take(source(1)).await;
        let mut greedy: Vec<_> = (0..20).map(|_| Box::pin(lock.take(source(1)))).collect();
        assert!(greedy.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
        let mut other = Box::pin(lock.take(source(2)));
        assert!(futures::poll!(&mut other).is_pending());
        drop(first);
        // At most one of the greedy may have come first.
        let one = futures::poll!(&mut greedy[0]);
        drop(one);
        assert!(futures::poll!(&mut other).is_ready(), "it does not wait for all of them");
    }

    #[tokio::test]
    async fn nothing_is_kept_of_who_has_had_his_turn() {
        let lock = FairLock::default();
        for n in 0..9 {
            drop(lock.take(source(n)).await);
        }
        assert!(lock.lines().is_empty());
    }
}
