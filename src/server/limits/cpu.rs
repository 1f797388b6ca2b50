//! CPU time by user: heavy users work in turns with each other, and leave a CPU to everybody else.
//!
//! A request's cost cannot be known in advance, so it is measured each time its future is polled. A user who has used more than a
//! little within the last second or so is polled only while holding one of the turns, one fewer than there are CPUs; the next
//! goes to the user served least. No turn is held between two polls, and work nested within measured work needs none of its own: it
//! would wait for one as long as the outer work holds it.
//!
//! Unauthenticated clients count by their site, and with all other unauthenticated ones (see `flow`): for handshakes, for
//! authentication, for their requests.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::Instant;

use super::flow::{Flow, Step};
use super::{Guest, InflightLimiter, Limits, Seat};
use podwright_api::User;

/// How much CPU time within the last second is little. (Usage counts half a second later.)
const LITTLE: Duration = Duration::from_millis(75);
/// The same for all unauthenticated clients together.
const LITTLE_OF_ALL: Duration = Duration::from_millis(500);
const HALF: Duration = Duration::from_secs(1);
/// How many times its own time limit some work may take in total, including waiting for turns.
pub(crate) const WITH_CPU_WAIT: u32 = 3;
/// How many users are tracked individually; the others are tracked together, as long as these have used anything lately.
const USERS: usize = 10_000;

tokio::task_local! {
    /// Set while polled within measured work.
    static MEASURED: ();
    /// Time spent on other accounts within a connection's work.
    static WITHIN: Cell<Duration>;
}

/// The usage of users, and the turns of heavy ones.
pub(crate) struct CpuScheduler {
    limiter: Arc<InflightLimiter>,
    users: Mutex<HashMap<Step, Arc<Used>>>,
}

/// The recent usage of one user.
struct Used {
    little: Duration,
    lately: Mutex<(Instant, f64)>,
}

impl Used {
    fn new(step: &Step) -> Arc<Used> {
        let little = if *step == Step::Unknown { LITTLE_OF_ALL } else { LITTLE };
        Arc::new(Used { little, lately: Mutex::new((Instant::now(), 0.0)) })
    }

    /// In seconds, after adding `more`.
    fn add(&self, more: Duration) -> f64 {
        // Only numbers: consistent after a panic.
        let mut lately = self.lately.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, used) = *lately;
        let now = Instant::now();
        let halves = now.duration_since(at).as_secs_f64() / HALF.as_secs_f64();
        *lately = (now, used * (-halves).exp2() + more.as_secs_f64());
        lately.1
    }

    fn is_much(&self) -> bool {
        self.add(Duration::ZERO) > self.little.as_secs_f64()
    }
}

impl CpuScheduler {
    pub fn new(limits: &Limits) -> Arc<CpuScheduler> {
        let cpus = std::thread::available_parallelism().map_or(1, |all| all.get().saturating_sub(1).max(1));
        CpuScheduler::of(cpus, limits)
    }

    fn of(turns: usize, limits: &Limits) -> Arc<CpuScheduler> {
        Arc::new(CpuScheduler { limiter: InflightLimiter::new(turns, limits), users: Mutex::default() })
    }

    /// Measures a user's work. Nested work counts for the outer one. The superuser's and nodes' is not measured; other users' work
    /// nested within theirs is.
    pub fn measured<F: Future>(self: &Arc<CpuScheduler>, user: &User, work: F) -> Measured<F> {
        Measured { share: self.share(user), work: Box::pin(work) }
    }

    /// Measures the work of an unauthenticated client, by its address.
    pub fn measured_at<F: Future>(self: &Arc<CpuScheduler>, address: IpAddr, work: F) -> Measured<F> {
        Measured { share: self.share_at(address), work: Box::pin(work) }
    }

    /// Measures the work for a connection's peer: a user's, by earlier authentication or certificate. Unauthenticated work does not
    /// hold up authenticated users.
    pub fn measured_of<F: Future>(
        self: &Arc<CpuScheduler>,
        guest: &Guest,
        certificate: Option<&User>,
        work: F,
    ) -> Measured<F> {
        match guest.user().or(certificate) {
            Some(known) => self.measured(known, work),
            None => self.measured_at(guest.address(), work),
        }
    }

    /// A user's share, for incremental work.
    pub fn share(self: &Arc<CpuScheduler>, user: &User) -> Share {
        let exempt = user.is_in("system:masters") || user.is_in("system:nodes");
        self.share_of(user.into(), exempt)
    }

    /// The same for an unauthenticated client.
    pub fn share_at(self: &Arc<CpuScheduler>, address: IpAddr) -> Share {
        self.share_of(address.into(), false)
    }

    fn share_of(self: &Arc<CpuScheduler>, flow: Flow, exempt: bool) -> Share {
        // A site's usage is the sum of what was used in it. The limiter alternates within a site.
        let counted = flow.steps().iter().take(if exempt { 0 } else { 2 });
        let used = counted.map(|step| self.used(step)).collect();
        Share { cpu: self.clone(), flow, used, waits: None, yielded: false }
    }

    fn used(&self, step: &Step) -> Arc<Used> {
        let mut users = self.lock();
        if let Some(known) = users.get(step) {
            return known.clone();
        }
        if users.len() >= USERS {
            users.retain(|_, used| {
                Arc::strong_count(used) > 1 || used.add(Duration::ZERO) > LITTLE.as_secs_f64() / 100.0
            });
        }
        let step = if users.len() >= USERS { Step::Named(String::new()) } else { step.clone() };
        let new = || Used::new(&step);
        users.entry(step.clone()).or_insert_with(new).clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Step, Arc<Used>>> {
        // Each change is atomic: the state stays consistent after a panic.
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A user's work at one place, and its turns there.
pub(crate) struct Share {
    cpu: Arc<CpuScheduler>,
    flow: Flow,
    /// The accounts that it counts for; empty: not counted.
    used: Vec<Arc<Used>>,
    waits: Option<BoxFuture<'static, Seat>>,
    /// It has yielded once.
    yielded: bool,
}

/// Work that is measured.
pub(crate) struct Measured<F> {
    share: Share,
    work: Pin<Box<F>>,
}

impl Share {
    /// Adds this much time.
    pub fn add(&self, time: Duration) {
        for used in &self.used {
            used.add(time);
        }
    }

    /// Polls some work, with a turn if needed, and measures it; pending: until it gets a turn, or because the work is.
    pub fn poll<T>(&mut self, context: &mut Context<'_>, work: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        if MEASURED.try_with(|()| ()).is_ok() {
            self.waits = None;
            return work(context);
        }
        if self.used.is_empty() {
            return timed(|| work(context)).0;
        }
        let _turn = std::task::ready!(self.turn(context));
        let (polled, time) = timed(|| MEASURED.sync_scope((), || work(context)));
        self.add(time);
        polled
    }

    /// The same for work that contains other users' work, which counts for their accounts and waits for their turns: only the rest
    /// counts here. `asked`: there is some, and it would not be polled otherwise; so the rest is measured only, and waits for
    /// nothing.
    pub fn poll_around<T>(
        &mut self,
        context: &mut Context<'_>,
        asked: bool,
        work: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if self.used.is_empty() {
            return work(context);
        }
        let _turn = match asked {
            true => {
                self.waits = None;
                None
            }
            false => std::task::ready!(self.turn(context)),
        };
        let begun = std::time::Instant::now();
        let (polled, within) = WITHIN.sync_scope(Cell::default(), || (work(context), WITHIN.with(Cell::get)));
        self.add(begun.elapsed().saturating_sub(within));
        polled
    }

    /// Whether it waits for a turn.
    pub fn waits(&self) -> bool {
        self.waits.is_some()
    }

    /// A turn, if needed; pending until it gets one.
    pub fn turn(&mut self, context: &mut Context<'_>) -> Poll<Option<Seat>> {
        if self.waits.is_none() {
            if !self.used.iter().any(|used| used.is_much()) {
                return Poll::Ready(None);
            }
            // Each item of a sequence, such as a batch, starts behind others.
            if !std::mem::replace(&mut self.yielded, true) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let (limiter, flow) = (self.cpu.limiter.clone(), self.flow.clone());
            self.waits = Some(Box::pin(async move { limiter.turn(&flow).await }));
        }
        let Some(waits) = &mut self.waits else { return Poll::Ready(None) };
        let seat = std::task::ready!(waits.as_mut().poll(context));
        self.waits = None;
        Poll::Ready(Some(seat))
    }
}

/// The result of some work, and its duration, which is also reported to the connection that it is part of.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let before = WITHIN.try_with(Cell::get).unwrap_or_default();
    let begun = std::time::Instant::now();
    let done = work();
    let time = begun.elapsed();
    // Nested work is included.
    let _ = WITHIN.try_with(|within| within.set(before + time));
    (done, time)
}

impl<F: Future> Future for Measured<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Measured { share, work } = &mut *self;
        share.poll(context, |context| work.as_mut().poll(context))
    }
}

impl<F: Future> Measured<F> {
    /// The same with a time limit for the caller's own part: waiting for turns does not count, as long as the total is at most
    /// three times the limit. `None`: it took too long.
    pub async fn within(mut self, limit: Duration) -> Option<F::Output> {
        let begun = Instant::now();
        let (mut end, last) = (begun + limit, begun + limit * WITH_CPU_WAIT);
        let mut held_up: Option<Instant> = None;
        let mut timer = std::pin::pin!(tokio::time::sleep_until(end));
        std::future::poll_fn(|context| {
            if let Poll::Ready(done) = Pin::new(&mut self).poll(context) {
                return Poll::Ready(Some(done));
            }
            let now = Instant::now();
            match held_up {
                None if self.share.waits.is_some() => held_up = Some(now),
                Some(since) if self.share.waits.is_none() => {
                    (end, held_up) = ((end + now.duration_since(since)).min(last), None);
                }
                _ => {}
            }
            let until = if held_up.is_some() { last } else { end };
            if timer.deadline() != until {
                timer.as_mut().reset(until);
            }
            timer.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}

#[cfg(test)]
mod tests;
