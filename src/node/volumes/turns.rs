//! Who may write files of volumes now: an object that many Pods show is written for each of them when it changes, and nobody else
//! should have to wait for that.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{Mutex as Lock, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// So many volumes of a node are written at once.
const PLACES: usize = 2;

/// The turns of all namespaces: each has one volume written at a time, and whoever waits longest comes next.
pub struct Turns {
    places: Arc<Semaphore>,
    namespaces: Mutex<HashMap<String, Weak<Lock<()>>>>,
}

/// A turn; it ends when this is dropped.
pub struct Turn {
    _namespace: OwnedMutexGuard<()>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { places: Arc::new(Semaphore::new(PLACES)), namespaces: Mutex::default() }
    }
}

impl Turns {
    /// Waits for the namespace's turn.
    pub async fn take(&self, namespace: &str) -> Turn {
        let own = self.of(namespace).lock_owned().await;
        // The semaphore is never closed.
        let place = self.places.clone().acquire_owned().await.ok();
        Turn { _namespace: own, _place: place }
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
    use std::{
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
        time::Duration,
    };

    #[tokio::test(start_paused = true)]
    async fn a_namespace_with_many_volumes_has_one_turn_at_a_time() {
        let (turns, done) = (Arc::new(Turns::default()), Arc::new(AtomicUsize::new(0)));
        for namespace in ["many", "more"] {
            for _ in 0..50 {
                let (turns, done) = (turns.clone(), done.clone());
                tokio::spawn(async move {
                    let _turn = turns.take(namespace).await;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    done.fetch_add(1, Relaxed);
                });
            }
        }
        tokio::time::sleep(Duration::from_millis(1500)).await;
        drop(turns.take("other").await);
        assert_eq!(done.load(Relaxed), 4, "it waited for those who had their turns, and for nobody else");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(done.load(Relaxed), 100);
        assert_eq!(turns.namespaces.lock().unwrap().values().filter(|lock| lock.strong_count() > 0).count(), 0);
    }
}
