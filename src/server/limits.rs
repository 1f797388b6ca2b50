//! Limits: how many requests run at once, how many bytes of bodies wait, how many connections are open, how long a client may
//! dawdle. Who goes beyond is refused; who asks for much waits behind those who ask for little.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::api::{Request, Status, Verb};

/// The limits of one server; the defaults are upstream's where it has them.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Requests that read, and that write, at once. Watches and sessions are not counted.
    pub inflight: usize,
    pub mutating_inflight: usize,
    /// Requests of one user that may wait for their turn, and for how long they do.
    pub queue: usize,
    pub wait: Duration,
    /// Bytes of request bodies that may lie in memory together.
    pub bodies: usize,
    /// Bytes of answers that may lie in memory until they are sent: of all users together, and of one.
    pub answers: usize,
    pub answers_of_one: usize,
    /// Watches that are open at once, of all users together and of one; a node's own may be ten times as many.
    pub watches: usize,
    pub watches_of_one: usize,
    /// Requirements of selectors that all watches of one user together may have: each is looked up in each object that changes.
    pub watched_of_one: usize,
    /// TLS connections, in all and from one address.
    pub connections: usize,
    pub connections_of_one: usize,
    /// Who has not finished the TLS handshake by then is no client.
    pub handshake: Duration,
    /// The same for a request's headers, also of the next one on a connection.
    pub headers: Duration,
    /// How long a body may take.
    pub body: Duration,
    /// How long a client may leave unread what it was sent.
    pub stalled: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            inflight: 400,
            mutating_inflight: 200,
            queue: 50,
            wait: Duration::from_secs(15),
            bodies: 256 << 20,
            answers: 512 << 20,
            answers_of_one: 128 << 20,
            watches: 100_000,
            watches_of_one: 1_000,
            watched_of_one: 20_000,
            connections: 20_000,
            connections_of_one: 10_000,
            handshake: Duration::from_secs(10),
            headers: Duration::from_secs(32),
            body: Duration::from_secs(60),
            stalled: Duration::from_secs(60),
        }
    }
}

/// The highest share of a line's queue that all users together may fill, in requests per running one.
const CROWD: usize = 4;

/// Lets so many requests run at once. When all seats are taken, the next free one goes to the user who has the fewest.
pub(super) struct Gate {
    seats: usize,
    queue: usize,
    wait: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: usize,
    waiting: usize,
    users: HashMap<String, User>,
}

#[derive(Default)]
struct User {
    running: usize,
    waiting: VecDeque<oneshot::Sender<()>>,
}

/// The right of one request to run; it ends when dropped.
pub(super) struct Seat {
    gate: Arc<Gate>,
    user: String,
}

impl Gate {
    pub fn new(seats: usize, limits: &Limits) -> Arc<Gate> {
        Arc::new(Gate { seats, queue: limits.queue, wait: limits.wait, state: Mutex::default() })
    }

    /// Waits for a seat; an error when too many wait already, or none becomes free in time.
    pub async fn enter(self: &Arc<Gate>, user: &str) -> Result<Seat, Status> {
        let called = {
            let mut state = self.lock();
            let state = &mut *state;
            if state.running < self.seats {
                state.running += 1;
                state.users.entry(user.to_owned()).or_default().running += 1;
                return Ok(self.seat(user));
            }
            let of_user = state.users.entry(user.to_owned()).or_default();
            if of_user.waiting.len() >= self.queue || state.waiting >= CROWD * self.seats {
                state.forget(user);
                return Err(full());
            }
            let (call, called) = oneshot::channel();
            of_user.waiting.push_back(call);
            state.waiting += 1;
            called
        };
        let mut waiting = Waiting { called, gate: self, user, seated: false };
        let called = tokio::time::timeout(self.wait, &mut waiting.called).await;
        waiting.seated = matches!(called, Ok(Ok(())));
        if waiting.seated { Ok(self.seat(user)) } else { Err(full()) }
    }

    fn seat(self: &Arc<Gate>, user: &str) -> Seat {
        Seat { gate: self.clone(), user: user.to_owned() }
    }

    fn leave(&self, user: &str) {
        let mut state = self.lock();
        state.running -= 1;
        if let Some(of_user) = state.users.get_mut(user) {
            of_user.running -= 1;
        }
        state.forget(user);
        while state.running < self.seats {
            let next = state.users.iter().filter(|(_, u)| !u.waiting.is_empty()).min_by_key(|(_, u)| u.running);
            let Some(name) = next.map(|(name, _)| name.clone()) else { break };
            let Some(of_user) = state.users.get_mut(&name) else { break };
            let Some(call) = of_user.waiting.pop_front() else { break };
            // Who has gone meanwhile takes no seat.
            let taken = call.send(()).is_ok();
            of_user.running += usize::from(taken);
            state.running += usize::from(taken);
            state.waiting -= 1;
            state.forget(&name);
        }
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
    user: &'a str,
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
            return self.gate.leave(self.user);
        }
        let mut state = self.gate.lock();
        let state = &mut *state;
        if let Some(of_user) = state.users.get_mut(self.user) {
            let before = of_user.waiting.len();
            of_user.waiting.retain(|call| !call.is_closed());
            state.waiting -= before - of_user.waiting.len();
        }
        state.forget(self.user);
    }
}

impl State {
    fn forget(&mut self, user: &str) {
        if self.users.get(user).is_some_and(|u| u.running == 0 && u.waiting.is_empty()) {
            self.users.remove(user);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.gate.leave(&self.user);
    }
}

fn full() -> Status {
    Status::too_many_requests("Too many requests, please try again later.", 1)
}

/// The gates of requests that read and that write.
pub(super) struct Gates {
    reading: Arc<Gate>,
    writing: Arc<Gate>,
    /// What may be kept of bodies, all together.
    pub bodies: Budget,
    pub watches: Arc<Watches>,
}

impl Gates {
    pub fn new(limits: &Limits) -> Gates {
        Gates {
            reading: Gate::new(limits.inflight, limits),
            writing: Gate::new(limits.mutating_inflight, limits),
            bodies: Budget { left: Arc::new(AtomicUsize::new(limits.bodies)) },
            watches: Watches::new(limits),
        }
    }

    /// Waits until a user may read what is no object.
    pub async fn enter_to_read(&self, user: &crate::api::User) -> Result<Option<Seat>, Status> {
        match user.is_in("system:masters") {
            true => Ok(None),
            false => self.reading.enter(&user.name).await.map(Some),
        }
    }

    /// Waits until the request may run. What goes on for long, and who must always get an answer, is let through.
    pub async fn enter(&self, request: &Request) -> Result<Option<Seat>, Status> {
        let gate = match request.verb {
            _ if request.user.is_in("system:masters") => return Ok(None),
            Verb::Watch | Verb::Connect => return Ok(None),
            Verb::Get | Verb::List => &self.reading,
            _ => &self.writing,
        };
        gate.enter(&request.user.name).await.map(Some)
    }
}

/// Counts watches, and what they look at, in all and by their users.
pub(super) struct Watches {
    most: usize,
    most_of_one: usize,
    watched_of_one: usize,
    state: Mutex<Watching>,
}

#[derive(Default)]
struct Watching {
    open: usize,
    /// By user: how many, and the requirements of their selectors.
    users: HashMap<String, (usize, usize)>,
}

/// The right of a watch to be open; it ends when dropped.
pub(super) struct Watched {
    watches: Arc<Watches>,
    /// `None`: it is not counted.
    user: Option<String>,
    requirements: usize,
}

/// A node watches each object that its Pods refer to.
const NODE: usize = 10;

impl Watches {
    fn new(limits: &Limits) -> Arc<Watches> {
        let Limits { watches: most, watches_of_one: most_of_one, watched_of_one, .. } = *limits;
        Arc::new(Watches { most, most_of_one, watched_of_one, state: Mutex::default() })
    }

    /// Lets a watch with so many requirements be opened, or refuses it. The superuser's are not counted.
    pub fn enter(self: &Arc<Watches>, user: &crate::api::User, requirements: usize) -> Result<Watched, Status> {
        let watches = self.clone();
        if user.is_in("system:masters") {
            return Ok(Watched { watches, user: None, requirements: 0 });
        }
        let times = if user.is_in("system:nodes") { NODE } else { 1 };
        let mut state = self.lock();
        let (open, watched) = state.users.get(&user.name).copied().unwrap_or_default();
        let fits = watched + requirements <= times * self.watched_of_one;
        if state.open >= self.most || open >= times * self.most_of_one || !fits {
            return Err(full());
        }
        state.open += 1;
        state.users.insert(user.name.clone(), (open + 1, watched + requirements));
        Ok(Watched { watches, user: Some(user.name.clone()), requirements })
    }

    fn lock(&self) -> MutexGuard<'_, Watching> {
        // Counters that a panic left behind are whole: nothing between their changes panics.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let Some(user) = &self.user else { return };
        let mut state = self.watches.lock();
        state.open -= 1;
        if let Some((open, watched)) = state.users.get_mut(user) {
            *open -= 1;
            *watched -= self.requirements;
            if *open == 0 {
                state.users.remove(user);
            }
        }
    }
}

/// Bytes that may be taken.
pub(super) struct Budget {
    left: Arc<AtomicUsize>,
}

/// Bytes that were taken; given back when dropped.
pub struct Taken {
    left: Arc<AtomicUsize>,
    bytes: usize,
}

impl Budget {
    pub fn none(&self) -> Taken {
        Taken { left: self.left.clone(), bytes: 0 }
    }
}

impl Taken {
    /// Takes more; false: there is not so much left.
    pub fn more(&mut self, bytes: usize) -> bool {
        let taken =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok();
        self.bytes += if taken { bytes } else { 0 };
        taken
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// Counts connections, in all and by their address.
pub(super) struct Doorman {
    most: usize,
    most_of_one: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    count: Arc<AtomicUsize>,
}

/// The right of a connection to be open.
pub(super) struct Pass {
    address: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    count: Arc<AtomicUsize>,
}

impl Doorman {
    pub fn new(limits: &Limits) -> Doorman {
        let (open, count) = Default::default();
        Doorman { most: limits.connections, most_of_one: limits.connections_of_one, open, count }
    }

    /// None: there are too many.
    pub fn admit(&self, address: IpAddr) -> Option<Pass> {
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.most {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let mut open = self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let of_one = open.entry(address).or_default();
        if *of_one >= self.most_of_one {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        *of_one += 1;
        Some(Pass { address, open: self.open.clone(), count: self.count.clone() })
    }
}

impl Pass {
    pub fn address(&self) -> IpAddr {
        self.address
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let mut open = self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(of_one) = open.get_mut(&self.address) {
            *of_one -= 1;
            if *of_one == 0 {
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(seats: usize, queue: usize) -> Arc<Gate> {
        Gate::new(seats, &Limits { queue, wait: Duration::from_secs(5), ..Limits::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn a_polite_user_gets_the_next_seat_before_a_greedy_one() {
        let gate = gate(4, 50);
        let mut taken = Vec::new();
        for _ in 0..4 {
            taken.push(gate.enter("greedy").await.unwrap());
        }
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
        taken.truncate(2);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(*order.lock().unwrap(), ["polite", "polite"]);
        taken.clear();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(order.lock().unwrap().len(), 10);
        assert!(gate.lock().users.is_empty() && gate.lock().running == 0 && gate.lock().waiting == 0);
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
        let refused = gate.enter("a").await.map(drop).unwrap_err();
        assert_eq!((refused.code, refused.details.unwrap().retry_after_seconds), (429, Some(1)));
        for task in waiting {
            assert_eq!(task.await.unwrap().unwrap_err().code, 429);
        }
        drop(seat);
        assert!(gate.lock().users.is_empty() && gate.lock().running == 0 && gate.lock().waiting == 0);
        drop(gate.enter("b").await.unwrap());
    }

    #[test]
    fn watches_are_counted_by_user_and_in_all() {
        let limits = Limits { watches: 25, watches_of_one: 2, watched_of_one: 10, ..Limits::default() };
        let watches = Watches::new(&limits);
        let user = |name: &str, groups: &[&str]| crate::api::User::new(name, groups.iter().copied());
        let (a, b) = (user("a", &[]), user("b", &[]));
        let refused = |outcome: Result<Watched, Status>| outcome.is_err_and(|why| why.code == 429);
        let first = watches.enter(&a, 9).unwrap();
        assert!(refused(watches.enter(&a, 2)), "more requirements than all his watches may have");
        let second = watches.enter(&a, 1).unwrap();
        assert!(refused(watches.enter(&a, 0)), "a third");
        let other = watches.enter(&b, 10).unwrap();
        let node = user("system:node:n", &["system:nodes"]);
        let mut of_node: Vec<_> = (0..20).map(|_| watches.enter(&node, 5).unwrap()).collect();
        assert!(refused(watches.enter(&node, 0)));
        let masters: Vec<_> =
            (0..50).map(|_| watches.enter(&user("root", &["system:masters"]), 100).unwrap()).collect();
        let (c, d) = (user("c", &[]), user("d", &[]));
        let more = [watches.enter(&c, 0).unwrap(), watches.enter(&c, 0).unwrap()];
        assert!(refused(watches.enter(&d, 0)), "that is all that there may be");
        of_node.pop();
        drop(watches.enter(&d, 0).unwrap());
        drop((first, second, other, of_node, masters, more));
        assert!(watches.lock().users.is_empty() && watches.lock().open == 0);
    }

    #[test]
    fn bytes_and_connections_are_given_back() {
        let gates = Gates::new(&Limits { bodies: 10, ..Limits::default() });
        let (mut one, mut two) = (gates.bodies.none(), gates.bodies.none());
        assert!(one.more(6) && !two.more(5) && two.more(4));
        drop(one);
        assert!(two.more(6) && !two.more(1));

        let doorman = Doorman::new(&Limits { connections: 3, connections_of_one: 2, ..Limits::default() });
        let at = |n: u8| IpAddr::from([127, 0, 0, n]);
        let (first, second) = (doorman.admit(at(1)), doorman.admit(at(1)));
        assert!(first.is_some() && second.is_some() && doorman.admit(at(1)).is_none());
        let third = doorman.admit(at(2));
        assert!(third.is_some() && doorman.admit(at(3)).is_none());
        drop((first, third));
        assert!(doorman.admit(at(3)).is_some() && doorman.admit(at(1)).is_some());
    }
}
