//! Limits: how many requests run at once, how many bytes of bodies wait, how many connections are open, how long a client may
//! dawdle. Who goes beyond is refused; who asks for much waits behind those who ask for little.

use std::sync::Arc;
use std::time::Duration;

use podwright_api::{Request, Status, User, Verb};

use super::sessions::SessionLimits;

mod account;
mod admitted;
mod away;
mod bodies;
mod connections;
mod cpu;
mod flow;
mod inflight;
mod runs;
mod watches;

pub(super) use account::{Account, Charge};
pub(super) use admitted::Admitted;
pub(super) use away::{Away, Held};
pub(super) use bodies::{Bodies, BodyBytes};
pub(super) use connections::{ConnectionLimiter, Guest, Pass};
pub(super) use cpu::{CpuScheduler, Share, WITH_CPU_WAIT};
pub(super) use inflight::{InflightLimiter, Seat};
pub(super) use runs::{Asked, Paced, Requests, Runs, Waited};
pub(super) use watches::WatchLimiter;

/// The limits of one server; the defaults are upstream's where it has them.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Requests that read, and that write, at once. Watches and sessions are not counted.
    pub inflight: usize,
    pub mutating_inflight: usize,
    /// Requests of one flow (see `inflight`) that may wait for their turn, and for how long they do.
    pub queue: usize,
    pub wait: Duration,
    /// Bytes of requests that may lie in memory: of all users together, and of one.
    pub bodies: usize,
    pub bodies_of_one: usize,
    /// Bytes of answers that may lie in memory until they are sent: of all users together, and of one.
    pub answers: usize,
    pub answers_of_one: usize,
    /// Watches that are open at once, of all users together and of one; a node's own may be ten times as many.
    pub watches: usize,
    pub watches_of_one: usize,
    /// Requirements of selectors that all watches of one user together may have: each is looked up in each object that changes.
    pub watched_of_one: usize,
    /// TLS connections, for as long as they are open, whatever is spoken on them: in all, from one address, and of one user (a
    /// node's own may be ten times as many).
    pub connections: usize,
    pub connections_of_one: usize,
    pub connections_of_user: usize,
    /// Who has not finished the TLS handshake by then is no client.
    pub handshake: Duration,
    /// The same for a request's headers, also of the next one on a connection.
    pub headers: Duration,
    /// How long a body may take, and a message of a WebSocket.
    pub body: Duration,
    /// How long a client may leave unread what it was sent.
    pub stalled: Duration,
    /// How often it is asked anew who has opened what outlives its request, and whether he may: as long as upstream believes a token
    /// that it has looked up.
    pub ask_again: Duration,
    /// Sessions with nodes.
    pub sessions: SessionLimits,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            inflight: 400,
            mutating_inflight: 200,
            queue: 50,
            wait: Duration::from_secs(15),
            bodies: 256 << 20,
            bodies_of_one: 64 << 20,
            answers: 512 << 20,
            answers_of_one: 128 << 20,
            watches: 100_000,
            watches_of_one: 1_000,
            watched_of_one: 20_000,
            connections: 20_000,
            connections_of_one: 10_000,
            connections_of_user: 2_048,
            handshake: Duration::from_secs(10),
            headers: Duration::from_secs(32),
            body: Duration::from_secs(60),
            stalled: Duration::from_secs(60),
            ask_again: Duration::from_secs(10),
            sessions: SessionLimits::default(),
        }
    }
}

impl Limits {
    /// The same for a process that may have so many descriptors open: half of them at most are connections' from outside. The
    /// others are for what those make the server open (to nodes, webhooks, issuers), and for its own files.
    pub fn within(self, descriptors: u64) -> Limits {
        let half = usize::try_from(descriptors / 2).unwrap_or(usize::MAX).max(1);
        let connections = self.connections.min(half);
        // Whoever has one address alone leaves others some.
        let connections_of_one = self.connections_of_one.min(connections.div_ceil(2));
        let connections_of_user = self.connections_of_user.min(connections.div_ceil(4));
        Limits { connections, connections_of_one, connections_of_user, ..self }
    }
}

/// The limiters of requests that read and that write.
pub(super) struct Limiters {
    reading: Arc<InflightLimiter>,
    writing: Arc<InflightLimiter>,
    /// What lies in memory of requests.
    pub bodies: Arc<Bodies>,
    pub watches: Arc<WatchLimiter>,
    /// CPU time, by user.
    pub cpu: Arc<CpuScheduler>,
    /// What our own components write: few at once, and each namespace's in turn.
    behind: Arc<InflightLimiter>,
    /// Where evictions look at many budgets: few at once, and each namespace's in turn.
    judging: Arc<InflightLimiter>,
}

/// A node watches each object that its Pods refer to: of what is counted by user it may have so many times as much.
const NODE: usize = 10;

/// How many of our own components' writes run at once. (Those that wait for the disk together share one fsync.)
const BEHIND: usize = 32;

/// How many evictions look at many budgets at once; a namespace's leave one to others.
const JUDGING: usize = 4;

impl Limiters {
    pub fn new(limits: &Limits) -> Limiters {
        Limiters {
            reading: InflightLimiter::new(limits.inflight, limits),
            writing: InflightLimiter::new(limits.mutating_inflight, limits),
            bodies: Bodies::new(limits),
            watches: WatchLimiter::new(limits),
            cpu: CpuScheduler::new(limits),
            behind: InflightLimiter::new(BEHIND, limits),
            judging: InflightLimiter::new(JUDGING, limits),
        }
    }

    /// Waits until a write of one of our own components, for what is in a namespace, may run.
    pub async fn enter_behind(&self, namespace: &str) -> Seat {
        self.behind.turn(namespace).await
    }

    /// Waits until a user's eviction may look at a namespace's many budgets; the superuser's however long that takes.
    pub async fn enter_to_judge(&self, user: &User, namespace: &str) -> Result<Seat, Status> {
        match user.is_in("system:masters") {
            true => Ok(self.judging.turn(namespace).await),
            false => self.judging.turn_in_time(namespace).await,
        }
    }

    /// Waits until a user may read what is no object.
    pub async fn enter_to_read(&self, user: &User) -> Result<Option<Seat>, Status> {
        match user.is_in("system:masters") {
            true => Ok(None),
            false => self.reading.enter(user).await.map(Some),
        }
    }

    /// Waits until the request may run. What goes on for long, and who must always get an answer, is let through.
    pub async fn enter(&self, request: &Request) -> Result<Option<Seat>, Status> {
        let limiter = match request.verb {
            _ if request.user.is_in("system:masters") => return Ok(None),
            Verb::Watch | Verb::Connect => return Ok(None),
            Verb::Get | Verb::List => &self.reading,
            _ => &self.writing,
        };
        limiter.enter(&request.user).await.map(Some)
    }
}

pub(super) fn full() -> Status {
    Status::too_many_requests("Too many requests, please try again later.", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_connections_than_half_of_the_descriptors() {
        let of = |descriptors: u64| {
            let limits = Limits::default().within(descriptors);
            (limits.connections, limits.connections_of_one, limits.connections_of_user)
        };
        let all = Limits::default();
        assert_eq!(of(u64::MAX), (all.connections, all.connections_of_one, all.connections_of_user));
        assert_eq!(of(1_024), (512, 256, 128), "the other half is for files, nodes, webhooks and issuers");
        assert_eq!(of(1), (1, 1, 1), "somebody may always come");
    }
}
