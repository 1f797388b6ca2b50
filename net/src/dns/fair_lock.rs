//! Work that takes long: one piece at a time, and each source that waits has its turn, however many pieces it waits with.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};

use tokio::sync::{Mutex, OwnedMutexGuard};

/// Who is at work, and who waits.
#[derive(Default)]
pub struct FairLock {
    work: Arc<Mutex<()>>,
    /// A line for each source that has work: its first is the one that waits for the others.
    lines: Lock<HashMap<IpAddr, Arc<Mutex<()>>>>,
}

/// The right to work, until it is dropped.
pub struct Turn<'a> {
    lock: &'a FairLock,
    source: IpAddr,
    /// Given up in this order: the next of the source may not come before the others that wait.
    _work: OwnedMutexGuard<()>,
    _line: OwnedMutexGuard<()>,
}

impl FairLock {
    /// Waits for a turn of `source`. (The locks are fair: who comes first is first.)
    pub async fn take(&self, source: IpAddr) -> Turn<'_> {
        let source = source.to_canonical();
        let line = self.lines().entry(source).or_default().clone();
        let line = line.lock_owned().await;
        let work = self.work.clone().lock_owned().await;
        Turn { lock: self, source, _work: work, _line: line }
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<Mutex<()>>>> {
        // Each change is whole at once: what a panic left behind is sound.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut lines = self.lock.lines();
        // The map's own, and ours: nobody else waits in it. (Who has given up waiting is forgotten with the next.)
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
        // One of the greedy may have come first, and no more than that.
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
