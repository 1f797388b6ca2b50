//! Leader election with a Lease: one of several candidates is active, and another one takes over when it is gone or unreachable.
//!
//! The algorithm is that of upstream's `client-go/tools/leaderelection`. Clocks of others are not trusted: a Lease is held until it
//! has not changed for its duration, by the observer's own monotonic clock. The leader gives up earlier, after failing to renew for
//! `Times::deadline`. Upstream's process exits then; here its loops are ended, and from that moment no write of theirs is sent,
//! even by a process that was suspended and does not know how much time has passed.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use serde_json::Value;
use tokio::{
    sync::mpsc::Receiver,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{Client, Recorder, Stream, Transport, metrics, reference};
use podwright_api::{Env, Request, Response, Status, Verb, WatchEvent, rpc::Session};

/// The namespace of the control plane's Leases.
pub const NAMESPACE: &str = "kube-system";

/// The duration of a Lease, how long the leader retries to renew it, and the interval of attempts.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub duration: Duration,
    pub deadline: Duration,
    pub retry: Duration,
}

impl Default for Times {
    fn default() -> Times {
        let seconds = Duration::from_secs;
        Times { duration: seconds(15), deadline: seconds(10), retry: seconds(2) }
    }
}

/// A candidate.
pub struct Election {
    pub client: Client,
    pub env: Env,
    /// The Lease's name.
    pub name: &'static str,
    /// This candidate's unique identity.
    pub identity: String,
    pub times: Times,
}

/// The Lease as last observed, and since when it is unchanged.
struct Seen {
    lease: Lease,
    since: Instant,
}

impl Election {
    /// Runs `lead` whenever elected, until `shutdown`. Its client writes only while the Lease is held; its token is cancelled when
    /// the Lease is lost. On a clean shutdown the Lease is released after `lead` has ended.
    pub async fn run<F>(self, shutdown: CancellationToken, lead: impl Fn(Client, CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let recorder = Recorder::new(self.client.clone(), self.env.clone(), self.name, None);
        metrics::leads(self.name, false);
        let mut seen = None;
        while !shutdown.is_cancelled() {
            let Some(until) = shutdown.run_until_cancelled(self.acquire(&mut seen)).await else { return };
            let tell = |what: &str, seen: &Option<Seen>| {
                tracing::info!(lease = self.name, identity = self.identity, "{what}");
                if let Some(seen) = seen {
                    recorder.normal(reference(&seen.lease), "LeaderElection", format!("{} {what}", self.identity));
                }
            };
            tell("became leader", &seen);
            metrics::leads(self.name, true);
            let fence = Fence::new(until);
            let stop = CancellationToken::new();
            let mut term = tokio::spawn(lead(self.client.fenced(&fence), stop.clone()));
            let ended = tokio::select! {
                biased;
                () = shutdown.cancelled() => false,
                _ = &mut term => true,
                () = self.renew(&mut seen, &fence) => false,
            };
            stop.cancel();
            metrics::leads(self.name, false);
            if !ended {
                if !shutdown.is_cancelled() {
                    fence.close();
                    tell("stopped leading", &seen);
                }
                if let Err(why) = term.await {
                    tracing::error!(lease = self.name, %why, "the loops of the leader failed");
                }
            }
            if shutdown.is_cancelled() || ended {
                fence.close();
                self.release(&mut seen).await;
            }
            if ended {
                return;
            }
        }
    }

    /// Retries until the Lease is held; returns how long the leader may act.
    async fn acquire(&self, seen: &mut Option<Seen>) -> Instant {
        loop {
            let begun = Instant::now();
            match self.attempt(seen).await {
                Ok(true) => return begun + self.times.deadline,
                Ok(false) => {}
                Err(why) => tracing::debug!(lease = self.name, %why, "the Lease cannot be acquired"),
            }
            // Jitter for candidates that start at the same time.
            let more = self.times.retry.mul_f64(1.2 * self.env.below(1000) as f64 / 1000.0);
            sleep(self.times.retry + more).await;
        }
    }

    /// Renews periodically; returns after failing for too long.
    async fn renew(&self, seen: &mut Option<Seen>, fence: &Fence) {
        loop {
            let until = fence.until();
            tokio::select! {
                biased;
                () = sleep_until(until) => return,
                () = sleep(self.times.retry) => {}
            }
            let begun = Instant::now();
            match timeout_at(until, self.attempt(seen)).await {
                Ok(Ok(true)) => fence.extend(begun + self.times.deadline),
                Ok(Ok(false)) => tracing::debug!(lease = self.name, "another one holds the Lease"),
                Ok(Err(why)) => tracing::debug!(lease = self.name, %why, "the Lease cannot be renewed"),
                Err(_) => return,
            }
        }
    }

    /// One attempt to acquire or renew; returns whether the Lease is held now.
    async fn attempt(&self, seen: &mut Option<Seen>) -> Result<bool, Status> {
        // The leader assumes that its last state is current; otherwise the write conflicts, and it reads the Lease.
        if let Some(last) = seen.as_ref().filter(|last| self.is_holder(&last.lease) && !is_over(last))
            && let Ok(renewed) = self.client.update(&self.renewed(&last.lease)).await
        {
            *seen = Some(Seen { lease: renewed, since: Instant::now() });
            return Ok(true);
        }
        let found = match self.client.get::<Lease>(Some(NAMESPACE), self.name).await {
            Ok(found) => found,
            Err(status) if status.is_not_found() => {
                let made = self.client.create(&self.renewed(&Lease::default())).await?;
                *seen = Some(Seen { lease: made, since: Instant::now() });
                return Ok(true);
            }
            Err(status) => return Err(status),
        };
        if seen.as_ref().is_none_or(|last| last.lease.spec != found.spec) {
            *seen = Some(Seen { lease: found.clone(), since: Instant::now() });
        }
        let last = seen.as_ref().filter(|last| !holder(&last.lease).is_empty() && !is_over(last));
        if last.is_some_and(|last| !self.is_holder(&last.lease)) {
            return Ok(false);
        }
        let mine = self.client.update(&self.renewed(&found)).await?;
        *seen = Some(Seen { lease: mine, since: Instant::now() });
        Ok(true)
    }

    /// Lets another candidate acquire it at once.
    async fn release(&self, seen: &mut Option<Seen>) {
        let Some(last) = seen.take().filter(|last| self.is_holder(&last.lease)) else { return };
        let mut free = last.lease;
        let now = self.now();
        let spec = free.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        (spec.acquire_time, spec.renew_time) = (now.clone(), now);
        if let Err(why) = self.client.update(&free).await {
            tracing::debug!(lease = self.name, %why, "the Lease could not be released");
        }
    }

    /// The Lease with this holder from now on.
    fn renewed(&self, old: &Lease) -> Lease {
        let none = LeaseSpec::default();
        let before = old.spec.as_ref().unwrap_or(&none);
        let (held, now) = (self.is_holder(old), self.now());
        let transitions = before.lease_transitions.unwrap_or(0);
        let is_new = old.metadata.name.is_none();
        Lease {
            metadata: match is_new {
                true => ObjectMeta {
                    name: Some(self.name.into()),
                    namespace: Some(NAMESPACE.into()),
                    ..ObjectMeta::default()
                },
                false => old.metadata.clone(),
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: Some(i32::try_from(self.times.duration.as_secs()).unwrap_or(i32::MAX)),
                acquire_time: if held { before.acquire_time.clone() } else { now.clone() },
                renew_time: now,
                lease_transitions: Some(if held || is_new { transitions } else { transitions.saturating_add(1) }),
                ..before.clone()
            }),
        }
    }

    fn now(&self) -> Option<MicroTime> {
        Some(MicroTime(self.env.now()))
    }

    fn is_holder(&self, lease: &Lease) -> bool {
        holder(lease) == self.identity
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// Whether the Lease has been unchanged for its duration.
fn is_over(seen: &Seen) -> bool {
    let seconds = seen.lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
    seen.since.elapsed() >= Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// The time until which a leader may write.
#[derive(Clone)]
struct Fence(Arc<Mutex<Instant>>);

impl Fence {
    fn new(until: Instant) -> Fence {
        Fence(Arc::new(Mutex::new(until)))
    }
    fn until(&self) -> Instant {
        *self.lock()
    }
    fn extend(&self, until: Instant) {
        *self.lock() = until;
    }
    fn close(&self) {
        self.extend(Instant::now());
    }
    fn is_open(&self) -> bool {
        Instant::now() < self.until()
    }
    fn lock(&self) -> MutexGuard<'_, Instant> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A transport that sends writes only while the fence is open.
struct Fenced {
    inner: Arc<dyn Transport>,
    fence: Fence,
}

impl Client {
    fn fenced(&self, fence: &Fence) -> Client {
        let fenced = Fenced { inner: self.transport.clone(), fence: fence.clone() };
        Client { transport: Arc::new(fenced), manager: self.manager.clone() }
    }
}

#[async_trait]
impl Transport for Fenced {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        let reads = matches!(request.verb, Verb::Get | Verb::List | Verb::Watch);
        if !reads && !self.fence.is_open() {
            return Err(Status::unavailable("the leader's Lease is lost"));
        }
        self.inner.call(request).await
    }
    async fn watch(&self, request: Request) -> Result<Receiver<WatchEvent>, Status> {
        self.inner.watch(request).await
    }
    async fn method(&self, name: &'static str, params: Value) -> Result<Value, Status> {
        self.inner.method(name, params).await
    }
    async fn raw(&self, path: &str) -> Result<bytes::Bytes, Status> {
        self.inner.raw(path).await
    }
    async fn discovery(&self) -> Result<Value, Status> {
        self.inner.discovery().await
    }
    async fn dial(&self, id: &str) -> Result<Stream, Status> {
        self.inner.dial(id).await
    }
    async fn sessions(&self, node: &str) -> Result<Receiver<Session>, Status> {
        self.inner.sessions(node).await
    }
}
