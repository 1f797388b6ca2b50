//! Graceful node shutdown: while systemd-logind waits, Pods end by their priorities, lower ones first. KEP-2000, KEP-2712.
//! <https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/>
//!
//! ```text
//!  logind --PrepareForShutdown--> Manager --Order::Evict, a group after the other--> pods.rs -> workers
//!                                    |  '- grace.rs (pure): Pods -> groups
//!                                    '- Shared::shutting_down: the Node is not ready, and takes no Pods
//! ```

mod grace;
mod logind;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    Shared,
    counters::ShutdownTimes,
    orders::{self, Order},
    pod::intent::{Eviction, Failure},
    spec::PodExt,
    storage,
};
pub use grace::{GracePeriodError, GracePeriods, Group};
use logind::Logind;
pub use logind::{LogindError, remove_configuration};

/// Whether the machine is shutting down.
pub type ShuttingDown = watch::Sender<bool>;

/// How long the server may take to accept the last statuses.
const REPORTS: Duration = Duration::from_secs(2);
/// The interval for asking whether Pods have ended.
const LOOK: Duration = Duration::from_millis(100);
/// The pause before connecting again to a logind that went away.
const RECONNECT: Duration = Duration::from_secs(1);

/// Delays shutdowns of the machine until its Pods have ended.
pub struct Manager {
    periods: GracePeriods,
    may_configure: bool,
    logind: Logind,
}

impl Manager {
    /// Connects to logind; `None`: there is nothing to wait for. `may_configure`: raises logind's own maximum. Nothing is delayed until
    /// [`Manager::run`] can end Pods.
    ///
    /// # Errors
    ///
    /// Shutdowns cannot be delayed for so long.
    pub async fn start(periods: GracePeriods, may_configure: bool) -> Result<Option<Manager>, LogindError> {
        if periods.is_none() {
            return Ok(None);
        }
        let logind = Logind::connect(periods.total(), REPORTS, may_configure).await?;
        Ok(Some(Manager { periods, may_configure, logind }))
    }

    /// Waits for shutdowns, until the agent ends.
    pub async fn run(mut self, shared: Arc<Shared>, orders: mpsc::UnboundedSender<Order>) {
        let stop = shared.stop.clone();
        let follow = async {
            loop {
                let Err(why) = self.follow(&shared, &orders).await;
                tracing::warn!(%why, "shutdowns of the machine are not delayed: connecting again to systemd-logind");
                self.logind = self.connect_again().await;
            }
        };
        stop.run_until_cancelled(follow).await;
    }

    async fn connect_again(&self) -> Logind {
        loop {
            tokio::time::sleep(RECONNECT).await;
            match Logind::connect(self.periods.total(), REPORTS, self.may_configure).await {
                Ok(logind) => return logind,
                Err(why) => tracing::debug!(%why, "systemd-logind is not there yet"),
            }
        }
    }

    /// Follows logind until the connection ends. A shutdown may have begun before the agent.
    async fn follow(
        &mut self,
        shared: &Arc<Shared>,
        orders: &mpsc::UnboundedSender<Order>,
    ) -> Result<std::convert::Infallible, LogindError> {
        let mut begins = self.logind.is_shutting_down().await?;
        // What is under way is not delayed any more by who comes late.
        self.logind.delay().await.or_else(|why| if begins { Ok(()) } else { Err(why) })?;
        loop {
            let began = shared.shutting_down.send_replace(begins);
            match (began, begins) {
                (_, true) => {
                    self.end_pods(shared, orders).await;
                    self.logind.release();
                }
                (true, false) => {
                    tracing::info!("the shutdown was called off");
                    self.logind.delay().await?;
                }
                (false, false) => {}
            }
            begins = self.logind.next().await?;
        }
    }

    /// Ends all Pods, a group after the other; each has its grace period at most.
    async fn end_pods(&self, shared: &Arc<Shared>, orders: &mpsc::UnboundedSender<Order>) {
        let node = storage::node(shared);
        shared.recorder.normal(node, "NodeShutdown", "Shutdown manager detected shutdown event".to_owned());
        let start = seconds(shared);
        shared.counters.set_shutdown(ShutdownTimes { start, end: 0.0 });
        let groups = self.periods.groups(orders::active(orders).await);
        for group in &groups {
            tracing::info!(pods = group.pods.len(), grace = ?group.grace, "the machine shuts down: ending Pods");
            for pod in &group.pods {
                orders.send(Order::Evict(eviction(pod, group))).ok();
            }
            let left = || async { orders::active(orders).await.iter().filter(|pod| group.has(pod)).count() };
            let left = wait_for_none(group.grace, left).await;
            if left > 0 {
                tracing::warn!(left, "Pods did not end within their grace period");
            }
        }
        let unreported = wait_for_none(REPORTS, || orders::unreported(orders)).await;
        if unreported > 0 {
            tracing::warn!(unreported, "the server has not accepted the last status of some Pods");
        }
        shared.counters.set_shutdown(ShutdownTimes { start, end: seconds(shared) });
    }
}

/// Now, in seconds since the epoch.
fn seconds(shared: &Shared) -> f64 {
    shared.env.now().as_millisecond() as f64 / 1000.0
}

/// Waits until nothing is left, for `most`; returns what is.
async fn wait_for_none<F: Future<Output = usize>>(most: Duration, left: impl Fn() -> F) -> usize {
    let until = Instant::now() + most;
    loop {
        let left = left().await;
        if left == 0 || Instant::now() >= until {
            return left;
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn eviction(pod: &Pod, group: &Group) -> Eviction {
    Eviction {
        uid: pod.uid().to_owned(),
        grace: group.grace_of(pod),
        failure: Failure {
            reason: "Terminated".to_owned(),
            message: "Pod was terminated in response to imminent node shutdown.".to_owned(),
        },
        disruption: true,
    }
}

/// Checks whether a Pod may start.
///
/// # Errors
///
/// The machine is shutting down.
pub fn admit(shutting_down: bool) -> Result<(), Failure> {
    match shutting_down {
        true => Err(Failure {
            reason: "NodeShutdown".to_owned(),
            message: "Pod was rejected as the node is shutting down.".to_owned(),
        }),
        false => Ok(()),
    }
}
