//! Runs long work of controllers beside the threads that serve requests.
//!
//! Plans and wake-ups are plain functions: while one runs, its thread serves nothing else. Most take microseconds; a plan over
//! thousands of Pods is slow, and runs again after each of their changes. Work that was slow recently therefore runs on blocking
//! threads, few at once, with a CPU left to the others. The order of work does not change: its caller still waits for it. Slowness
//! is tracked by namespace, so that only namespaces with slow work wait for each other.

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

/// Longer work is slow: this is hundreds of times the cost of changing threads.
const LONG: Duration = Duration::from_millis(2);
/// How long consecutive slow work runs before others get their turn.
const TURN: Duration = Duration::from_millis(10);
/// How many further times work runs aside after it was slow.
const TIMES: u32 = 256;
/// The most namespaces that are tracked; beyond that tracking starts over.
const NAMESPACES: usize = 1024;

/// Where slow work runs.
pub struct Aside {
    cpus: Semaphore,
}

/// How slow one sort of work was recently: the namespaces where it was, and how many more times it runs aside there.
#[derive(Default)]
pub struct Lately(Mutex<HashMap<String, u32>>);

impl Default for Aside {
    fn default() -> Aside {
        let cpus = available_parallelism().map_or(1, |all| all.get().saturating_sub(1).max(1));
        Aside { cpus: Semaphore::new(cpus) }
    }
}

impl Aside {
    /// Runs work of one sort for a namespace.
    pub async fn run<T>(&self, lately: &Lately, namespace: &str, work: impl FnOnce() -> T) -> T {
        if !is_aside(lately, namespace) {
            return lately.timed(namespace, work);
        }
        // The invariant: the semaphore is never closed.
        let _cpu = self.cpus.acquire().await.expect("open as long as the controllers");
        block_in_place(|| lately.timed(namespace, work))
    }

    /// Runs the next waiting work of one sort; aside, where each turn must be waited for, as much as fits into a turn.
    ///
    /// Otherwise the wake-ups of many changes would fall behind one by one, with all those changes in memory.
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

/// Whether work runs aside. (A single-threaded runtime, as in simulations, has no other thread for it.)
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
        // Each change is atomic: the state stays consistent after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    /// Whether another task of the single-threaded runtime runs while work is awaited.
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

    /// The CPU for slow work is taken: fast work waits for nothing.
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
