//! A limiter lets so many requests run at once, and is fair to the flows that they come in, as upstream's API Priority and
//! Fairness is; a flow is a user, by `User::counted_as`, or where somebody comes from who is not known. A seat that becomes free
//! goes to the flow that has the fewest, and of those to the one that has been served for the shortest time; where a flow is within
//! others, first by these. One that was not there gets no credit for that, and one that comes back keeps its debts (start-time fair
//! queueing). No flow takes the last quarter of the seats: whoever comes next need not wait for it.
//!
//! Nobody is given a seat behind his back: he is called, and takes it when he is polled (see `calls`). Who does not come is passed
//! over, for what he waits in may be polled late, or never.

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

/// The highest share of a line's queue that all flows together may fill, in requests per running one.
const CROWDED: usize = 4;

/// So many flows are looked through no sooner than when they are twice as many as were left the last time.
const SWEPT: usize = 64;

/// Lets so many requests run at once.
pub(crate) struct InflightLimiter {
    seats: usize,
    /// The most that one flow has of them.
    of_one: usize,
    queue: usize,
    wait: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Those who have a seat, and those who are called.
    running: usize,
    /// Those who wait, in line or not; and how many of them did not come when they were called.
    waiting: usize,
    late: usize,
    /// How long the flow that got the last seat had been served by then, in microseconds.
    clock: u64,
    /// Counts who came to wait.
    arrivals: u64,
    flows: HashMap<Step, Served>,
    /// Those who wait and are in nothing else, in the order in which seats go to them.
    order: BTreeSet<(Rank, Step)>,
    /// All who wait or are called, by their arrival; those in line who are not known; and the calls, by when each has an end.
    tickets: HashMap<u64, Ticket>,
    unknown: Crowd,
    calls: BTreeSet<(Instant, u64)>,
    /// Ends calls, as long as anybody is in line or called.
    watch: Option<JoinHandle<()>>,
    /// Whom to wake, and what to drop, as soon as nobody has the state: either may ask for it.
    woken: Vec<Waker>,
    dropped: Vec<Waker>,
    /// How many flows there were after all of them were looked through.
    swept: usize,
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
}

/// How many run, for how long it has been served, and who came before whom: who has least of that gets the next seat.
type Rank = (usize, u64, u64);

/// A flow, or what flows are in.
#[derive(Default)]
struct Served {
    running: usize,
    /// For how long it has been served; on the clock of what it is in.
    served: u64,
    /// The clock of those in it.
    clock: u64,
    /// How many wait in it, and which came when nobody did; its own tickets, by their arrival.
    waits: usize,
    since: u64,
    waiting: BTreeSet<u64>,
    /// How many in it wait, and did not come when they were called.
    late: usize,
    /// How many flows are in it, and those of them that wait.
    parts: usize,
    order: BTreeSet<(Rank, Step)>,
}

impl Served {
    /// None: nobody waits.
    fn rank(&self) -> Option<Rank> {
        (self.waits > 0).then_some((self.running, self.served, self.since))
    }
}

struct Ticket {
    flow: Flow,
    waker: Option<Waker>,
    place: QueueState,
    /// How often it was called and did not come, or not before another who came.
    missed: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum QueueState {
    InLine,
    /// Until then a seat is kept for it.
    Called(Instant),
    /// It did not come. It is in line again once it is polled.
    Late,
}

/// The state, until those are woken who were called meanwhile.
struct Locked<'a>(Option<MutexGuard<'a, State>>);

/// The right of one request to run; it ends when dropped.
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

    /// How many may run at once.
    pub fn seats(&self) -> usize {
        self.seats
    }

    /// Waits for a seat; an error when too many wait already, or none becomes free in time.
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

    /// Takes a seat (`None`), or joins the queue. An error: that is full.
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

    /// A flow's request has ended that had a seat for so long.
    fn leave(&self, flow: &Flow, taken: Duration) {
        let mut state = self.lock();
        state.end(flow, taken);
        self.call(&mut state);
        state.forget(flow);
    }

    fn lock(&self) -> Locked<'_> {
        // Counters that a panic left behind are whole: each is changed in one step.
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
    /// Somebody comes: who was not there gets no credit for it.
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

    /// Changes what there is of a flow, and with that its place among those that wait.
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

    /// Whether one more of a flow may run, maybe instead of another: neither it nor what it is in takes the last quarter of what there
    /// is.
    fn may(&self, flow: &Flow, of_one: usize, instead: Option<&Flow>) -> bool {
        let mut most = of_one;
        flow.steps().iter().all(|step| {
            let less = usize::from(instead.is_some_and(|other| other.steps().contains(step)));
            let may = self.flows.get(step).is_none_or(|served| served.running < most + less);
            most = (most - most / 4).max(1);
            may
        })
    }

    /// One more of its requests runs. It is served by that, if only for a moment.
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

    /// One less of its requests runs, which did so for so long.
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

    /// A flow's ticket is in line.
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
        // He has arrived.
        if let Some(served) = self.flows.get_mut(flow.last()) {
            served.waiting.insert(arrival);
        }
    }

    /// It is in line no more.
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

    /// Whether one more of a flow may wait. Of those who are not known one of whoever has most gives way to who has fewer.
    fn make_room(&mut self, flow: &Flow, queue: usize) -> bool {
        let of_first = flow.steps().first().and_then(|step| self.flows.get(step));
        let waits = of_first.map_or(0, |served| served.waits + served.late);
        if waits < queue {
            return true;
        }
        if flow.steps().len() == 1 {
            return false;
        }
        // Who has waited longest waits on.
        let Some((last, false)) = self.unknown.giving_way(flow).and_then(|(held, own)| Some((*held.last()?, own)))
        else {
            return false;
        };
        let Some(ticket) = self.tickets.remove(&last) else { return false };
        self.take(&ticket.flow, last);
        // That it is gone tells him.
        self.woken.extend(ticket.waker);
        true
    }

    /// Who gets the next seat: his flow, and his ticket of it.
    fn next(&self, of_one: usize) -> Option<(Step, u64)> {
        self.first_of(&self.order, of_one)
    }

    /// The first that may run, where one of these may have so many.
    fn first_of(&self, order: &BTreeSet<(Rank, Step)>, most: usize) -> Option<(Step, u64)> {
        // Those behind have as many.
        let mut may = order.iter().take_while(|((running, ..), _)| *running < most);
        may.find_map(|(_, step)| {
            self.look();
            let served = self.flows.get(step)?;
            match served.waiting.first() {
                Some(arrival) => Some((step.clone(), *arrival)),
                // In it there may be none that may: then there are as many that run as make up for looking.
                None => self.first_of(&served.order, (most - most / 4).max(1)),
            }
        })
    }

    /// Forgets a flow that is not there and owes nothing; once nobody is there, all.
    fn forget(&mut self, flow: &Flow) {
        if self.running + self.waiting == 0 {
            // Nobody waits: nothing has an order.
            self.flows.clear();
            (self.clock, self.swept) = (0, 0);
            return;
        }
        for step in flow.steps().iter().rev() {
            // What others are in that may owe something stays until all are looked through.
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

    /// With what it is in goes what is in it: nobody is there.
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

    /// Tests count at how many flows it looks.
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
    /// Where it is one.
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
