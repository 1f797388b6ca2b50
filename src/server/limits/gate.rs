//! A gate lets so many requests run at once, and is fair to the flows that they come in, as upstream's API Priority and
//! Fairness is; a flow is a user, by `User::counted_as`. A seat that becomes free goes to the flow that has the fewest, and of
//! those to the one that has been served for the shortest time. One that was not there gets no credit for that, and one that
//! comes back keeps its debts (start-time fair queueing). No flow takes the last quarter of the seats: whoever comes next need
//! not wait for it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Limits, full};
use crate::api::Status;

/// The highest share of a line's queue that all flows together may fill, in requests per running one.
const CROWD: usize = 4;

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
    flows: HashMap<String, Flow>,
}

#[derive(Default)]
struct Flow {
    running: usize,
    /// For how long it has been served; on the gate's clock.
    served: u64,
    waiting: VecDeque<Ticket>,
}

struct Ticket {
    arrival: u64,
    call: oneshot::Sender<()>,
}

/// The right of one request to run; it ends when dropped.
pub(in crate::server) struct Seat {
    gate: Arc<Gate>,
    flow: String,
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
    pub async fn enter(self: &Arc<Gate>, flow: &str) -> Result<Seat, Status> {
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
    pub async fn turn(self: &Arc<Gate>, flow: &str) -> Seat {
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
    fn ask(&self, name: &str, bounded: bool) -> Result<Option<oneshot::Receiver<()>>, ()> {
        let mut state = self.lock();
        let state = &mut *state;
        let clock = state.clock;
        let flow = state.flows.entry(name.to_owned()).or_default();
        // Who was not there gets no credit for it.
        flow.served = flow.served.max(clock);
        if state.running < self.seats && flow.running < self.of_one {
            state.running += 1;
            state.clock = flow.served;
            flow.begin();
            return Ok(None);
        }
        if bounded && (flow.waiting.len() >= self.queue || state.waiting >= CROWD * self.seats) {
            state.forget();
            return Err(());
        }
        let (call, called) = oneshot::channel();
        state.arrivals += 1;
        flow.waiting.push_back(Ticket { arrival: state.arrivals, call });
        state.waiting += 1;
        Ok(Some(called))
    }

    fn seat(self: &Arc<Gate>, flow: &str) -> Seat {
        Seat { gate: self.clone(), flow: flow.to_owned(), since: Instant::now() }
    }

    /// A flow's request has ended that had a seat for so long.
    fn leave(&self, name: &str, taken: Duration) {
        let mut state = self.lock();
        let state = &mut *state;
        state.running -= 1;
        if let Some(flow) = state.flows.get_mut(name) {
            flow.running -= 1;
            flow.served = flow.served.saturating_add(u64::try_from(taken.as_micros()).unwrap_or(u64::MAX));
        }
        while state.running < self.seats {
            let may = |flow: &Flow| !flow.waiting.is_empty() && flow.running < self.of_one;
            let rank = |flow: &Flow| (flow.running, flow.served, flow.waiting.front().map(|ticket| ticket.arrival));
            let Some(next) = state.flows.values_mut().filter(|flow| may(flow)).min_by_key(|flow| rank(flow)) else {
                break;
            };
            let Some(ticket) = next.waiting.pop_front() else { break };
            state.waiting -= 1;
            // Who has gone meanwhile takes no seat.
            if ticket.call.send(()).is_ok() {
                state.running += 1;
                state.clock = state.clock.max(next.served);
                next.begin();
            }
        }
        state.forget();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Counters that a panic left behind are whole: each is changed in one step.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Flow {
    /// One more of its requests runs. It is served by that, if only for a moment.
    fn begin(&mut self) {
        self.running += 1;
        self.served = self.served.saturating_add(1);
    }
}

/// Somebody in a queue, who may give up at any moment.
struct Waiting<'a> {
    called: oneshot::Receiver<()>,
    gate: &'a Gate,
    flow: &'a str,
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
        let state = &mut *state;
        if let Some(flow) = state.flows.get_mut(self.flow) {
            let before = flow.waiting.len();
            flow.waiting.retain(|ticket| !ticket.call.is_closed());
            state.waiting -= before - flow.waiting.len();
        }
        state.forget();
    }
}

impl State {
    /// Forgets flows that are not there and owe nothing; once nobody is there, all.
    fn forget(&mut self) {
        let clock = if self.running + self.waiting == 0 { u64::MAX } else { self.clock };
        self.flows.retain(|_, flow| flow.running > 0 || !flow.waiting.is_empty() || flow.served > clock);
        if self.flows.is_empty() {
            self.clock = 0;
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
mod tests {
    use std::pin::pin;

    use super::*;

    fn gate(seats: usize, queue: usize) -> Arc<Gate> {
        Gate::new(seats, &Limits { queue, wait: Duration::from_secs(5), ..Limits::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn a_polite_user_gets_the_next_seat_before_a_greedy_one() {
        let gate = gate(4, 50);
        let mut taken = Vec::new();
        for _ in 0..3 {
            taken.push(gate.enter("greedy").await.unwrap());
        }
        taken.push(gate.enter("other").await.expect("one is left for others"));
        let order = Arc::new(Mutex::new(Vec::new()));
        let ask = |user: &'static str| {
            let (gate, order) = (gate.clone(), order.clone());
            tokio::spawn(async move {
                let seat = gate.enter(user).await.unwrap();
                order.lock().unwrap().push(user);
                tokio::time::sleep(Duration::from_millis(100)).await;
                drop(seat);
            })
        };
        let mut tasks: Vec<_> = (0..8).map(|_| ask("greedy")).collect();
        tokio::time::sleep(Duration::from_millis(1)).await;
        tasks.extend((0..2).map(|_| ask("polite")));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(order.lock().unwrap().is_empty(), "all seats are taken");
        taken.drain(..2);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(*order.lock().unwrap(), ["polite", "polite"]);
        taken.clear();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(order.lock().unwrap().len(), 10);
        assert!(gate.lock().flows.is_empty() && gate.lock().running == 0 && gate.lock().waiting == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_or_in_too_long_a_queue_is_refused_and_leaves_no_trace() {
        let gate = gate(1, 2);
        let seat = gate.enter("a").await.unwrap();
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                tokio::spawn({
                    let gate = gate.clone();
                    async move { gate.enter("a").await.map(drop) }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let begun = Instant::now();
        let refused = gate.enter("a").await.map(drop).unwrap_err();
        assert_eq!(begun.elapsed(), Duration::ZERO, "a full queue is not waited for");
        assert_eq!((refused.code, refused.details.unwrap().retry_after_seconds), (429, Some(1)));
        for task in waiting {
            assert_eq!(task.await.unwrap().unwrap_err().code, 429);
        }
        drop(seat);
        assert!(gate.lock().flows.is_empty() && gate.lock().running == 0 && gate.lock().waiting == 0);
        drop(gate.enter("b").await.unwrap());
    }

    /// Names cost nothing: however many there are, so many requests wait.
    #[tokio::test(start_paused = true)]
    async fn all_flows_together_have_a_queue_that_ends() {
        let gate = gate(2, 50);
        let _seats = [gate.enter("a").await.unwrap(), gate.enter("b").await.unwrap()];
        let names: Vec<String> = (0..CROWD * 2).map(|n| format!("f{n}")).collect();
        let mut waiting: Vec<_> = names.iter().map(|name| Box::pin(gate.enter(name))).collect();
        for one in &mut waiting {
            assert!(futures::poll!(one.as_mut()).is_pending());
        }
        let begun = Instant::now();
        assert_eq!(gate.enter("one more").await.map(drop).unwrap_err().code, 429);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    /// Who comes after another has worked alone for long takes turns with him, and does not first take as long.
    #[tokio::test(start_paused = true)]
    async fn who_was_not_there_has_no_credit() {
        let gate = gate(1, 50);
        let first = gate.turn("long there").await;
        tokio::time::sleep(Duration::from_secs(100)).await;
        let turns = Arc::new(Mutex::new((0_u32, 0_u32)));
        let work = |name: &'static str| {
            let (gate, turns) = (gate.clone(), turns.clone());
            tokio::spawn(async move {
                loop {
                    let seat = gate.turn(name).await;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    let mut turns = turns.lock().unwrap();
                    *(if name == "long there" { &mut turns.0 } else { &mut turns.1 }) += 1;
                    drop((seat, turns));
                }
            })
        };
        // It goes on without a pause: nothing is forgotten of what it has had.
        let tasks = [work("long there"), work("long there")];
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop(first);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let others = [work("new"), work("new")];
        tokio::time::sleep(Duration::from_secs(2)).await;
        tasks.iter().chain(&others).for_each(|task| task.abort());
        let (old, new) = *turns.lock().unwrap();
        assert!(old >= 80 && new >= 80, "{old} turns of who was there, {new} of who came");
    }

    #[tokio::test(start_paused = true)]
    async fn no_flow_takes_all_seats() {
        let gate = gate(8, 50);
        let mut taken = Vec::new();
        for _ in 0..6 {
            taken.push(gate.enter("greedy").await.unwrap());
        }
        let mut more = pin!(gate.enter("greedy"));
        assert!(futures::poll!(more.as_mut()).is_pending(), "two are left for others");
        let other = gate.enter("other").await.unwrap();
        taken.pop();
        assert!(futures::poll!(more.as_mut()).is_ready());
        drop((other, taken));
    }

    /// Of two flows that wait for the one seat all the time, each has it for as long as the other.
    #[tokio::test(start_paused = true)]
    async fn who_takes_long_has_fewer_turns() {
        let gate = gate(1, 50);
        let turns = Arc::new(Mutex::new((0_u32, 0_u32)));
        let work = |name: &'static str, each: u64| {
            let (gate, turns) = (gate.clone(), turns.clone());
            tokio::spawn(async move {
                loop {
                    let seat = gate.turn(name).await;
                    tokio::time::sleep(Duration::from_millis(each)).await;
                    let mut turns = turns.lock().unwrap();
                    *(if name == "long" { &mut turns.0 } else { &mut turns.1 }) += 1;
                    drop((seat, turns));
                }
            })
        };
        let tasks = [work("long", 100), work("long", 100), work("long", 100), work("short", 10), work("short", 10)];
        tokio::time::sleep(Duration::from_secs(20)).await;
        tasks.iter().for_each(|task| task.abort());
        let (long, short) = *turns.lock().unwrap();
        assert!((80..=120).contains(&long) && (800..=1200).contains(&short), "{long} long turns, {short} short ones");
    }
}
