//! Long work of controllers, beside the threads that everybody's requests are served on.
//!
//! Plans and what a change wakes are plain functions: while one runs, its thread serves nobody. Most take microseconds; one over
//! thousands of Pods takes long, and comes again with each of their changes. What has taken long lately is therefore done aside,
//! by few at once, with a CPU left to the others. Nothing changes its place: whoever waited for the work still does. What has been
//! long is remembered by namespace, so that only those wait for each other whose work is long.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::available_parallelism,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Semaphore,
    task::block_in_place,
};

use super::fair_queue::FairQueue;

/// What takes longer is long: hundreds of times what changing threads takes.
const LONG: Duration = Duration::from_millis(2);
/// For so long pieces of work follow each other aside, before others get their turn.
const TURN: Duration = Duration::from_millis(10);
/// How many times work is done aside after it has been long.
const TIMES: u32 = 256;
/// Of so many namespaces that is remembered; of more anew.
const NAMESPACES: usize = 1024;

/// Where long work is done.
pub struct Aside {
    cpus: Semaphore,
}

/// How long one sort of work has taken lately: for which namespaces it was long, and how many more times it is done aside.
#[derive(Default)]
pub struct Lately(Mutex<HashMap<String, u32>>);

impl Default for Aside {
    fn default() -> Aside {
        let cpus = available_parallelism().map_or(1, |all| all.get().saturating_sub(1).max(1));
        Aside { cpus: Semaphore::new(cpus) }
    }
}

impl Aside {
    /// Does work of a sort for a namespace.
    pub async fn run<T>(&self, lately: &Lately, namespace: &str, work: impl FnOnce() -> T) -> T {
        if !is_aside(lately, namespace) {
            return lately.timed(namespace, work);
        }
        // The invariant: the semaphore is never closed.
        let _cpu = self.cpus.acquire().await.expect("open as long as the controllers");
        block_in_place(|| lately.timed(namespace, work))
    }

    /// Does the next of what waits of a sort; aside, where each turn has to be waited for, all that there is for a while.
    ///
    /// What many changes wake would otherwise fall behind one by one, with all those changes in memory.
    pub async fn run_some<T>(&self, lately: &Lately, waiting: &mut FairQueue<T>, work: impl Fn(T)) {
        let aside = waiting.next().is_some_and(|namespace| is_aside(lately, namespace));
        let mut next = || {
            let Some((namespace, item)) = waiting.pop() else { return false };
            lately.timed(&namespace, || work(item));
            true
        };
        if !aside {
            next();
            return;
        }
        // The invariant: the semaphore is never closed.
        let _cpu = self.cpus.acquire().await.expect("open as long as the controllers");
        block_in_place(|| {
            let begun = Instant::now();
            while next() && begun.elapsed() < TURN {}
        });
    }
}

/// Whether work is done aside. (On a runtime of one thread, as in simulations, there is nowhere else to do it.)
fn is_aside(lately: &Lately, namespace: &str) -> bool {
    let flavor = || Handle::try_current().map(|handle| handle.runtime_flavor());
    lately.is_long(namespace) && matches!(flavor(), Ok(RuntimeFlavor::MultiThread))
}

impl Lately {
    fn is_long(&self, namespace: &str) -> bool {
        self.lock().contains_key(namespace)
    }

    fn timed<T>(&self, namespace: &str, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = work();
        let long = begun.elapsed() > LONG;
        let mut lately = self.lock();
        if long {
            if lately.len() >= NAMESPACES {
                lately.clear();
            }
            lately.insert(namespace.to_owned(), TIMES);
        } else if let Some(times) = lately.get_mut(namespace) {
            *times -= 1;
            if *times == 0 {
                lately.remove(namespace);
            }
        }
        done
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        // Each change is whole at once: what a panic left behind is sound.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    /// Whether a task of the same, only thread runs while work is done that waits for it.
    async fn is_served_during(aside: &Aside, lately: &Lately, namespace: &str, patience: Duration) -> bool {
        let (served, heard) = mpsc::channel();
        let task = tokio::spawn(async move { served.send(()) });
        let done = aside.run(lately, namespace, move || heard.recv_timeout(patience).is_ok()).await;
        let _ = task.await;
        done
    }

    #[test]
    fn what_is_done_aside_is_done_by_the_turn_and_else_one_by_one() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (aside, lately) = (Arc::new(Aside::default()), Lately::default());
        let ends = runtime.spawn(async move {
            let mut queue = FairQueue::default();
            (0..20).for_each(|item| queue.push("a", item));
            let left = |queue: &mut FairQueue<i32>| std::iter::from_fn(|| queue.pop()).count();
            aside.run_some(&lately, &mut queue, drop).await;
            assert_eq!(left(&mut queue), 19);
            lately.lock().insert("a".into(), TIMES);
            (0..20).for_each(|item| queue.push("a", item));
            aside.run_some(&lately, &mut queue, drop).await;
            assert!(left(&mut queue) < 18, "one piece of work a turn");
        });
        runtime.block_on(ends).unwrap();
    }

    #[test]
    fn what_has_been_long_is_done_aside_until_it_is_short_again() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let ends = runtime.spawn(async {
            let (aside, lately) = (Arc::new(Aside::default()), Lately::default());
            let once = is_served_during(&aside, &lately, "a", Duration::from_millis(100)).await;
            assert!(!once, "nobody knows that it is long");
            let again = is_served_during(&aside, &lately, "a", Duration::from_secs(30)).await;
            assert!(again, "its thread serves nobody");
            let mut times = 0;
            while lately.is_long("a") {
                assert!(times < 100 * TIMES, "it is short, and is still done aside");
                aside.run(&lately, "a", || ()).await;
                times += 1;
            }
            assert!(times >= TIMES / 2, "it is forgotten at once");
        });
        runtime.block_on(ends).unwrap();
    }

    /// The CPU that long work has is taken: who is short waits for nobody.
    #[test]
    fn what_is_long_for_one_namespace_holds_up_no_other() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let ends = runtime.spawn(async {
            let (aside, lately) = (Arc::new(Aside::default()), Lately::default());
            lately.lock().insert("a".into(), TIMES);
            let _taken = aside.cpus.acquire_many(aside.cpus.available_permits() as u32).await.unwrap();
            let patience = Duration::from_millis(100);
            assert!(tokio::time::timeout(patience, aside.run(&lately, "a", || ())).await.is_err());
            assert!(tokio::time::timeout(patience, aside.run(&lately, "b", || ())).await.is_ok());
        });
        runtime.block_on(ends).unwrap();
    }
}
