//! Disks as Pods use them: who has more than its limits allow is evicted, and when a disk runs full, who it is for.
//!
//! ```text
//!  executor.storage(pod) --Usage-->  limits.rs (pure)   --Eviction-->  pods.rs -> worker
//!  executor.disks()      --Disks-->  pressure.rs (pure) --Eviction-->  '
//!                                      '-- Pressure: the node's condition, and what it admits
//! ```
//!
//! Usage is measured every [`PERIOD`]. Where the file system has project quotas, they tell it of Pods with users of their own
//! (`podwright_runtime::projects`): the owner of a file may give it another project unless he is in a user namespace, so
//! upstream, too, believes them of such Pods alone. Everywhere else it is found by walking (`podwright_runtime::sys::walk`),
//! less often, and behind the others, where that costs much (`turns`). What is decided is in the Pod's status; an agent that dies before it is there decides the
//! same again, for the files are still there.
//!
//! What is written faster than anybody looks is held up by the disk itself: its free space is read every [`GLANCE`].

pub mod limits;
pub mod pressure;
mod turns;

use std::{
    collections::{HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::Instant,
};

use super::{Shared, counters::table::EVICTIONS, observed::Failure, spec::PodExt};
pub use limits::{ContainerUsage, Usage};
use pressure::Shortage;
pub use pressure::{Disks, Space, Thresholds};
use turns::{Gait, Outcome, Turns};

/// How often a Pod is measured at most: kubelet's `housekeepingInterval`.
const PERIOD: Duration = Duration::from_secs(10);
/// A Pod whose measurement costs so many seconds is left alone so many times as long.
pub const REST: u32 = 50;
/// CPU time for one measurement of a Pod: enough for tens of millions of files. Who has more evades.
pub const MOST: Duration = Duration::from_secs(60);
/// How often the free space of the disks is read.
const GLANCE: Duration = Duration::from_secs(1);
/// How long an evicted Pod may take to give back its space before another one goes: kubelet's `podCleanupTimeout`.
pub const CLEANUP: Duration = Duration::from_secs(30);
/// How long Pods are measured before one goes for the node's sake; who takes longer counts as unknown.
const HASTE: Duration = Duration::from_secs(5);
/// How long a disk must have room before the node says so: kubelet's `evictionPressureTransitionPeriod`.
pub const TRANSITION: Duration = Duration::from_secs(300);

/// A Pod has to go.
#[derive(Clone, Debug)]
pub struct Eviction {
    pub uid: String,
    pub failure: Failure,
    /// For the node's sake, not for what the Pod did: condition `DisruptionTarget`.
    pub disruption: bool,
}

/// What is asked of who holds the Pods.
#[derive(Debug)]
pub enum Order {
    /// Those that have not ended.
    Active(oneshot::Sender<Vec<Arc<Pod>>>),
    Evict(Eviction),
}

/// Whether the node is short of disk space: `DiskPressure`.
pub type Pressure = watch::Sender<bool>;

/// Looks after the disks until the agent ends.
pub async fn run(shared: Arc<Shared>, orders: mpsc::UnboundedSender<Order>) {
    // Nothing is written where there is no disk.
    if shared.executor.disks().await == Disks::default() {
        return;
    }
    tokio::select! {
        () = hold_to_limits(&shared, &orders) => {}
        () = keep_free(&shared, &orders) => {}
        () = shared.stop.cancelled() => {}
    }
}

/// Reads whether the disks are too full, before there is a Pod to be admitted.
pub async fn glance(shared: &Shared) {
    let short = pressure::shortage(&shared.config.eviction_hard, &shared.executor.disks().await).is_some();
    shared.pressure.send_replace(short);
}

async fn active(orders: &mpsc::UnboundedSender<Order>) -> Vec<Arc<Pod>> {
    let (sender, receiver) = oneshot::channel();
    orders.send(Order::Active(sender)).ok();
    // Nobody answers any more when the agent ends.
    receiver.await.unwrap_or_default()
}

fn evict(orders: &mpsc::UnboundedSender<Order>, pod: &Pod, message: String, disruption: bool) {
    let failure = Failure { reason: "Evicted".to_owned(), message };
    orders.send(Order::Evict(Eviction { uid: pod.uid().to_owned(), failure, disruption })).ok();
}

/// Measures each Pod from time to time, and evicts those above their limits.
async fn hold_to_limits(shared: &Arc<Shared>, orders: &mpsc::UnboundedSender<Order>) {
    let mut turns = Turns::default();
    let mut looks: JoinSet<(String, Outcome)> = JoinSet::new();
    loop {
        let mut pods = active(orders).await;
        pods.retain(|pod| limits::is_limited(pod));
        let now = Instant::now();
        turns.expect(pods.iter().map(|pod| (pod.uid(), pod.namespace())), now);
        let pods: HashMap<&str, &Arc<Pod>> = pods.iter().map(|pod| (pod.uid(), pod)).collect();
        while let Some((uid, gait)) = turns.next(now) {
            // The invariant: only who is expected has a turn.
            let Some(pod) = pods.get(uid.as_str()) else { continue };
            let (shared, orders, pod) = (shared.clone(), orders.clone(), Arc::clone(pod));
            looks.spawn(async move {
                let outcome = whole(&pod, look(&shared, &orders, &pod, gait)).await;
                (uid, outcome.unwrap_or(Outcome::Done(Duration::ZERO)))
            });
        }
        tokio::select! {
            Some(Ok((uid, outcome))) = looks.join_next() => turns.done(&uid, outcome, Instant::now()),
            () = tokio::time::sleep(GLANCE) => {}
        }
    }
}

/// What comes out of a look at a Pod; `None`, with an error in the log: it panicked. Its Pod is measured again all the same.
async fn whole<T>(pod: &Pod, look: impl Future<Output = T>) -> Option<T> {
    // A look changes nothing that others see, so nothing is left half done.
    let outcome = AssertUnwindSafe(look).catch_unwind().await;
    outcome.inspect_err(|_| tracing::error!(pod = %pod.full_name(), "measuring a Pod panicked")).ok()
}

/// Measures a Pod. Nobody is evicted because of one look: a file that moves may be counted twice; nor because a quick one has not
/// seen all.
async fn look(shared: &Shared, orders: &mpsc::UnboundedSender<Order>, pod: &Pod, gait: Gait) -> Outcome {
    let mut cost = Duration::ZERO;
    for last in [false, true] {
        let Some(usage) = shared.executor.storage(pod, gait.most()).await else { break };
        let total = usage.total();
        if gait == Gait::Quick && total.evades && total.cost >= gait.most() {
            return Outcome::TooSlow;
        }
        cost += total.cost;
        match limits::exceeded(pod, &usage) {
            Some(message) if last => evict(orders, pod, message, false),
            Some(_) => {}
            None => break,
        }
    }
    Outcome::Done(cost)
}

/// Reads the free space of the disks, tells the node's condition, and evicts one Pod after the other while too little is
/// free: what nobody needs is removed first.
async fn keep_free(shared: &Arc<Shared>, orders: &mpsc::UnboundedSender<Order>) {
    let thresholds = &shared.config.eviction_hard;
    let mut low_at: Option<Instant> = None;
    let mut evicted: Option<(String, Instant)> = None;
    let mut next = Instant::now();
    let mut looks = Looks::default();
    loop {
        let now = Instant::now();
        let shortage = pressure::shortage(thresholds, &shared.executor.disks().await);
        if shortage.is_some() {
            low_at = Some(now);
        }
        let pressure = low_at.is_some_and(|at| now < at + TRANSITION);
        shared.pressure.send_if_modified(|known| std::mem::replace(known, pressure) != pressure);
        match shortage {
            None => evicted = None,
            Some(_) if now < next || is_leaving(orders, evicted.as_ref()).await => {}
            Some(shortage) => {
                let message = format!("Attempting to reclaim {}", shortage.resource);
                shared.recorder.warning(node(shared), "EvictionThresholdMet", message);
                shared.executor.reclaim(thresholds).await;
                let left = pressure::shortage(thresholds, &shared.executor.disks().await);
                if let Some(shortage) = left.filter(|shortage| shortage.of_pods) {
                    evicted = make_room(shared, orders, &shortage, &mut looks).await.map(|uid| (uid, Instant::now()));
                }
                if evicted.is_none() {
                    // Nothing that this node has helps.
                    next = now + PERIOD;
                }
            }
        }
        tokio::time::sleep(GLANCE).await;
    }
}

/// Whether a Pod that was evicted may still give back its space.
async fn is_leaving(orders: &mpsc::UnboundedSender<Order>, evicted: Option<&(String, Instant)>) -> bool {
    let Some((uid, at)) = evicted else { return false };
    Instant::now() < *at + CLEANUP && active(orders).await.iter().any(|pod| pod.uid() == uid)
}

/// Measurements for the node's sake. One that takes too long goes on, and its Pod is not measured a second time meanwhile.
#[derive(Default)]
struct Looks {
    tasks: JoinSet<(String, Option<Usage>)>,
    busy: HashSet<String>,
}

/// Evicts the Pod that ranks first: its uid, if there is one.
async fn make_room(
    shared: &Arc<Shared>,
    orders: &mpsc::UnboundedSender<Order>,
    shortage: &Shortage,
    looks: &mut Looks,
) -> Option<String> {
    let pods = active(orders).await;
    for pod in pods.iter().filter(|pod| looks.busy.insert(pod.uid().to_owned())) {
        let (shared, pod) = (shared.clone(), pod.clone());
        looks.tasks.spawn(async move {
            let usage = whole(&pod, shared.executor.storage(&pod, MOST)).await.flatten();
            (pod.uid().to_owned(), usage)
        });
    }
    let mut measured: HashMap<String, Usage> = HashMap::new();
    let end = Instant::now() + HASTE;
    while let Ok(Some(Ok((uid, usage)))) = tokio::time::timeout_at(end, looks.tasks.join_next()).await {
        looks.busy.remove(&uid);
        measured.extend(usage.map(|usage| (uid, usage)));
    }
    let measured = pods.into_iter().map(|pod| (pod.clone(), measured.remove(pod.uid()))).collect();
    let ranked = pressure::rank(measured, shortage.resource);
    let Some((pod, usage)) = ranked.first() else {
        tracing::warn!("the disk is under pressure, and no Pod can be evicted");
        return None;
    };
    if !pressure::explains(ranked.iter().map(|(_, usage)| usage.as_ref()), shortage) {
        let Shortage { resource, threshold, available, .. } = shortage;
        tracing::warn!(
            %resource, %threshold, %available,
            "what Pods are measured to have on disk does not explain what it lacks: somebody else fills it, or a Pod hides what it has"
        );
    }
    shared.counters.add(&EVICTIONS, &[shortage.signal.name()]);
    evict(orders, pod, pressure::message(shortage, pod, usage.as_ref()), true);
    Some(pod.uid().to_owned())
}

/// The Node, as events are about it.
pub fn node(shared: &Shared) -> ObjectReference {
    node_named(&shared.config.name)
}

pub fn node_named(name: &str) -> ObjectReference {
    let name = Some(name.to_owned());
    ObjectReference { kind: Some("Node".into()), uid: name.clone(), name, ..ObjectReference::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_look_that_panics_is_none_and_ends_nobody_elses() {
        let pod = Pod::default();
        assert_eq!(whole(&pod, async { 1 }).await, Some(1));
        assert_eq!(whole(&pod, async { panic!("a look") as u8 }).await, None);
    }
}
