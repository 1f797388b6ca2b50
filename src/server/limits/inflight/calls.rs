//! Calls waiters to free seats, and handles those that do not come.
//!
//! A future that waits for a seat is polled by whatever contains it: a body when its client reads, one of several when those before
//! it are not ready, an inner one when the outer one has what it waits for. So a free seat is kept for a moment for the called
//! waiter; one that does not come is passed over, and the time counts for its flow. When it is polled, it takes a free seat, or one
//! kept for another that has not come yet and has missed no more calls than it has (so however late tasks are polled, somebody gets
//! the seat); otherwise it returns to its place in the queue, and the next seat is kept for it for longer.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::coop::poll_proceed;
use tokio::time::{Instant, sleep_until};

use super::{Flow, InflightLimiter, QueueState, Seat, State};

/// How long a seat is kept at the first call. A woken task is usually polled much sooner.
const KEPT: Duration = Duration::from_millis(20);

/// How long it is kept after this many missed calls: doubling up to 320 ms. The waiter was polled since, if late: it may wait for
/// another turn first.
fn kept(missed: u32) -> Duration {
    KEPT * (1 << missed.min(4))
}

/// A waiter, which may give up at any moment. `None`: it made room for another.
pub(super) struct Waiting<'a> {
    limiter: &'a Arc<InflightLimiter>,
    flow: &'a Flow,
    arrival: u64,
}

impl<'a> Waiting<'a> {
    pub fn new(limiter: &'a Arc<InflightLimiter>, flow: &'a Flow, arrival: u64) -> Waiting<'a> {
        Waiting { limiter, flow, arrival }
    }
}

impl Future for Waiting<'_> {
    type Output = Option<Seat>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Seat>> {
        // A task that takes one seat after the other lets other tasks of its thread run.
        let budget = ready!(poll_proceed(context));
        let seated = ready!(self.limiter.come(self.arrival, context.waker()));
        budget.made_progress();
        Poll::Ready(seated.then(|| self.limiter.seat(self.flow)))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.limiter.lock();
        let state = &mut *state;
        let Some(ticket) = state.tickets.remove(&self.arrival) else { return };
        state.dropped.extend(ticket.waker);
        match ticket.place {
            QueueState::InLine => state.take(self.flow, self.arrival),
            QueueState::Late => state.is_late(self.flow, false),
            QueueState::Called(until) => {
                state.uncall(self.flow, self.arrival, until, kept(ticket.missed));
                self.limiter.call(state);
            }
        }
        state.forget(self.flow);
    }
}

impl InflightLimiter {
    /// Calls waiters for the free seats.
    pub(super) fn call(&self, state: &mut State) {
        while state.running < self.seats {
            let Some((_, arrival)) = state.next(self.of_one) else { break };
            let Some(ticket) = state.tickets.get_mut(&arrival) else { break };
            let until = Instant::now() + kept(ticket.missed);
            ticket.place = QueueState::Called(until);
            let (flow, waker) = (ticket.flow.clone(), ticket.waker.take());
            state.take(&flow, arrival);
            state.begin(&flow);
            state.calls.insert((until, arrival));
            state.woken.extend(waker);
        }
    }

    /// A waiter is polled: returns whether it has a seat; `false`: it made room for another.
    fn come(self: &Arc<InflightLimiter>, arrival: u64, waker: &Waker) -> Poll<bool> {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(place) = state.tickets.get(&arrival).map(|ticket| ticket.place) else { return Poll::Ready(false) };
        let seated = match place {
            QueueState::InLine => false,
            QueueState::Called(until) => state.calls.remove(&(until, arrival)),
            QueueState::Late => self.come_late(state, arrival),
        };
        if seated {
            let ticket = state.tickets.remove(&arrival);
            state.dropped.extend(ticket.and_then(|ticket| ticket.waker));
            return Poll::Ready(true);
        }
        if let Some(ticket) = state.tickets.get_mut(&arrival)
            && !ticket.waker.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            let before = ticket.waker.replace(waker.clone());
            state.dropped.extend(before);
        }
        Poll::Pending
    }

    /// It missed its call: returns whether it has a seat now; otherwise it is queued again.
    fn come_late(self: &Arc<InflightLimiter>, state: &mut State, arrival: u64) -> bool {
        let Some(flow) = state.tickets.get(&arrival).map(|ticket| ticket.flow.clone()) else { return false };
        state.is_late(&flow, false);
        state.arrive(&flow);
        if state.running == self.seats || !state.may(&flow, self.of_one, None) {
            state.overtake(&flow, arrival, self.of_one);
        }
        if state.running < self.seats && state.may(&flow, self.of_one, None) {
            state.begin(&flow);
            return true;
        }
        if let Some(ticket) = state.tickets.get_mut(&arrival) {
            ticket.place = QueueState::InLine;
        }
        state.wait(&flow, arrival);
        self.watch(state);
        false
    }

    /// Ensures that calls expire. (Waiters are polled within a runtime.)
    pub(super) fn watch(self: &Arc<InflightLimiter>, state: &mut State) {
        if state.watch.as_ref().is_none_or(|watch| watch.is_finished())
            && let Ok(runtime) = Handle::try_current()
        {
            state.watch = Some(runtime.spawn(watch(Arc::downgrade(self))));
        }
    }

    /// Passes over expired calls, and calls others. Returns when to look again; `None`: at the next waiter.
    fn pass_over(&self) -> Option<Instant> {
        let (mut state, now) = (self.lock(), Instant::now());
        while let Some((until, arrival)) = state.calls.first().copied()
            && until <= now
        {
            state.miss(arrival, until);
        }
        self.call(&mut state);
        if state.calls.is_empty() && state.waiting == state.late {
            state.watch = None;
            return None;
        }
        Some(state.calls.first().map_or(now + KEPT, |(until, _)| *until))
    }
}

async fn watch(limiter: Weak<InflightLimiter>) {
    loop {
        let Some(next) = limiter.upgrade().and_then(|limiter| limiter.pass_over()) else { return };
        sleep_until(next).await;
    }
}

impl State {
    /// Frees a kept seat; the time that it was kept counts for the flow.
    fn uncall(&mut self, flow: &Flow, arrival: u64, until: Instant, kept: Duration) {
        self.calls.remove(&(until, arrival));
        let left = until.saturating_duration_since(Instant::now());
        self.end(flow, kept.saturating_sub(left));
    }

    /// A waiter missed its call.
    fn miss(&mut self, arrival: u64, until: Instant) {
        let Some(ticket) = self.tickets.get_mut(&arrival) else { return };
        let (flow, kept) = (ticket.flow.clone(), kept(ticket.missed));
        ticket.place = QueueState::Late;
        ticket.missed = ticket.missed.saturating_add(1);
        self.uncall(&flow, arrival, until, kept);
        self.is_late(&flow, true);
    }

    fn is_late(&mut self, flow: &Flow, late: bool) {
        let change = |count: &mut usize| *count = if late { *count + 1 } else { *count - 1 };
        change(&mut self.waiting);
        change(&mut self.late);
        for step in flow.steps() {
            // The level exists as long as somebody in it waits.
            self.flows.get_mut(step).into_iter().for_each(|served| change(&mut served.late));
        }
    }

    /// Makes room for a flow's ticket where a seat is kept for another that has missed no more calls. The waiter with the most
    /// missed calls is never overtaken: whenever it comes, a kept seat is its own.
    fn overtake(&mut self, flow: &Flow, arrival: u64, of_one: usize) {
        let missed = self.tickets.get(&arrival).map_or(0, |ticket| ticket.missed);
        let gives_way = |(_, other): &&(Instant, u64)| {
            let other = self.tickets.get(other).filter(|other| other.missed <= missed);
            other.is_some_and(|other| self.may(flow, of_one, Some(&other.flow)))
        };
        // The one called last has had the least time to come.
        if let Some((until, other)) = self.calls.iter().rev().find(gives_way).copied() {
            self.miss(other, until);
        }
    }
}
