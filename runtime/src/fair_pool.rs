//! A fair thread pool for disk work that may take long, or hang forever: each owner gets few of the places, and a hanging job only
//! blocks its owner's others.
//!
//! ```text
//!   push(owner, job)  ->  Line: the order, as data  ->  a thread for each turn  ->  done, more (to the back), or later
//! ```

mod line;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

pub use line::ALONE;
use line::{Given, Line};

/// Folders are walked iteratively, not by recursion.
const STACK: usize = 256 << 10;
/// Delay before retrying a job that could not start, or panicked.
const PAUSE: Duration = Duration::from_secs(10);

/// The result of a turn.
pub enum Outcome {
    Done,
    /// It continues in its next turn.
    More,
    /// It continues after this time at the earliest.
    Later(Duration),
}

/// A job that runs in turns, each of which ends soon.
pub type Job = Box<dyn FnMut() -> Outcome + Send>;

/// Cheap to clone. Has its own threads: shared ones must not be blocked by hanging work.
#[derive(Clone, Default)]
pub struct FairPool(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the keeper.
    news: Condvar,
    /// The number of finished turns.
    ended: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    line: Line<Job>,
    /// Whether the thread that starts turns is running: it does while jobs wait.
    kept: bool,
}

impl FairPool {
    fn state(&self) -> MutexGuard<'_, State> {
        // Jobs run, and panic, without holding it.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a job in turns until it is done.
    pub fn push(&self, owner: &str, job: Job) {
        let mut state = self.state();
        state.line.push(owner, job, Instant::now());
        self.look(&mut state);
    }

    /// Runs something in a turn of the owner. `None`: it panicked.
    pub async fn run<T: Send + 'static>(&self, owner: &str, act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        let mut once = Some((act, sender));
        let job = move || {
            if let Some((act, sender)) = once.take() {
                sender.send(act()).ok();
            }
            Outcome::Done
        };
        self.push(owner, Box::new(job));
        receiver.await.ok()
    }

    /// The number of an owner's jobs.
    pub fn of(&self, owner: &str) -> usize {
        self.state().line.of(owner)
    }

    /// Waits until a condition holds; checked at the end of each turn.
    pub async fn until(&self, is_so: impl Fn() -> bool) {
        let mut ended = self.0.ended.subscribe();
        while !is_so() {
            // The sender is in `self`.
            ended.changed().await.ok();
        }
    }

    fn look(&self, state: &mut State) {
        if !state.kept && state.line.has_waiting() {
            let own = self.clone();
            // If no thread can be created, the next caller retries.
            state.kept = thread("turns", move || own.keep()).is_ok();
        }
        self.0.news.notify_all();
    }

    /// Starts turns while jobs wait.
    fn keep(&self) {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            while let Some((given, job)) = state.line.next(now) {
                if let Err(job) = self.begin(given.clone(), job) {
                    state.line.end(&given);
                    state.line.push(&given.owner, job, now + PAUSE);
                }
            }
            if !state.line.has_waiting() {
                state.kept = false;
                return;
            }
            let wait = state.line.wake(now).map_or(Duration::MAX, |at| at.saturating_duration_since(now));
            let woken = self.0.news.wait_timeout(state, wait);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Starts a turn; returns the job if no thread can be created for it.
    fn begin(&self, given: Given, job: Job) -> Result<(), Job> {
        let job = Arc::new(Mutex::new(Some(job)));
        let take = |job: &Mutex<Option<Job>>| job.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (own, handed) = (self.clone(), job.clone());
        let begun = thread("turn", move || {
            if let Some(job) = take(&handed) {
                own.turn(&given, job);
            }
        });
        if begun.is_ok() { Ok(()) } else { take(&job).map_or(Ok(()), Err) }
    }

    fn turn(&self, given: &Given, mut job: Job) {
        let outcome = catch_unwind(AssertUnwindSafe(&mut job)).unwrap_or_else(|_| {
            tracing::error!(owner = given.owner, "disk work panicked");
            Outcome::Later(PAUSE)
        });
        let mut state = self.state();
        state.line.end(given);
        match outcome {
            Outcome::Done => {}
            Outcome::More => state.line.push(&given.owner, job, Instant::now()),
            Outcome::Later(pause) => state.line.push(&given.owner, job, Instant::now() + pause),
        }
        self.look(&mut state);
        drop(state);
        self.0.ended.send_modify(|ended| *ended += 1);
    }
}

fn thread(name: &str, act: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(act).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A job that blocks until it is released.
    fn stuck(pool: &FairPool, owner: &str, until: &Arc<Mutex<mpsc::Receiver<()>>>) {
        let until = until.clone();
        let job = move || {
            until.lock().unwrap_or_else(PoisonError::into_inner).recv().ok();
            Outcome::Done
        };
        pool.push(owner, Box::new(job));
    }

    #[tokio::test]
    async fn ten_owners_whose_turns_never_end_keep_no_eleventh_waiting() {
        let pool = FairPool::default();
        let (end, wait) = mpsc::channel();
        let wait = Arc::new(Mutex::new(wait));
        for owner in 0..10 {
            for _ in 0..50 {
                stuck(&pool, &owner.to_string(), &wait);
            }
        }
        let done = tokio::time::timeout(Duration::from_secs(20), pool.run("eleventh", || 1));
        assert_eq!(done.await.unwrap(), Some(1));
        assert_eq!(pool.of("0"), 50);
        drop(end);
        pool.until(|| (0..10).all(|owner| pool.of(&owner.to_string()) == 0)).await;
    }

    #[tokio::test]
    async fn who_needs_many_turns_has_them_and_a_panic_is_nobody_elses() {
        let pool = FairPool::default();
        let (mut left, (sender, receiver)) = (5, oneshot::channel());
        let mut sender = Some(sender);
        let job = move || {
            left -= 1;
            match left {
                0 => {
                    sender.take().map(|sender| sender.send(()));
                    Outcome::Done
                }
                1 => Outcome::Later(Duration::from_millis(1)),
                _ => Outcome::More,
            }
        };
        pool.push("a", Box::new(job));
        assert_eq!(pool.run("a", || -> u8 { panic!("in a turn") }).await, None);
        receiver.await.unwrap();
        assert_eq!(pool.run("a", || 2).await, Some(2));
    }
}
