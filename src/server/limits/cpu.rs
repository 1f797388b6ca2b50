//! CPU time by user: who has used much of it lately works in turns with others who have, and leaves a CPU to those who have not.
//!
//! What a request costs cannot be known from it: so what it has cost is measured, each time that its future is polled. A user who
//! has used more than a little within the last second or so is polled only while he holds one of the turns, of which there is one
//! less than there are CPUs; the next goes to whoever was served least. No turn is held between two polls, and what is measured
//! within other work that is needs no turn of its own: it would wait for one as long as what is around it does.
//!
//! Who is not known yet is counted by his site, and with all who are not known (see `flow`): for his handshakes, for finding out who
//! he is, for what he asks.

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

/// So much CPU time of the last second is little. (What was used counts half a second later.)
const LITTLE: Duration = Duration::from_millis(75);
/// The same of all together who are not known.
const LITTLE_OF_ALL: Duration = Duration::from_millis(500);
const HALF: Duration = Duration::from_secs(1);
/// So many times as long as a client's part of some work may all of it take, with the turns that it waits for.
pub(crate) const WITH_CPU_WAIT: u32 = 3;
/// So many users are known by themselves; the others together, as long as these have used anything lately.
const USERS: usize = 10_000;

tokio::task_local! {
    /// Set for what is polled within somebody's work that is measured.
    static MEASURED: ();
    /// How long was worked meanwhile on other accounts, within work that is a connection's.
    static WITHIN: Cell<Duration>;
}

/// Who has used how much, and the turns of those who have used much.
pub(crate) struct CpuScheduler {
    limiter: Arc<InflightLimiter>,
    users: Mutex<HashMap<Step, Arc<Used>>>,
}

/// What one user has used lately.
struct Used {
    little: Duration,
    lately: Mutex<(Instant, f64)>,
}

impl Used {
    fn new(step: &Step) -> Arc<Used> {
        let little = if *step == Step::Unknown { LITTLE_OF_ALL } else { LITTLE };
        Arc::new(Used { little, lately: Mutex::new((Instant::now(), 0.0)) })
    }

    /// In seconds, with what is added.
    fn add(&self, more: Duration) -> f64 {
        // Numbers: a panic leaves them whole.
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

    /// A user's work. What is within other such work is part of that. The superuser's and nodes' is not measured; what is another
    /// user's within theirs is.
    pub fn measured<F: Future>(self: &Arc<CpuScheduler>, user: &User, work: F) -> Measured<F> {
        Measured { share: self.share(user), work: Box::pin(work) }
    }

    /// The work of somebody who is not known yet, by his address.
    pub fn measured_at<F: Future>(self: &Arc<CpuScheduler>, address: IpAddr, work: F) -> Measured<F> {
        Measured { share: self.share_at(address), work: Box::pin(work) }
    }

    /// The work of whoever is at the other end of a connection: a user's, by what he has shown there before or his certificate.
    /// Strangers hold up no one who is known.
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

    /// A user's share, for what he does bit by bit.
    pub fn share(self: &Arc<CpuScheduler>, user: &User) -> Share {
        let exempt = user.is_in("system:masters") || user.is_in("system:nodes");
        self.share_of(user.into(), exempt)
    }

    /// The same of somebody who is not known yet.
    pub fn share_at(self: &Arc<CpuScheduler>, address: IpAddr) -> Share {
        self.share_of(address.into(), false)
    }

    fn share_of(self: &Arc<CpuScheduler>, flow: Flow, exempt: bool) -> Share {
        // A site has used what was used in it. Within one it is the limiter that gives each his turn.
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
        // Each change is whole at once: what a panic left behind is sound.
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one user does at one place, and his turns there.
pub(crate) struct Share {
    cpu: Arc<CpuScheduler>,
    flow: Flow,
    /// By whom it is counted; by nobody: it is not.
    used: Vec<Arc<Used>>,
    waits: Option<BoxFuture<'static, Seat>>,
    /// It has let others go first once.
    yielded: bool,
}

/// Work that is measured.
pub(crate) struct Measured<F> {
    share: Share,
    work: Pin<Box<F>>,
}

impl Share {
    /// So much time was used.
    pub fn add(&self, time: Duration) {
        for used in &self.used {
            used.add(time);
        }
    }

    /// Polls some work, with a turn where one is needed, and measures that; pending: until it is had, or as the work is.
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

    /// The same of work that has others' work within it, which is on their accounts and waits for their turns: of this one is the
    /// rest. `asked`: there is some, and nobody would come for it meanwhile; so the rest is measured alone, and waits for nothing.
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

    /// A turn, where one is needed; pending: until it is had.
    pub fn turn(&mut self, context: &mut Context<'_>) -> Poll<Option<Seat>> {
        if self.waits.is_none() {
            if !self.used.iter().any(|used| used.is_much()) {
                return Poll::Ready(None);
            }
            // Of much that is done one by one, as of a batch, each begins behind others.
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

/// What comes of some work, and how long it took, which is told to the connection that it is within.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let before = WITHIN.try_with(Cell::get).unwrap_or_default();
    let begun = std::time::Instant::now();
    let done = work();
    let time = begun.elapsed();
    // What was within this is part of it.
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
    /// The same where somebody else has so long for his part of it: what is waited for turns is not his time, as long as all of it
    /// takes no more than three times that. `None`: it takes too long.
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
