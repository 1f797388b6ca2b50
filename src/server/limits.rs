//! Limits: concurrent requests, bytes of bodies, open connections, and how slow a client may be. Whoever exceeds them is refused;
//! heavy users queue behind light ones.

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

/// The limits of one server; upstream's defaults where it has them.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Concurrent reads, and writes. Watches and sessions do not count.
    pub inflight: usize,
    pub mutating_inflight: usize,
    /// How many requests of one flow (see `inflight`) may wait, and for how long.
    pub queue: usize,
    pub wait: Duration,
    /// Bytes of requests in memory: of all users together, and of each.
    pub bodies: usize,
    pub bodies_of_one: usize,
    /// Bytes of unsent responses in memory: of all users together, and of each.
    pub answers: usize,
    pub answers_of_one: usize,
    /// Open watches of all users together, and of each; nodes may have ten times as many.
    pub watches: usize,
    pub watches_of_one: usize,
    /// Selector requirements of all watches of one user together: each is checked against each changed object.
    pub watched_of_one: usize,
    /// TLS connections, for as long as they are open, with any protocol: in total, per address, and per user (nodes may have ten
    /// times as many).
    pub connections: usize,
    pub connections_of_one: usize,
    pub connections_of_user: usize,
    /// The time limit of the TLS handshake.
    pub handshake: Duration,
    /// The time limit for a request's headers, also of the next one on a connection.
    pub headers: Duration,
    /// The time limit for a body, and for a WebSocket message.
    pub body: Duration,
    /// How long a client may leave sent data unread.
    pub stalled: Duration,
    /// How often the credentials and rights of long-running requests are checked again: upstream's cache time for looked-up tokens.
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
    /// The same for a process with a limit of file descriptors: at most half of them are for incoming connections. The others are
    /// for connections that those cause (to nodes, webhooks, issuers), and for the server's own files.
    pub fn within(self, descriptors: u64) -> Limits {
        let half = usize::try_from(descriptors / 2).unwrap_or(usize::MAX).max(1);
        let connections = self.connections.min(half);
        // A single address leaves connections to others.
        let connections_of_one = self.connections_of_one.min(connections.div_ceil(2));
        let connections_of_user = self.connections_of_user.min(connections.div_ceil(4));
        Limits { connections, connections_of_one, connections_of_user, ..self }
    }
}

/// The limiters for reads and writes.
pub(super) struct Limiters {
    reading: Arc<InflightLimiter>,
    writing: Arc<InflightLimiter>,
    /// Memory held by requests.
    pub bodies: Arc<Bodies>,
    pub watches: Arc<WatchLimiter>,
    /// CPU time, by user.
    pub cpu: Arc<CpuScheduler>,
    /// Writes of built-in components: few at once, namespaces in turn.
    behind: Arc<InflightLimiter>,
    /// Evictions that check many budgets: few at once, namespaces in turn.
    judging: Arc<InflightLimiter>,
}

/// A node watches each object that its Pods refer to, so its per-user limits are this many times as high.
const NODE: usize = 10;

/// How many writes of built-in components run at once. (Those that wait for the disk together share one fsync.)
const BEHIND: usize = 32;

/// How many evictions check many budgets at once; one namespace leaves one to others.
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

    /// Waits until a write of a built-in component, for a namespace, may run.
    pub async fn enter_behind(&self, namespace: &str) -> Seat {
        self.behind.turn(namespace).await
    }

    /// Waits until a user's eviction may check a namespace's many budgets; without a deadline for the superuser.
    pub async fn enter_to_judge(&self, user: &User, namespace: &str) -> Result<Seat, Status> {
        match user.is_in("system:masters") {
            true => Ok(self.judging.turn(namespace).await),
            false => self.judging.turn_in_time(namespace).await,
        }
    }

    /// Waits until a user may read something that is not an object.
    pub async fn enter_to_read(&self, user: &User) -> Result<Option<Seat>, Status> {
        match user.is_in("system:masters") {
            true => Ok(None),
            false => self.reading.enter(user).await.map(Some),
        }
    }

    /// Waits until the request may run. Long-running requests, and users who must always be served, do not wait.
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
