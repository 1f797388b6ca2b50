//! A gate lets so many requests run at once, and is fair to the flows that they come in, as upstream's API Priority and
//! Fairness is; a flow is a user, by `User::counted_as`, or where somebody comes from who is not known. A seat that becomes free
//! goes to the flow that has the fewest, and of those to the one that has been served for the shortest time; where a flow is within
//! others, first by these. One that was not there gets no credit for that, and one that comes back keeps its debts (start-time fair
//! queueing). No flow takes the last quarter of the seats: whoever comes next need not wait for it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::flow::{Crowd, Flow, Step};
use super::{Limits, full};
use crate::api::Status;

/// The highest share of a line's queue that all flows together may fill, in requests per running one.
const CROWDED: usize = 4;

/// Lets so many requests run at once.
pub(in crate::server) struct Gate {
    seats: usize,
    /// The most that one flow has of them.
    of_one: usize,
    queue: usize,
    wait: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: usize,
    waiting: usize,
    /// How long the flow that got the last seat had been served by then, in microseconds.
    clock: u64,
    /// Counts who came to wait.
    arrivals: u64,
    flows: HashMap<Step, Served>,
    /// The tickets of those who are not known.
    unknown: Crowd,
}

/// A flow, or what flows are in.
#[derive(Default)]
struct Served {
    running: usize,
    /// For how long it has been served; on the clock of what it is in.
    served: u64,
    /// The clock of those in it.
    clock: u64,
    /// How many wait in it, and its own tickets.
    waits: usize,
    waiting: VecDeque<Ticket>,
}

struct Ticket {
    flow: Flow,
    arrival: u64,
    call: oneshot::Sender<()>,
}

/// The right of one request to run; it ends when dropped.
pub(in crate::server) struct Seat {
    gate: Arc<Gate>,
    flow: Flow,
    since: Instant,
}

impl Gate {
    pub fn new(seats: usize, limits: &Limits) -> Arc<Gate> {
        let of_one = (seats - seats / 4).max(1);
        Arc::new(Gate { seats, of_one, queue: limits.queue, wait: limits.wait, state: Mutex::default() })
    }

    /// How many may run at once.
    pub fn seats(&self) -> usize {
        self.seats
    }

    /// Waits for a seat; an error when too many wait already, or none becomes free in time.
    pub async fn enter(self: &Arc<Gate>, flow: impl Into<Flow>) -> Result<Seat, Status> {
        let flow = &flow.into();
        let called = match self.ask(flow, true) {
            Ok(None) => return Ok(self.seat(flow)),
            Ok(Some(called)) => called,
            Err(()) => return Err(full()),
        };
        let mut waiting = Waiting { called, gate: self, flow, seated: false };
        let called = tokio::time::timeout(self.wait, &mut waiting.called).await;
        waiting.seated = matches!(called, Ok(Ok(())));
        if waiting.seated { Ok(self.seat(flow)) } else { Err(full()) }
    }

    /// Waits for a seat, however long that takes and however many wait.
    pub async fn turn(self: &Arc<Gate>, flow: impl Into<Flow>) -> Seat {
        let flow = &flow.into();
        loop {
            let Ok(Some(called)) = self.ask(flow, false) else { return self.seat(flow) };
            let mut waiting = Waiting { called, gate: self, flow, seated: false };
            waiting.seated = (&mut waiting.called).await.is_ok();
            if waiting.seated {
                return self.seat(flow);
            }
        }
    }

    /// Takes a seat (`None`), or joins the queue. An error: that is full.
    fn ask(&self, flow: &Flow, bounded: bool) -> Result<Option<oneshot::Receiver<()>>, ()> {
        let mut state = self.lock();
        let state = &mut *state;
        state.arrive(flow);
        if state.running < self.seats && state.may(flow, self.of_one) {
            state.begin(flow);
            return Ok(None);
        }
        let room = !bounded || state.waiting < CROWDED * self.seats && state.make_room(flow, self.queue);
        if !room {
            state.forget();
            return Err(());
        }
        let (call, called) = oneshot::channel();
        state.arrivals += 1;
        state.wait(Ticket { flow: flow.clone(), arrival: state.arrivals, call });
        Ok(Some(called))
    }

    fn seat(self: &Arc<Gate>, flow: &Flow) -> Seat {
        Seat { gate: self.clone(), flow: flow.clone(), since: Instant::now() }
    }

    /// A flow's request has ended that had a seat for so long.
    fn leave(&self, flow: &Flow, taken: Duration) {
        let mut state = self.lock();
        let state = &mut *state;
        state.running -= 1;
        let taken = u64::try_from(taken.as_micros()).unwrap_or(u64::MAX);
        for step in flow.steps() {
            if let Some(served) = state.flows.get_mut(step) {
                served.running -= 1;
                served.served = served.served.saturating_add(taken);
            }
        }
        while state.running < self.seats {
            let Some(next) = state.next(self.of_one) else { break };
            let Some(ticket) = state.call(&next) else { break };
            // Who has gone meanwhile takes no seat.
            if ticket.call.send(()).is_ok() {
                state.begin(&ticket.flow);
            }
        }
        state.forget();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Counters that a panic left behind are whole: each is changed in one step.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Somebody in a queue, who may give up at any moment.
struct Waiting<'a> {
    called: oneshot::Receiver<()>,
    gate: &'a Gate,
    flow: &'a Flow,
    seated: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.seated {
            return;
        }
        self.called.close();
        if self.called.try_recv().is_ok() {
            // Called in the same moment.
            return self.gate.leave(self.flow, Duration::ZERO);
        }
        let mut state = self.gate.lock();
        state.give_up(self.flow);
        state.forget();
    }
}

impl State {
    /// Somebody comes: who was not there gets no credit for it.
    fn arrive(&mut self, flow: &Flow) {
        let mut clock = self.clock;
        for step in flow.steps() {
            let served = self.flows.entry(step.clone()).or_default();
            served.served = served.served.max(clock);
            clock = served.clock;
        }
    }

    /// Whether one more of a flow may run: neither it nor what it is in takes the last quarter of what there is.
    fn may(&self, flow: &Flow, of_one: usize) -> bool {
        let mut most = of_one;
        flow.steps().iter().all(|step| {
            let may = self.flows.get(step).is_none_or(|served| served.running < most);
            most = (most - most / 4).max(1);
            may
        })
    }

    /// One more of its requests runs. It is served by that, if only for a moment.
    fn begin(&mut self, flow: &Flow) {
        self.running += 1;
        for step in flow.steps() {
            let served = self.flows.entry(step.clone()).or_default();
            let now = served.served;
            served.running += 1;
            served.served = now.saturating_add(1);
            let clock = match step.within() {
                None => &mut self.clock,
                Some(around) => &mut self.flows.entry(around).or_default().clock,
            };
            *clock = (*clock).max(now);
        }
    }

    fn wait(&mut self, ticket: Ticket) {
        self.waiting += 1;
        for step in ticket.flow.steps() {
            self.flows.entry(step.clone()).or_default().waits += 1;
        }
        if ticket.flow.steps().len() > 1 {
            self.unknown.enter(&ticket.flow, ticket.arrival);
        }
        self.flows.entry(ticket.flow.last().clone()).or_default().waiting.push_back(ticket);
    }

    /// One waits no more.
    fn waited(&mut self, ticket: &Ticket) {
        self.waiting -= 1;
        for step in ticket.flow.steps() {
            if let Some(served) = self.flows.get_mut(step) {
                served.waits -= 1;
            }
        }
        if ticket.flow.steps().len() > 1 {
            self.unknown.leave(&ticket.flow, ticket.arrival);
        }
    }

    /// Whether one more of a flow may wait. Of those who are not known one of whoever has most gives way to who has fewer.
    fn make_room(&mut self, flow: &Flow, queue: usize) -> bool {
        let waits = flow.steps().first().and_then(|step| self.flows.get(step)).map_or(0, |served| served.waits);
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
        let ticket = self.flows.values_mut().find_map(|served| {
            let at = served.waiting.iter().position(|ticket| ticket.arrival == last)?;
            served.waiting.remove(at)
        });
        // With its end he is told.
        ticket.inspect(|ticket| self.waited(ticket)).is_some()
    }

    /// Who gets the next seat.
    fn next(&self, of_one: usize) -> Option<Flow> {
        let fronts = self.flows.values().filter_map(|served| served.waiting.front());
        let may = fronts.filter(|ticket| self.may(&ticket.flow, of_one));
        let next = may.min_by(|a, b| {
            let mut differ = self.ranks(&a.flow).zip(self.ranks(&b.flow)).map(|(a, b)| a.cmp(&b));
            differ.find(|it| it.is_ne()).unwrap_or(a.arrival.cmp(&b.arrival))
        });
        next.map(|ticket| ticket.flow.clone())
    }

    fn ranks(&self, flow: &Flow) -> impl Iterator<Item = (usize, u64)> {
        flow.steps().iter().map(|step| self.flows.get(step).map_or((0, 0), |served| (served.running, served.served)))
    }

    fn call(&mut self, flow: &Flow) -> Option<Ticket> {
        let ticket = self.flows.get_mut(flow.last())?.waiting.pop_front()?;
        self.waited(&ticket);
        Some(ticket)
    }

    /// Takes those of a flow out of the queue who wait no more.
    fn give_up(&mut self, flow: &Flow) {
        while let Some(served) = self.flows.get_mut(flow.last())
            && let Some(at) = served.waiting.iter().position(|ticket| ticket.call.is_closed())
            && let Some(ticket) = served.waiting.remove(at)
        {
            self.waited(&ticket);
        }
    }

    /// Forgets flows that are not there and owe nothing; once nobody is there, all.
    fn forget(&mut self) {
        if self.running + self.waiting == 0 {
            self.flows.clear();
            self.clock = 0;
            return;
        }
        let owes_nothing = |step: &Step, served: &Served| {
            served.running == 0 && served.waits == 0 && served.served <= self.clock_of(step)
        };
        let is_gone = |step: &Step| self.flows.get(step).is_none_or(|served| owes_nothing(step, served));
        // With what it is in goes what is in it: nobody is there.
        let goes = |step: &&Step| std::iter::successors(Some((*step).clone()), Step::within).any(|step| is_gone(&step));
        let forgotten: Vec<Step> = self.flows.keys().filter(goes).cloned().collect();
        forgotten.iter().for_each(|step| drop(self.flows.remove(step)));
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
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.gate.leave(&self.flow, self.since.elapsed());
    }
}

#[cfg(test)]
mod tests;
