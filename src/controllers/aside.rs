//! Long work of controllers, beside the threads that everybody's requests are served on.
//!
//! Plans and what a change wakes are plain functions: while one runs, its thread serves nobody. Most take microseconds; one over
//! thousands of Pods takes long, and comes again with each of their changes. What has taken long lately is therefore done aside,
//! by few at once, with a CPU left to the others. Nothing changes its place: whoever waited for the work still does.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread::available_parallelism,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Semaphore,
    task::block_in_place,
};

/// What takes longer is long: hundreds of times what changing threads takes.
const LONG: Duration = Duration::from_millis(2);
/// For so long pieces of work follow each other aside, before others get their turn.
const TURN: Duration = Duration::from_millis(10);
/// How many times work is done aside after it has been long.
const TIMES: u32 = 256;

/// Where long work is done.
pub struct Aside {
    cpus: Semaphore,
}

/// How long one sort of work has taken lately: how many more times it is done aside.
#[derive(Default)]
pub struct Lately(AtomicU32);

impl Default for Aside {
    fn default() -> Aside {
        let cpus = available_parallelism().map_or(1, |all| all.get().saturating_sub(1).max(1));
        Aside { cpus: Semaphore::new(cpus) }
    }
}

impl Aside {
    /// Does work of a sort. (On a runtime of one thread, as in simulations, there is nowhere else to do it.)
    pub async fn run<T>(&self, lately: &Lately, work: impl FnOnce() -> T) -> T {
        let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
        let aside = lately.is_long() && matches!(flavor, Ok(RuntimeFlavor::MultiThread));
        if !aside {
            return lately.timed(work);
        }
        // The invariant: the semaphore is never closed.
        let _cpu = self.cpus.acquire().await.expect("open as long as the controllers");
        block_in_place(|| lately.timed(work))
    }
}

impl Aside {
    /// Does the next piece of work of a sort; aside, where each turn has to be waited for, all that there is for a while. `next` says
    /// whether there was one.
    ///
    /// What many changes wake would otherwise fall behind one by one, with all those changes in memory.
    pub async fn run_some(&self, lately: &Lately, mut next: impl FnMut() -> bool) {
        let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
        if !lately.is_long() || !matches!(flavor, Ok(RuntimeFlavor::MultiThread)) {
            lately.timed(next);
            return;
        }
        // The invariant: the semaphore is never closed.
        let _cpu = self.cpus.acquire().await.expect("open as long as the controllers");
        block_in_place(|| {
            let begun = Instant::now();
            while lately.timed(&mut next) && begun.elapsed() < TURN {}
        });
    }
}

impl Lately {
    fn is_long(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = work();
        match begun.elapsed() > LONG {
            true => self.0.store(TIMES, Ordering::Relaxed),
            // Others may count down at the same time: it is counted roughly.
            false => self.0.store(self.0.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed),
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    /// Whether a task of the same, only thread runs while work is done that waits for it.
    async fn is_served_during(aside: &Aside, lately: &Lately, patience: Duration) -> bool {
        let (served, heard) = mpsc::channel();
        let task = tokio::spawn(async move { served.send(()) });
        let done = aside.run(lately, move || heard.recv_timeout(patience).is_ok()).await;
        let _ = task.await;
        done
    }

    #[test]
    fn what_is_done_aside_is_done_by_the_turn_and_else_one_by_one() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (aside, lately) = (Arc::new(Aside::default()), Lately::default());
        let ends = runtime.spawn(async move {
            let done = AtomicU32::new(0);
            aside.run_some(&lately, || done.fetch_add(1, Ordering::Relaxed) < 20).await;
            assert_eq!(done.load(Ordering::Relaxed), 1);
            lately.0.store(TIMES, Ordering::Relaxed);
            aside.run_some(&lately, || done.fetch_add(1, Ordering::Relaxed) < 20).await;
            assert!(done.load(Ordering::Relaxed) > 2, "one piece of work a turn");
        });
        runtime.block_on(ends).unwrap();
    }

    #[test]
    fn what_has_been_long_is_done_aside_until_it_is_short_again() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let ends = runtime.spawn(async {
            let (aside, lately) = (Arc::new(Aside::default()), Lately::default());
            let once = is_served_during(&aside, &lately, Duration::from_millis(100)).await;
            assert!(!once, "nobody knows that it is long");
            let again = is_served_during(&aside, &lately, Duration::from_secs(30)).await;
            assert!(again, "its thread serves nobody");
            let mut times = 0;
            while lately.is_long() {
                assert!(times < 100 * TIMES, "it is short, and is still done aside");
                aside.run(&lately, || ()).await;
                times += 1;
            }
            assert!(times >= TIMES / 2, "it is forgotten at once");
        });
        runtime.block_on(ends).unwrap();
    }
}
