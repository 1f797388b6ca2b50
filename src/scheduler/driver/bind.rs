//! From the choice of a node to the binding: what must be written and waited for first, and the result.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::Scheduler;
use crate::{
    framework::{ClusterEvent, PluginError, Point, PreBind, Reason},
    metrics::Outcome,
    pod::PodInfo,
    timing,
    writes::{self, Written},
};

/// Bounds a profile's value: clocks are limited.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A Pod that waits to be bound.
pub(super) struct Pending {
    pod: Arc<PodInfo>,
    node: String,
    /// For its trace.
    note: String,
    /// The plugin that it waits for.
    plugin: &'static str,
    /// The prerequisite writes are done.
    written: bool,
    since: Instant,
    until: Instant,
}

fn failed(plugin: &'static str, why: impl Into<Reason>) -> PluginError {
    PluginError { point: Point::PreBind, plugin, why: why.into() }
}

impl Scheduler {
    pub(super) fn bind(&mut self, pod: Arc<PodInfo>, node: String, note: String) {
        let client = self.client.clone();
        let span = self.traced.get(&pod.uid).cloned().unwrap_or_default();
        span.set("node", &node);
        self.writes.spawn(async move {
            let began = Instant::now();
            let outcome = writes::bind(&client, &pod, &node, note, span.link()).await;
            timing::took(Point::Bind, pod.scheduler(), timing::or_error(&outcome), began.elapsed());
            Written::Bound(pod, node, outcome)
        });
    }

    /// Writes what the Pod needs before it is bound. Others are decided meanwhile.
    pub(super) fn prepare(&mut self, pod: Arc<PodInfo>, node: String, note: String, before: PreBind) {
        let since = Instant::now();
        let until = since + before.patience.min(LONGEST);
        let pending = Pending { pod: pod.clone(), node, note, plugin: before.plugin, written: false, since, until };
        self.pending.insert(pod.uid.clone(), pending);
        let client = self.client.clone();
        self.writes.spawn(async move {
            let outcome = writes::before(&client, before.writes).await;
            Written::Before(pod, outcome)
        });
    }

    /// The earliest deadline of Pods that wait only for others.
    pub(super) fn next_end_of_patience(&self) -> Option<Instant> {
        self.pending.values().filter(|pending| pending.written).map(|pending| pending.until).min()
    }

    /// Binds the Pods that need not wait any more.
    pub(super) fn look_at_pending(&mut self) {
        let mut over: Vec<(String, Result<(), PluginError>)> = Vec::new();
        for (uid, Pending { pod, node, plugin, until, .. }) in
            self.pending.iter().filter(|(_, pending)| pending.written)
        {
            let ready = match self.cluster.node(node) {
                Some(found) => {
                    self.profile(pod).map_or(Ok(true), |profile| profile.is_ready(pod, found, &self.cluster))
                }
                None => Err(failed(plugin, format!("node {node:?} not found"))),
            };
            let late = || failed(plugin, "binding volumes: context deadline exceeded");
            match ready {
                Ok(true) => over.push((uid.clone(), Ok(()))),
                Ok(false) if *until <= Instant::now() => over.push((uid.clone(), Err(late()))),
                Ok(false) => {}
                Err(why) => over.push((uid.clone(), Err(why))),
            }
        }
        for (uid, outcome) in over {
            let Some(Pending { pod, node, note, since, .. }) = self.pending.remove(&uid) else { continue };
            timing::took(Point::PreBind, pod.scheduler(), timing::or_error(&outcome), since.elapsed());
            match outcome {
                Ok(()) => self.bind(pod, node, note),
                Err(why) => self.not_bound(pod, why.to_string()),
            }
        }
    }

    /// A Pod is gone, or has a node: its reservation is removed.
    pub(super) fn stop_waiting(&mut self, uid: &str) {
        if let Some(Pending { pod, .. }) = self.pending.remove(uid) {
            self.forget_try(uid);
            self.give_back(pod);
        }
    }

    fn unreserve(&mut self, pod: &Arc<PodInfo>) {
        let config = self.config.clone();
        if let Some(profile) = config.profile(pod.scheduler()) {
            profile.unreserve(pod, &mut self.cluster);
        }
    }

    /// The binding failed: the node is released, and the Pod is retried.
    pub(super) fn not_bound(&mut self, pod: Arc<PodInfo>, message: String) {
        self.warn(&pod, &message);
        self.tried(&pod, Outcome::Error);
        self.queue.retry(&pod, &message);
        self.explain(&pod.key, None);
        self.give_back(pod);
    }

    fn give_back(&mut self, pod: Arc<PodInfo>) {
        self.unreserve(&pod);
        if let Some(node) = self.cluster.forget(&pod.uid) {
            self.on_changes(&[ClusterEvent::PodRemoved(pod)], Some(&node));
        }
    }

    pub(super) fn written(&mut self, written: Written) {
        match written {
            Written::Preempted { by, victim, outcome: Err(_) } => self.not_preempted(&by, &victim),
            Written::Preempted { .. } | Written::Other => {}
            Written::Before(pod, Ok(())) => {
                self.pending.get_mut(&pod.uid).into_iter().for_each(|pending| pending.written = true);
            }
            Written::Before(pod, Err(status)) => {
                if let Some(Pending { plugin, .. }) = self.pending.remove(&pod.uid) {
                    self.not_bound(pod, format!("running PreBind plugin {plugin:?}: {status}"));
                }
            }
            Written::Bound(pod, node, Ok(())) => {
                let message = format!("Successfully assigned {} to {node}", pod.key);
                self.tell(&pod, &pod, "Scheduled", message);
                self.unreserve(&pod);
                self.tried(&pod, Outcome::Scheduled);
                self.queue.done(&pod);
            }
            Written::Bound(pod, _, Err(status)) if status.is_not_found() => {
                self.forget_try(&pod.uid);
                self.queue.done(&pod);
                self.give_back(pod);
            }
            Written::Bound(pod, _, Err(status)) => self.not_bound(pod, format!("binding rejected: {status}")),
        }
    }
}
