//! Whose turn it is with what takes a CPU or a disk: files of volumes (an object that many Pods show is written for each of them when
//! it changes), volumes that are given to a group or removed, logs that are read. Nobody should have to wait for one namespace.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::{Mutex as Lock, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// So long a turn may keep others waiting. A Pod can make a folder take minutes: by a million files, or because it holds the locks of
/// the kernel that they need while it is starved.
const PATIENCE: Duration = Duration::from_secs(10);
/// So many turns that take longer go on beside the others. Each may keep a thread.
const BESIDE: usize = 8;

/// The turns of all namespaces: each has one at a time, a node so many, and whoever waits longest comes next.
pub struct Turns {
    places: Arc<Semaphore>,
    beside: Arc<Semaphore>,
    namespaces: Mutex<HashMap<String, Weak<Lock<()>>>>,
}

/// A turn; it ends when this is dropped.
pub struct Turn {
    namespace: OwnedMutexGuard<()>,
    place: Option<OwnedSemaphorePermit>,
    beside: Arc<Semaphore>,
}

impl Turns {
    pub fn new(places: usize) -> Turns {
        let (places, beside) = (Arc::new(Semaphore::new(places)), Arc::new(Semaphore::new(BESIDE)));
        Turns { places, beside, namespaces: Mutex::default() }
    }

    /// Waits for the namespace's turn.
    pub async fn take(&self, namespace: &str) -> Turn {
        let own = self.of(namespace).lock_owned().await;
        // The semaphore is never closed.
        let place = self.places.clone().acquire_owned().await.ok();
        Turn { namespace: own, place, beside: self.beside.clone() }
    }

    /// The namespace's turn, if it is now.
    pub fn try_take(&self, namespace: &str) -> Option<Turn> {
        let own = self.of(namespace).try_lock_owned().ok()?;
        let place = self.places.clone().try_acquire_owned().ok()?;
        Some(Turn { namespace: own, place: Some(place), beside: self.beside.clone() })
    }

    /// Keeps the namespace, and nobody else, waiting for so long.
    pub fn rest(turn: Turn, pause: Duration) {
        let Turn { namespace: own, .. } = turn;
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

impl Turn {
    /// Does something in this turn. What takes longer than [`PATIENCE`] leaves its place to others and goes on beside, as far as few
    /// enough do: the namespace has no other turn until it is done, whether or not anybody waits for it. Errors: it panicked.
    pub async fn work_or_leave<T: Send + 'static>(
        self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, String> {
        // Whoever waits may go away: a thread that is at work stays, and its turn with it.
        tokio::spawn(self.see_through(work)).await.map_err(|e| e.to_string())
    }

    async fn see_through<T>(self, work: impl Future<Output = T>) -> T {
        let Turn { namespace: _namespace, place, beside } = self;
        let mut work = pin!(work);
        if let Ok(done) = tokio::time::timeout(PATIENCE, &mut work).await {
            return done;
        }
        let _beside = tokio::select! {
            biased;
            done = &mut work => return done,
            // The semaphore is never closed.
            permit = beside.acquire_owned() => permit.ok(),
        };
        drop(place);
        work.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_wants_many_has_one_turn_at_a_time() {
        let (turns, done) = (Arc::new(Turns::new(2)), Arc::new(AtomicUsize::new(0)));
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

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_leaves_its_place_and_no_more_than_so_many_go_on_beside() {
        let (turns, begin) = (Arc::new(Turns::new(1)), tokio::time::Instant::now());
        const HOUR: Duration = Duration::from_secs(3600);
        let start = |namespace: String| {
            let turns = turns.clone();
            tokio::spawn(async move { turns.take(&namespace).await.work_or_leave(tokio::time::sleep(HOUR)).await })
        };
        let slow: Vec<_> = (0..BESIDE).map(|n| start(n.to_string())).collect();
        tokio::time::sleep(Duration::from_millis(1)).await;
        // All begin, one after the other.
        drop(turns.take("other").await);
        assert!(begin.elapsed() >= PATIENCE * BESIDE as u32 && begin.elapsed() < Duration::from_secs(600));
        // Nobody waits for it any more; it goes on.
        slow[0].abort();
        assert!(turns.try_take("0").is_none(), "a namespace has one turn, however long it takes");
        let last = start("last".to_owned());
        tokio::time::sleep(2 * PATIENCE).await;
        assert!(turns.try_take("other").is_none(), "there are enough of them");
        drop(turns.take("other").await);
        assert!(begin.elapsed() >= HOUR);
        assert_eq!(turns.take("0").await.work_or_leave(async { 7 }).await, Ok(7));
        drop((slow, last));
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_rests_keeps_nobody_else_waiting() {
        let (turns, begin) = (Turns::new(1), tokio::time::Instant::now());
        Turns::rest(turns.take("busy").await, Duration::from_secs(1));
        drop(turns.take("other").await);
        assert_eq!(begin.elapsed(), Duration::ZERO);
        drop(turns.take("busy").await);
        assert!(begin.elapsed() >= Duration::from_secs(1));
    }
}
