//! The task that owns cluster and queue: applies changes, has Pods decided, and sends the resulting writes.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use serde_json::Value;
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

mod bind;
mod changes;
mod event_handlers;
mod preempt;

use super::{
    cluster::Cluster,
    config::Config,
    decide::{self, Decision},
    framework::Nomination,
    metrics::{METRICS, Outcome},
    pod::PodInfo,
    profile::Profile,
    queue::Queue,
    writes::{self, Written},
};
use bind::Pending;
use changes::Changes;
use podwright_api::{
    Env,
    spans::{self, Span},
};
use podwright_client::{Client, Informers, Key, Recorder, reference};
use preempt::Preempting;

/// The most concurrent bindings and conditions: enough to fill the store's group commits.
const MOST_WRITES: usize = 256;
/// How many consecutive decisions run before yielding.
const MAX_DECISIONS: usize = 16;

pub struct Scheduler {
    client: Client,
    env: Env,
    config: Arc<Config>,
    /// One per profile, by name: events name their scheduler.
    recorders: BTreeMap<String, Recorder>,
    cluster: Cluster,
    queue: Queue,
    changes: Changes,
    /// Pods with a reserved node that wait for prerequisites, by uid.
    pending: BTreeMap<String, Pending>,
    preempting: Preempting,
    /// Attempts in progress, by the Pod's uid: the start, the number, and since when the Pod is queued.
    tries: BTreeMap<String, (Instant, u32, Instant)>,
    /// Their spans, in the traces that created the Pods.
    traced: BTreeMap<String, Span>,
    /// Bindings and conditions in progress.
    writes: JoinSet<Written>,
}

impl Scheduler {
    pub fn new(client: Client, env: Env, informers: &Informers, config: Arc<Config>) -> Scheduler {
        let recorder = |name: &String| Recorder::new(client.clone(), env.clone(), name, None);
        let recorders = config.profiles.iter().map(|profile| (profile.name.clone(), recorder(&profile.name))).collect();
        Scheduler {
            recorders,
            client,
            env,
            cluster: Cluster::default(),
            queue: Queue::new(config.initial_backoff, config.max_backoff),
            changes: Changes::of(informers),
            pending: BTreeMap::new(),
            preempting: Preempting::default(),
            tries: BTreeMap::new(),
            traced: BTreeMap::new(),
            writes: JoinSet::new(),
            config,
        }
    }

    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            // All available changes are applied first: a decision on an outdated state is wasted, or wrong.
            self.catch_up();
            let mut decisions = 0;
            while decisions < MAX_DECISIONS && self.writes.len() < MOST_WRITES && self.queue.has_next() {
                self.schedule_one();
                decisions += 1;
            }
            if decisions > 0 && !shutdown.is_cancelled() {
                tokio::task::yield_now().await;
                continue;
            }
            let wake = self.queue.next_wake().into_iter().chain(self.next_end_of_patience()).min();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(news) = self.changes.next() => self.hear(news),
                Some(Ok(written)) = self.writes.join_next() => self.written(written),
                () = wait_until(wake) => {}
                else => break,
            }
        }
        while let Some(written) = self.writes.join_next().await {
            written.into_iter().for_each(|written| self.written(written));
        }
    }

    fn profile(&self, pod: &PodInfo) -> Option<&Profile> {
        self.config.profile(pod.scheduler())
    }

    fn schedule_one(&mut self) {
        let Some(pod) = self.queue.pop() else { return };
        let config = self.config.clone();
        let Some(profile) = config.profile(pod.scheduler()) else {
            // Pods of other schedulers are not queued.
            return self.queue.done(&pod);
        };
        let start = Instant::now();
        let (tries, since) = self.queue.tries(&pod).unwrap_or((1, start));
        self.tries.insert(pod.uid.clone(), (start, tries, since));
        self.trace(&pod, tries);
        let decision = decide::decide(&pod, &mut self.cluster, profile, &self.env);
        METRICS.decided(start.elapsed());
        match decision {
            Decision::Bind(choice) => {
                self.cluster.assume(pod.clone(), &choice.node);
                let note = note(&choice.to_string(), start, &choice.verdicts);
                match profile.reserve(&pod, &choice.node, &mut self.cluster) {
                    Ok(None) => self.bind(pod, choice.node, note),
                    Ok(Some(before)) => self.prepare(pod, choice.node, note, before),
                    Err(why) => self.not_bound(pod, why.to_string()),
                }
            }
            Decision::Unschedulable { message, plugins, nomination, verdicts } => {
                self.warn(&pod, &message);
                match nomination {
                    Nomination::Keep => {}
                    Nomination::Clear => self.cluster.nominations.remove(&pod.uid),
                    Nomination::Preempt { node, victims } => self.preempt(&pod, &node, victims),
                }
                self.tried(&pod, Outcome::Unschedulable);
                self.queue.park(&pod, plugins, &message);
                self.explain(&pod.key, Some(note("no node fits", start, &verdicts)));
            }
        }
    }

    /// An attempt starts, and is traced if the Pod's creation is.
    fn trace(&mut self, pod: &PodInfo, tries: u32) {
        let Some(cause) = spans::cause_of(&pod.uid) else { return };
        let span = Span::begin("Schedule", spans::Origin::Parent(&cause), SystemTime::now(), false);
        span.set("pod", &pod.key.to_string());
        span.set("scheduler", pod.scheduler());
        span.set_number("attempt", tries.into());
        self.traced.insert(pod.uid.clone(), span);
    }

    /// A Pod's attempt has no result.
    fn forget_try(&mut self, uid: &str) {
        self.tries.remove(uid);
        self.traced.remove(uid);
    }

    /// An attempt has ended.
    fn tried(&mut self, pod: &PodInfo, outcome: Outcome) {
        if let Some(span) = self.traced.remove(&pod.uid) {
            if outcome != Outcome::Scheduled {
                span.fail(&outcome.name());
            }
            span.set("result", outcome.name());
            span.end();
        }
        let Some((began, tries, since)) = self.tries.remove(&pod.uid) else { return };
        METRICS.attempted(pod.scheduler(), outcome, began.elapsed());
        if outcome == Outcome::Scheduled {
            METRICS.scheduled(tries, since.elapsed());
        }
    }

    /// Emits an event about a Pod, as the scheduler of the Pod `by`.
    fn tell(&self, by: &PodInfo, about: &PodInfo, reason: &str, message: String) {
        if let Some(recorder) = self.recorders.get(by.scheduler()) {
            recorder.normal(reference(&*about.pod), reason, message);
        }
    }

    /// The same for a Pod without a node.
    fn warn(&self, pod: &PodInfo, message: &str) {
        if let Some(recorder) = self.recorders.get(pod.scheduler()) {
            recorder.warning(reference(&*pod.pod), "FailedScheduling", message);
        }
    }

    /// Reports in the status of a queued Pod why it has no node; `note` is for its trace.
    fn explain(&mut self, key: &Key, note: Option<String>) {
        if let Some((pod, reason, message)) = self.queue.why(key) {
            self.condition(&pod, reason, &message, note);
        }
    }

    /// Reports in the Pod's status why it has no node, and its nominated node; unless the status has that already.
    fn condition(&mut self, pod: &Arc<PodInfo>, reason: &str, message: &str, note: Option<String>) {
        let nominated = self.cluster.nominations.of(&pod.uid);
        if let Some(patch) = writes::unscheduled(&pod.pod, reason, message, nominated, self.env.now()) {
            self.patch_status(&pod.key, patch, note);
        }
    }

    fn patch_status(&mut self, key: &Key, patch: Value, note: Option<String>) {
        let (client, key) = (self.client.clone(), key.clone());
        self.writes.spawn(async move {
            if let Err(status) = writes::status(&client, &key, patch, note).await {
                tracing::debug!(%key, %status, "the Pod's status was not written");
            }
            Written::Other
        });
    }
}

/// The trace note about a decision that started at `start`.
fn note(outcome: &str, start: Instant, verdicts: &[String]) -> String {
    let took = format!("{outcome}, in {} us", start.elapsed().as_micros());
    std::iter::once(took).chain(verdicts.iter().cloned()).collect::<Vec<_>>().join("; ")
}

async fn wait_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
