//! A semaphore that is fair between namespaces, for work that takes CPU or disk: volume files (an object that many Pods mount is
//! written for each of them when it changes) and log reads. No namespace can delay the others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::{Mutex as Lock, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// Each namespace holds one turn at a time, a node a bounded number, and the longest waiting comes next.
pub struct FairSemaphore {
    places: Arc<Semaphore>,
    namespaces: Mutex<HashMap<String, Weak<Lock<()>>>>,
}

/// A turn; it ends when this is dropped.
pub struct Turn {
    _namespace: OwnedMutexGuard<()>,
    _place: Option<OwnedSemaphorePermit>,
}

impl FairSemaphore {
    pub fn new(places: usize) -> FairSemaphore {
        FairSemaphore { places: Arc::new(Semaphore::new(places)), namespaces: Mutex::default() }
    }

    /// Waits for a turn of the namespace.
    pub async fn take(&self, namespace: &str) -> Turn {
        let own = self.of(namespace).lock_owned().await;
        // The semaphore is never closed.
        let place = self.places.clone().acquire_owned().await.ok();
        Turn { _namespace: own, _place: place }
    }

    /// Ends the turn, but blocks its namespace for `pause`.
    pub fn rest(turn: Turn, pause: Duration) {
        let Turn { _namespace: own, .. } = turn;
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            drop(own);
        });
    }

    fn of(&self, namespace: &str) -> Arc<Lock<()>> {
        let mut all = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.get(namespace).and_then(Weak::upgrade) {
            return found;
        }
        all.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(Lock::new(()));
        all.insert(namespace.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_wants_many_has_one_turn_at_a_time() {
        let (semaphore, done) = (Arc::new(FairSemaphore::new(2)), Arc::new(AtomicUsize::new(0)));
        for namespace in ["many", "more"] {
            for _ in 0..50 {
                let (semaphore, done) = (semaphore.clone(), done.clone());
                tokio::spawn(async move {
                    let _turn = semaphore.take(namespace).await;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    done.fetch_add(1, Relaxed);
                });
            }
        }
        tokio::time::sleep(Duration::from_millis(1500)).await;
        drop(semaphore.take("other").await);
        assert_eq!(done.load(Relaxed), 4, "it waited for those who had their turns, and for nobody else");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(done.load(Relaxed), 100);
        assert_eq!(semaphore.namespaces.lock().unwrap().values().filter(|lock| lock.strong_count() > 0).count(), 0);
    }
    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_rests_keeps_nobody_else_waiting() {
        let (semaphore, begin) = (FairSemaphore::new(1), tokio::time::Instant::now());
        FairSemaphore::rest(semaphore.take("busy").await, Duration::from_secs(1));
        drop(semaphore.take("other").await);
        assert_eq!(begin.elapsed(), Duration::ZERO);
        drop(semaphore.take("busy").await);
        assert!(begin.elapsed() >= Duration::from_secs(1));
    }
}
