//! What the node and its containers use: measured every 15 s and reported to the server, which serves it as `metrics.k8s.io`.
//!
//! ```text
//!  executor.usage()  --Sample-->  meter.rs (pure)  --Report-->  client.report()
//! ```
//!
//! A container that has just started is measured at once, and again soon after, so it has metrics within ten seconds. Only the last
//! sample is kept; a report that does not reach the server is dropped.

pub mod hollow;
pub mod meter;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use tokio::{sync::Notify, time::Instant};

use super::Shared;
use meter::Meter;
use podwright_api::metrics::Report;
use podwright_client::Informer;

/// The measuring interval.
const PERIOD: Duration = Duration::from_secs(15);
/// The interval while something was measured only once; also the minimum between two samples.
const SOON: Duration = Duration::from_secs(5);
/// The delay before measuring a started container: earlier, it would only show its startup.
const SETTLE: Duration = Duration::from_secs(1);

/// The last measurement, as reported.
#[derive(Debug, Default)]
pub struct Used(Mutex<Option<Report>>);

impl Used {
    pub fn put(&self, report: Report) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
    }

    /// `None`: nothing has been measured yet.
    pub fn read(&self) -> Option<Report> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Notifies of started containers.
#[derive(Debug, Default)]
pub struct Started(Notify);

impl Started {
    pub fn tell(&self) {
        self.0.notify_one();
    }
}

/// Measures and reports until the agent ends. `pods`: those bound to this node.
pub async fn run(shared: Arc<Shared>, pods: Informer<Pod>) {
    tokio::select! {
        () = report(&shared, &pods) => {}
        () = shared.stop.cancelled() => {}
    }
}

async fn report(shared: &Shared, pods: &Informer<Pod>) {
    let (node, mut meter) = (&shared.config.name, Meter::default());
    loop {
        let last = Instant::now();
        let sample = shared.executor.usage(&pods.list()).await;
        let (mut report, waiting) = meter.take(sample, shared.env.now());
        shared.used.put(report.clone());
        report.pods.retain_mut(|pod| match shared.residents.api_uid(&pod.uid) {
            Some(uid) => {
                pod.uid = uid;
                true
            }
            // A static Pod without a mirror yet.
            None => false,
        });
        if (report.node.is_some() || !report.pods.is_empty())
            && let Err(status) = shared.client.report(node, &report).await
        {
            tracing::debug!(%status, "what the node uses was not told");
        }
        let mut next = last + if waiting { SOON } else { PERIOD };
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(next) => break,
                () = shared.started.0.notified() => next = next.min(sooner(last, Instant::now())),
            }
        }
    }
}

/// When to measure after a container has just started.
fn sooner(last: Instant, now: Instant) -> Instant {
    (last + SOON).max(now + SETTLE)
}
