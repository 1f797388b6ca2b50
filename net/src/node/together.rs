//! Batches concurrent requests: scanning the kernel's whole conntrack table takes milliseconds, however little is searched, and so
//! does the removal of a link, however many are removed together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::lock;
use crate::Result;

/// A caller that arrives while a batch is running waits, and then runs one for all waiters, or finds its own done.
pub struct Together<T> {
    next: AtomicU64,
    /// By caller.
    waiting: Mutex<BTreeMap<u64, T>>,
    /// Callers whose items are done but who do not know yet. Held while a batch runs.
    served: Mutex<BTreeSet<u64>>,
}

impl<T> Default for Together<T> {
    fn default() -> Together<T> {
        Together { next: AtomicU64::new(0), waiting: Mutex::default(), served: Mutex::default() }
    }
}

impl<T: Clone> Together<T> {
    /// Runs `act` for `item`, together with all waiting ones. Errors: those of `act`, only for this caller: each of the others runs
    /// it again.
    pub fn run(&self, item: T, act: impl FnOnce(&[T]) -> Result<()>) -> Result<()> {
        let own = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.waiting).insert(own, item.clone());
        let mut served = lock(&self.served);
        if served.remove(&own) {
            return Ok(());
        }
        let mut all = std::mem::take(&mut *lock(&self.waiting));
        // It is missing if it was tried in another's batch, which failed.
        all.insert(own, item);
        let (ids, items): (Vec<u64>, Vec<T>) = all.into_iter().unzip();
        act(&items)?;
        served.extend(ids.into_iter().filter(|id| *id != own));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::Error;

    /// The first is delayed until all others wait.
    fn ten(fails: bool) -> (Vec<Vec<u32>>, usize) {
        let (together, done) = (Together::default(), Mutex::new(Vec::new()));
        let (begun, has_begun) = mpsc::channel();
        let results: Vec<Result<()>> = std::thread::scope(|scope| {
            let (together, done) = (&together, &done);
            let act = move |items: &[u32]| {
                lock(done).push(items.to_vec());
                if fails && items.len() > 1 { Err(Error::Malformed("it")) } else { Ok(()) }
            };
            let first = scope.spawn(move || {
                together.run(0, |items| {
                    begun.send(()).ok();
                    while lock(&together.waiting).len() < 9 {
                        std::thread::yield_now();
                    }
                    act(items)
                })
            });
            has_begun.recv().unwrap();
            let others: Vec<_> = (1..10).map(|n| scope.spawn(move || together.run(n, act))).collect();
            std::iter::once(first).chain(others).map(|thread| thread.join().unwrap()).collect()
        });
        let failed = results.iter().filter(|result| result.is_err()).count();
        (done.into_inner().unwrap(), failed)
    }

    #[test]
    fn who_waits_is_served_with_others() {
        let (done, failed) = ten(false);
        assert_eq!((done.len(), failed), (2, 0), "{done:?}");
        assert_eq!((done[0].as_slice(), done[1].len()), ([0].as_slice(), 9));
    }

    #[test]
    fn a_failure_is_one_callers_and_the_others_try_for_themselves() {
        let (done, failed) = ten(true);
        assert_eq!(failed, 1, "{done:?}");
        assert_eq!(done.len(), 10, "{done:?}");
        assert!(done[2..].iter().all(|items| items.len() == 1), "{done:?}");
    }
}
