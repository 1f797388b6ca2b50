//! A limiter of concurrent requests that is fair between their flows, as upstream's API Priority and Fairness; a flow is a user, by
//! `User::counted_as`, or an unauthenticated client's network address. A free seat goes to the flow with the fewest seats, and
//! among those to the one that was served for the shortest time; nested flows compete level by level. A new flow gets no credit for
//! its absence, and one that returns keeps its debts (start-time fair queueing). No flow takes the last quarter of the seats: a
//! newcomer need not wait for it.
//!
//! A seat is never assigned silently: the waiter is called, and takes it when polled (see `calls`). One that does not come is
//! passed over, as its future may be polled late, or never.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::flow::{Crowd, Flow, Step};
use super::{Limits, full};
use podwright_api::Status;

mod calls;

use calls::Waiting;

/// The most requests that all flows together may queue, per running one.
const CROWDED: usize = 4;

/// All flows are scanned for obsolete ones only when their number reaches this minimum and has doubled since the last scan.
const SWEPT: usize = 64;

/// Limits concurrent requests.
pub(crate) struct InflightLimiter {
    seats: usize,
    /// The most seats of one flow.
    of_one: usize,
    queue: usize,
    wait: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Those with a seat, and those that are called.
    running: usize,
    /// Those that wait, in the queue or not; and how many of them did not come when called.
    waiting: usize,
    late: usize,
    /// How long the flow that got the last seat had been served by then, in microseconds.
    clock: u64,
    /// Numbers arrivals.
    arrivals: u64,
    flows: HashMap<Step, Served>,
    /// Outermost flows that wait, in the order in which they get seats.
    order: BTreeSet<(Rank, Step)>,
    /// All that wait or are called, by arrival; those of unauthenticated clients in the queue; and the calls, by deadline.
    tickets: HashMap<u64, Ticket>,
    unknown: Crowd,
    calls: BTreeSet<(Instant, u64)>,
    /// Expires calls, while anybody is queued or called.
    watch: Option<JoinHandle<()>>,
    /// What to wake and to drop after the lock is released: either may need the lock.
    woken: Vec<Waker>,
    dropped: Vec<Waker>,
    /// How many flows remained after the last scan.
    swept: usize,
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
}

/// The seats taken, the time served, and the arrival: the lowest gets the next seat.
type Rank = (usize, u64, u64);

/// A flow, or an enclosing level.
#[derive(Default)]
struct Served {
    running: usize,
    /// For how long it has been served, on its enclosing level's clock.
    served: u64,
    /// The clock of the flows within.
    clock: u64,
    /// How many wait in it, and when the first came; its own tickets, by arrival.
    waits: usize,
    since: u64,
    waiting: BTreeSet<u64>,
    /// How many in it wait, and did not come when called.
    late: usize,
    /// How many flows are in it, and those of them that wait.
    parts: usize,
    order: BTreeSet<(Rank, Step)>,
}

impl Served {
    /// `None`: nobody waits.
    fn rank(&self) -> Option<Rank> {
        (self.waits > 0).then_some((self.running, self.served, self.since))
    }
}

struct Ticket {
    flow: Flow,
    waker: Option<Waker>,
    place: QueueState,
    /// How often it was called and did not come, or came after another.
    missed: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum QueueState {
    InLine,
    /// A seat is kept for it until then.
    Called(Instant),
    /// It did not come. It rejoins the queue when polled.
    Late,
}

/// The lock; releasing it wakes those called meanwhile.
struct Locked<'a>(Option<MutexGuard<'a, State>>);

/// A request's permission to run, which ends when dropped.
pub(crate) struct Seat {
    limiter: Arc<InflightLimiter>,
    flow: Flow,
    since: Instant,
}

impl InflightLimiter {
    pub fn new(seats: usize, limits: &Limits) -> Arc<InflightLimiter> {
        let of_one = (seats - seats / 4).max(1);
        Arc::new(InflightLimiter { seats, of_one, queue: limits.queue, wait: limits.wait, state: Mutex::default() })
    }

    /// How many may run concurrently.
    pub fn seats(&self) -> usize {
        self.seats
    }

    /// Waits for a seat; an error if too many wait already, or none becomes free in time.
    pub async fn enter(self: &Arc<InflightLimiter>, flow: impl Into<Flow>) -> Result<Seat, Status> {
        let flow = &flow.into();
        let arrival = match self.ask(flow, true) {
            Ok(None) => return Ok(self.seat(flow)),
            Ok(Some(arrival)) => arrival,
            Err(()) => return Err(full()),
        };
        let seat = tokio::time::timeout(self.wait, Waiting::new(self, flow, arrival)).await;
        seat.ok().flatten().ok_or_else(full)
    }

    /// Waits for a seat, however long that takes and however many wait.
    pub async fn turn(self: &Arc<InflightLimiter>, flow: impl Into<Flow>) -> Seat {
        let flow = &flow.into();
        loop {
            let Ok(Some(arrival)) = self.ask(flow, false) else { return self.seat(flow) };
            if let Some(seat) = Waiting::new(self, flow, arrival).await {
                return seat;
            }
        }
    }

    /// Waits for a seat for as long as a request may, however many wait.
    pub async fn turn_in_time(self: &Arc<InflightLimiter>, flow: impl Into<Flow>) -> Result<Seat, Status> {
        tokio::time::timeout(self.wait, self.turn(flow)).await.map_err(|_| full())
    }

    /// Takes a seat (`None`), or joins the queue; an error if that is full.
    fn ask(self: &Arc<InflightLimiter>, flow: &Flow, bounded: bool) -> Result<Option<u64>, ()> {
        let mut state = self.lock();
        let state = &mut *state;
        state.arrive(flow);
        if state.running < self.seats && state.may(flow, self.of_one, None) {
            state.begin(flow);
            return Ok(None);
        }
        let room = !bounded || state.waiting < CROWDED * self.seats && state.make_room(flow, self.queue);
        if !room {
            state.forget(flow);
            return Err(());
        }
        state.arrivals += 1;
        let arrival = state.arrivals;
        let ticket = Ticket { flow: flow.clone(), waker: None, place: QueueState::InLine, missed: 0 };
        state.tickets.insert(arrival, ticket);
        state.wait(flow, arrival);
        self.watch(state);
        Ok(Some(arrival))
    }

    fn seat(self: &Arc<InflightLimiter>, flow: &Flow) -> Seat {
        Seat { limiter: self.clone(), flow: flow.clone(), since: Instant::now() }
    }

    /// A flow's request ended after holding a seat for this long.
    fn leave(&self, flow: &Flow, taken: Duration) {
        let mut state = self.lock();
        state.end(flow, taken);
        self.call(&mut state);
        state.forget(flow);
    }

    fn lock(&self) -> Locked<'_> {
        // Counters stay consistent across a panic: each is changed in one step.
        Locked(Some(self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())))
    }
}

impl std::ops::Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect("it is there until this is dropped")
    }
}

impl std::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("it is there until this is dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let (woken, dropped) = (std::mem::take(&mut self.woken), std::mem::take(&mut self.dropped));
        self.0 = None;
        woken.into_iter().for_each(Waker::wake);
        drop(dropped);
    }
}

impl State {
    /// A flow arrives: it gets no credit for its absence.
    fn arrive(&mut self, flow: &Flow) {
        let mut clock = self.clock;
        for step in flow.steps() {
            if !self.flows.contains_key(step) {
                self.flows.insert(step.clone(), Served::default());
                if let Some(around) = step.within().and_then(|around| self.flows.get_mut(&around)) {
                    around.parts += 1;
                }
            }
            self.change(step, |served| {
                served.served = served.served.max(clock);
                clock = served.clock;
            });
        }
    }

    /// Changes a flow's entry, and with it its position among those that wait.
    fn change(&mut self, step: &Step, change: impl FnOnce(&mut Served)) {
        let Some(served) = self.flows.get_mut(step) else { return };
        let before = served.rank();
        change(served);
        let after = served.rank();
        if before == after {
            return;
        }
        let order = match step.within() {
            None => Some(&mut self.order),
            Some(around) => self.flows.get_mut(&around).map(|around| &mut around.order),
        };
        let Some(order) = order else { return };
        if let Some(rank) = before {
            order.remove(&(rank, step.clone()));
        }
        if let Some(rank) = after {
            order.insert((rank, step.clone()));
        }
    }

    /// Whether a flow may take another seat, perhaps in place of another: neither it nor its enclosing levels take the last
    /// quarter.
    fn may(&self, flow: &Flow, of_one: usize, instead: Option<&Flow>) -> bool {
        let mut most = of_one;
        flow.steps().iter().all(|step| {
            let less = usize::from(instead.is_some_and(|other| other.steps().contains(step)));
            let may = self.flows.get(step).is_none_or(|served| served.running < most + less);
            most = (most - most / 4).max(1);
            may
        })
    }

    /// Starts one of its requests. That counts as service, if only for a moment.
    fn begin(&mut self, flow: &Flow) {
        self.running += 1;
        for step in flow.steps() {
            let mut now = 0;
            self.change(step, |served| {
                now = served.served;
                served.running += 1;
                served.served = now.saturating_add(1);
            });
            let clock = match step.within() {
                None => Some(&mut self.clock),
                Some(around) => self.flows.get_mut(&around).map(|around| &mut around.clock),
            };
            clock.into_iter().for_each(|clock| *clock = (*clock).max(now));
        }
    }

    /// Ends one of its requests, which ran for this long.
    fn end(&mut self, flow: &Flow, taken: Duration) {
        self.running -= 1;
        let taken = u64::try_from(taken.as_micros()).unwrap_or(u64::MAX);
        for step in flow.steps() {
            self.change(step, |served| {
                served.running -= 1;
                served.served = served.served.saturating_add(taken);
            });
        }
    }

    /// Puts a flow's ticket into the queue.
    fn wait(&mut self, flow: &Flow, arrival: u64) {
        self.waiting += 1;
        for step in flow.steps() {
            self.change(step, |served| {
                if served.waits == 0 {
                    served.since = arrival;
                }
                served.waits += 1;
            });
        }
        if flow.steps().len() > 1 {
            self.unknown.enter(flow, arrival);
        }
        // It has arrived.
        if let Some(served) = self.flows.get_mut(flow.last()) {
            served.waiting.insert(arrival);
        }
    }

    /// Takes it out of the queue.
    fn take(&mut self, flow: &Flow, arrival: u64) {
        if !self.flows.get_mut(flow.last()).is_some_and(|served| served.waiting.remove(&arrival)) {
            return;
        }
        self.waiting -= 1;
        for step in flow.steps() {
            self.change(step, |served| served.waits -= 1);
        }
        if flow.steps().len() > 1 {
            self.unknown.leave(flow, arrival);
        }
    }

    /// Whether a flow may queue another request. Among unauthenticated clients, one of the flow with the most makes room for a flow
    /// with fewer.
    fn make_room(&mut self, flow: &Flow, queue: usize) -> bool {
        let of_first = flow.steps().first().and_then(|step| self.flows.get(step));
        let waits = of_first.map_or(0, |served| served.waits + served.late);
        if waits < queue {
            return true;
        }
        if flow.steps().len() == 1 {
            return false;
        }
        // The one that has waited longest stays.
        let Some((last, false)) = self.unknown.giving_way(flow).and_then(|(held, own)| Some((*held.last()?, own)))
        else {
            return false;
        };
        let Some(ticket) = self.tickets.remove(&last) else { return false };
        self.take(&ticket.flow, last);
        // Its missing ticket tells the waiter.
        self.woken.extend(ticket.waker);
        true
    }

    /// The flow and ticket that get the next seat.
    fn next(&self, of_one: usize) -> Option<(Step, u64)> {
        self.first_of(&self.order, of_one)
    }

    /// The first that may run, if each of these may have this many.
    fn first_of(&self, order: &BTreeSet<(Rank, Step)>, most: usize) -> Option<(Step, u64)> {
        // Those behind have as many.
        let mut may = order.iter().take_while(|((running, ..), _)| *running < most);
        may.find_map(|(_, step)| {
            self.look();
            let served = self.flows.get(step)?;
            match served.waiting.first() {
                Some(arrival) => Some((step.clone(), *arrival)),
                // None of those within may run: then enough run to be worth the search.
                None => self.first_of(&served.order, (most - most / 4).max(1)),
            }
        })
    }

    /// Forgets an idle flow without debts; once all are idle, all of them.
    fn forget(&mut self, flow: &Flow) {
        if self.running + self.waiting == 0 {
            // Nobody waits: the order is empty.
            self.flows.clear();
            (self.clock, self.swept) = (0, 0);
            return;
        }
        for step in flow.steps().iter().rev() {
            // An enclosing level with possible debts stays until the next scan.
            if self.flows.get(step).is_none_or(|served| served.parts > 0) || !self.goes(step) {
                break;
            }
            self.remove(step);
        }
        if self.flows.len() > SWEPT.max(self.swept * 2) {
            let forgotten: Vec<Step> = self.flows.keys().filter(|step| self.goes(step)).cloned().collect();
            forgotten.iter().for_each(|step| self.remove(step));
            self.swept = self.flows.len();
        }
    }

    /// An idle level can go with everything in it.
    fn goes(&self, step: &Step) -> bool {
        self.look();
        let owes_nothing = |step: &Step, served: &Served| {
            served.running == 0 && served.waits + served.late == 0 && served.served <= self.clock_of(step)
        };
        let is_gone = |step: &Step| self.flows.get(step).is_none_or(|served| owes_nothing(step, served));
        std::iter::successors(Some(step.clone()), Step::within).any(|step| is_gone(&step))
    }

    fn remove(&mut self, step: &Step) {
        if self.flows.remove(step).is_some()
            && let Some(around) = step.within().and_then(|around| self.flows.get_mut(&around))
        {
            around.parts -= 1;
        }
    }

    /// Tests count the flows that are looked at.
    fn look(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }

    fn clock_of(&self, step: &Step) -> u64 {
        match step.within() {
            None => self.clock,
            Some(around) => self.flows.get(&around).map_or(0, |served| served.clock),
        }
    }
}

impl Seat {
    /// The limiter, if it is one.
    pub fn limiter(&self) -> &Arc<InflightLimiter> {
        &self.limiter
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.limiter.leave(&self.flow, self.since.elapsed());
    }
}

#[cfg(test)]
mod tests;
