//! Disk usage: evicts Pods that exceed their limits, and ranks Pods for eviction when a disk runs full.
//!
//! ```text
//!  executor.storage(pod) --Usage-->  limits.rs (pure)   --Eviction-->  pods.rs -> worker
//!  executor.disks()      --Disks-->  pressure.rs (pure) --Eviction-->  '
//!                                      '-- Pressure: the node's condition and admission
//! ```
//!
//! Usage is measured every [`PERIOD`]. For Pods with user namespaces it is read from project quotas if the file system has them
//! (`podwright_runtime::projects`): a file's owner can change its project unless in a user namespace, so upstream, too, trusts them
//! only for such Pods. Otherwise it is measured by walking (`podwright_runtime::sys::walk`), less often and after the others if
//! that is expensive (`measure_queue`). Decisions are stored in the Pod's status; if an agent dies before that, the next one
//! decides the same, as the files are still there.
//!
//! Faster growth is caught by reading the disk's free space every [`GLANCE`].

pub mod limits;
mod measure_queue;
pub mod pressure;

use std::{
    collections::{HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};

use super::{
    Shared,
    counters::table::EVICTIONS,
    orders::{self, Order},
    pod::intent::{Eviction, Failure},
    spec::PodExt,
};
pub use limits::{ContainerUsage, Usage};
use measure_queue::{Gait, MeasureQueue, Outcome};
use pressure::Shortage;
pub use pressure::{Disks, Space, Thresholds};

/// The minimum interval between measurements of a Pod: kubelet's `housekeepingInterval`.
const PERIOD: Duration = Duration::from_secs(10);
/// The pause after a measurement, as a multiple of its cost.
pub const REST: u32 = 50;
/// CPU time limit for one measurement of a Pod: enough for tens of millions of files. A Pod with more counts as evading.
pub const MOST: Duration = Duration::from_secs(60);
/// The interval at which the disks' free space is read.
const GLANCE: Duration = Duration::from_secs(1);
/// How long an evicted Pod may take to free its space before another one is evicted: kubelet's `podCleanupTimeout`. Others about to
/// end have [`PERIOD`]: kubelet's checking interval.
pub const CLEANUP: Duration = Duration::from_secs(30);
/// The grace period of an evicted Pod in seconds: upstream's `immediateEvictionGracePeriodSeconds`.
const EVICTION_GRACE: i64 = 1;
/// A shortage that returns within this time counts as the same one.
const GAP: Duration = PERIOD;
/// Time for measuring Pods before one is evicted for the node; slower ones count as unknown.
const HASTE: Duration = Duration::from_secs(5);
/// How long a disk must have space before the node's condition clears: kubelet's `evictionPressureTransitionPeriod`.
pub const TRANSITION: Duration = Duration::from_secs(300);

/// Whether the node is short of disk space: `DiskPressure`.
pub type Pressure = watch::Sender<bool>;

/// Monitors the disks until the agent ends.
pub async fn run(shared: Arc<Shared>, orders: mpsc::UnboundedSender<Order>) {
    // Nothing is written on a node without disks.
    if shared.executor.disks().await == Disks::default() {
        return;
    }
    tokio::select! {
        () = hold_to_limits(&shared, &orders) => {}
        () = keep_free(&shared, &orders) => {}
        () = shared.stop.cancelled() => {}
    }
}

/// Checks whether the disks are too full, before any Pod is admitted.
pub async fn glance(shared: &Shared) {
    let short = pressure::shortage(&shared.config.eviction_hard, &shared.executor.disks().await).is_some();
    shared.pressure.send_replace(short);
}

/// Whether a Pod whose deadline is `at`, in milliseconds since the epoch, is about to free its space: it has no long grace left,
/// and is not long overdue.
pub fn is_about_to_go(at: i64, now: i64) -> bool {
    let (late, near) = (CLEANUP.as_millis() as i64, PERIOD.as_millis() as i64);
    now.saturating_sub(late) < at && at <= now.saturating_add(near)
}

/// The uids of Pods that are about to go, or are gone with files still being removed.
async fn leaving(shared: &Shared, orders: &mpsc::UnboundedSender<Order>) -> HashSet<String> {
    let mut all = orders::leaving(orders).await;
    all.extend(shared.executor.leaving().await);
    all
}

fn evict(orders: &mpsc::UnboundedSender<Order>, pod: &Pod, message: String, disruption: bool) {
    let failure = Failure { reason: "Evicted".to_owned(), message };
    orders.send(Order::Evict(Eviction { uid: pod.uid().to_owned(), grace: EVICTION_GRACE, failure, disruption })).ok();
}

/// Measures each Pod periodically, and evicts those above their limits.
async fn hold_to_limits(shared: &Arc<Shared>, orders: &mpsc::UnboundedSender<Order>) {
    let mut queue = MeasureQueue::default();
    let mut looks: JoinSet<(String, Outcome)> = JoinSet::new();
    loop {
        let mut pods = orders::active(orders).await;
        pods.retain(|pod| limits::is_limited(pod));
        let now = Instant::now();
        queue.expect(pods.iter().map(|pod| (pod.uid(), pod.namespace())), now);
        let pods: HashMap<&str, &Arc<Pod>> = pods.iter().map(|pod| (pod.uid(), pod)).collect();
        while let Some((uid, gait)) = queue.next(now) {
            // Invariant: only expected Pods get a turn.
            let Some(pod) = pods.get(uid.as_str()) else { continue };
            let (shared, orders, pod) = (shared.clone(), orders.clone(), Arc::clone(pod));
            looks.spawn(async move {
                let outcome = whole(&pod, look(&shared, &orders, &pod, gait)).await;
                (uid, outcome.unwrap_or(Outcome::Done(Duration::ZERO)))
            });
        }
        tokio::select! {
            Some(Ok((uid, outcome))) = looks.join_next() => queue.done(&uid, outcome, Instant::now()),
            () = tokio::time::sleep(GLANCE) => {}
        }
    }
}

/// The result of a measurement; `None`, with an error in the log: it panicked. Its Pod is measured again all the same.
async fn whole<T>(pod: &Pod, look: impl Future<Output = T>) -> Option<T> {
    // A measurement changes no shared state, so nothing is left half done.
    let outcome = AssertUnwindSafe(look).catch_unwind().await;
    outcome.inspect_err(|_| tracing::error!(pod = %pod.full_name(), "measuring a Pod panicked")).ok()
}

/// Measures a Pod. A single measurement never evicts: a file that moves may be counted twice; nor does an incomplete quick one.
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

/// Reads the disks' free space, sets the node's condition, and frees space while too little is free.
async fn keep_free(shared: &Arc<Shared>, orders: &mpsc::UnboundedSender<Order>) {
    let thresholds = &shared.config.eviction_hard;
    let mut low_at: Option<Instant> = None;
    let mut waiting = Waiting::default();
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
            None => waiting.ends(now),
            Some(shortage) => {
                waiting.begins(now);
                if now >= next && !relieve(shared, orders, shortage, &mut waiting, &mut looks).await {
                    // Nothing on this node helps.
                    next = now + PERIOD;
                }
            }
        }
        tokio::time::sleep(GLANCE).await;
    }
}

/// 1. remove what is unneeded, 2. wait for Pods that may still free space, 3. evict one Pod. Returns whether one was evicted, or
///    none was needed.
async fn relieve(
    shared: &Arc<Shared>,
    orders: &mpsc::UnboundedSender<Order>,
    shortage: Shortage,
    waiting: &mut Waiting,
    looks: &mut Looks,
) -> bool {
    let is_due = waiting.reclaimed.is_none_or(|at| Instant::now() >= at + PERIOD);
    let left = if is_due { reclaim(shared, &shortage, waiting).await } else { Some(shortage) };
    let Some(shortage) = left else { return true };
    if shortage.of_pods && waiting.has_reason(shared, orders).await {
        return true;
    }
    // There may be more by now: of Pods that have ended meanwhile.
    let left = if is_due { Some(shortage) } else { reclaim(shared, &shortage, waiting).await };
    let Some(shortage) = left else { return true };
    if !shortage.of_pods {
        return false;
    }
    let evicted = make_room(shared, orders, &shortage, &mut waiting.before, looks).await;
    let now = Instant::now();
    (waiting.since, waiting.evicted) = (Some(now), evicted.map(|uid| (uid, now)));
    waiting.evicted.is_some()
}

/// Removes what is unneeded; returns the remaining shortage.
async fn reclaim(shared: &Shared, shortage: &Shortage, waiting: &mut Waiting) -> Option<Shortage> {
    waiting.reclaimed = Some(Instant::now());
    let message = format!("Attempting to reclaim {}", shortage.resource);
    shared.recorder.warning(node(shared), "EvictionThresholdMet", message);
    let thresholds = &shared.config.eviction_hard;
    shared.executor.reclaim(thresholds).await;
    pressure::shortage(thresholds, &shared.executor.disks().await)
}

/// Pods evicted since the disks became too full, and those that may still free space, so that no other Pod is evicted.
#[derive(Debug, Default)]
struct Waiting {
    /// The last evicted Pod, and when.
    evicted: Option<(String, Instant)>,
    /// All evicted Pods that have not ended: evicting them again does not help.
    before: HashSet<String>,
    /// Since when there has been a shortage without an eviction.
    since: Option<Instant>,
    /// Since when there has been none, if it may return.
    room: Option<Instant>,
    /// When unneeded data was last removed.
    reclaimed: Option<Instant>,
}

impl Waiting {
    /// There is a shortage. Pure.
    fn begins(&mut self, now: Instant) {
        self.room = None;
        self.since.get_or_insert(now);
    }

    /// There is none. Time waited through an intermittent shortage counts. Pure.
    fn ends(&mut self, now: Instant) {
        if now >= *self.room.get_or_insert(now) + GAP {
            *self = Waiting::default();
        }
    }

    async fn has_reason(&self, shared: &Shared, orders: &mpsc::UnboundedSender<Order>) -> bool {
        let leaving = leaving(shared, orders).await;
        let active = orders::active(orders).await.iter().map(|pod| pod.uid().to_owned()).collect();
        self.is_worth(&active, &leaving, Instant::now())
    }

    /// Whether to wait. `active`: Pods that have not ended; `leaving`: those about to go or with files left, evicted before or not.
    /// Pure.
    fn is_worth(&self, active: &HashSet<String>, leaving: &HashSet<String>, now: Instant) -> bool {
        let is_early = self.since.is_none_or(|since| now < since + PERIOD);
        let evicted = self.evicted.as_ref();
        let own =
            evicted.is_some_and(|(uid, at)| now < *at + CLEANUP && (active.contains(uid) || leaving.contains(uid)));
        let is_other = |uid: &String| evicted.is_none_or(|(evicted, _)| evicted != uid);
        own || (is_early && leaving.iter().any(is_other))
    }
}

/// Measurements for node pressure. One that takes too long continues, and its Pod is not measured twice meanwhile.
#[derive(Default)]
struct Looks {
    tasks: JoinSet<(String, u64, Option<Usage>)>,
    busy: HashSet<String>,
    /// The number of the measuring round.
    round: u64,
}

impl Looks {
    /// Measures Pods, by uid, for [`HASTE`]: missing ones are unknown by then. All results are of this round: one begun in an
    /// earlier round is outdated, and its Pod is measured again.
    async fn measure<F>(&mut self, pods: &[Arc<Pod>], look: impl Fn(Arc<Pod>) -> F) -> HashMap<String, Usage>
    where
        F: Future<Output = Option<Usage>> + Send + 'static,
    {
        self.round += 1;
        let (end, round) = (Instant::now() + HASTE, self.round);
        let wanted: HashMap<&str, &Arc<Pod>> = pods.iter().map(|pod| (pod.uid(), pod)).collect();
        let begin = |tasks: &mut JoinSet<_>, pod: &Arc<Pod>| {
            let (pod, look) = (pod.clone(), look(pod.clone()));
            tasks.spawn(async move { (pod.uid().to_owned(), round, whole(&pod, look).await.flatten()) });
        };
        for pod in wanted.values().filter(|pod| self.busy.insert(pod.uid().to_owned())) {
            begin(&mut self.tasks, pod);
        }
        let mut measured = HashMap::new();
        while let Ok(Some(Ok((uid, begun, usage)))) = tokio::time::timeout_at(end, self.tasks.join_next()).await {
            match wanted.get(uid.as_str()) {
                Some(pod) if begun != round => begin(&mut self.tasks, pod),
                _ => {
                    self.busy.remove(&uid);
                    measured.extend(usage.map(|usage| (uid, usage)));
                }
            }
        }
        measured
    }
}

/// Evicts the first Pod by rank; returns its uid. `before`: Pods evicted before; ended ones are dropped from it.
async fn make_room(
    shared: &Arc<Shared>,
    orders: &mpsc::UnboundedSender<Order>,
    shortage: &Shortage,
    before: &mut HashSet<String>,
    looks: &mut Looks,
) -> Option<String> {
    let mut pods = orders::active(orders).await;
    before.retain(|uid| pods.iter().any(|pod| pod.uid() == uid));
    // Upstream's active Pods exclude them, too.
    pods.retain(|pod| !before.contains(pod.uid()));
    let look = |pod: Arc<Pod>| {
        let shared = shared.clone();
        async move { shared.executor.storage(&pod, MOST).await }
    };
    let mut measured = looks.measure(&pods, look).await;
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
    before.insert(pod.uid().to_owned());
    Some(pod.uid().to_owned())
}

/// The Node, as the subject of events.
pub fn node(shared: &Shared) -> ObjectReference {
    node_named(&shared.config.name)
}

pub fn node_named(name: &str) -> ObjectReference {
    let name = Some(name.to_owned());
    ObjectReference { kind: Some("Node".into()), uid: name.clone(), name, ..ObjectReference::default() }
}

#[cfg(test)]
mod tests {
    use podwright_runtime::sys::walk::Measure;

    use super::*;

    /// No Pod is evicted for the space of another one that is about to free it; but Pods that keep coming and going cannot keep a
    /// full disk full.
    #[test]
    fn who_is_about_to_go_is_waited_for_a_while() {
        let set = |uids: &[&str]| uids.iter().map(|uid| (*uid).to_owned()).collect::<HashSet<_>>();
        let (begin, none) = (Instant::now(), set(&[]));
        let at = |seconds| begin + Duration::from_secs(seconds);
        let evicted =
            |since| Waiting { evicted: Some(("a".to_owned(), begin)), since: Some(since), ..Waiting::default() };
        let waiting = evicted(begin);
        assert!(waiting.is_worth(&set(&["a", "b"]), &none, at(1)), "it has not ended");
        assert!(
            waiting.is_worth(&set(&["b"]), &set(&["a"]), at(2)),
            "it was deleted meanwhile, and its files are there"
        );
        assert!(waiting.is_worth(&set(&["b"]), &set(&["a"]), at(29)));
        assert!(!waiting.is_worth(&set(&["a", "b"]), &set(&["a"]), at(30)), "it does not go");
        assert!(!waiting.is_worth(&set(&["b"]), &none, at(1)), "it has given back what it had");
        // One that ends without eviction.
        let mut waiting = Waiting::default();
        waiting.begins(at(0));
        assert!(!waiting.is_worth(&set(&["b"]), &none, at(0)));
        assert!(waiting.is_worth(&set(&["b"]), &set(&["c"]), at(1)));
        assert!(!waiting.is_worth(&set(&["b"]), &set(&["d"]), at(10)), "one after the other");
        let waiting = evicted(at(1));
        assert!(waiting.is_worth(&none, &set(&["c"]), at(1)) && waiting.is_worth(&none, &set(&["c"]), at(10)));
        assert!(!waiting.is_worth(&none, &set(&["c"]), at(11)));
        // An intermittent shortage counts as one.
        let mut waiting = Waiting::default();
        for second in 0..12 {
            if second % 4 == 3 { waiting.ends(at(second)) } else { waiting.begins(at(second)) }
        }
        assert!(!waiting.is_worth(&none, &set(&["c"]), at(12)));
        (12..21).for_each(|second| waiting.ends(at(second)));
        assert!(waiting.since.is_some());
        waiting.ends(at(21));
        assert!(waiting.since.is_none() && waiting.room.is_none());
        waiting.begins(at(23));
        assert!(waiting.is_worth(&none, &set(&["c"]), at(23)), "the next one is another");
    }

    #[test]
    fn who_has_a_long_grace_left_or_is_long_overdue_is_not_about_to_go() {
        let now = 1_000_000;
        let about = |at| is_about_to_go(at, now);
        assert!(about(now) && about(now + 10_000) && about(now - 29_999));
        assert!(!about(now + 10_001) && !about(now - 30_000) && !about(i64::MAX) && !about(i64::MIN));
    }

    /// A Pod may have removed data, or another may have written more, during a measurement.
    #[tokio::test(start_paused = true)]
    async fn pods_are_ranked_by_what_they_have_now() {
        let pod = |uid: &str| {
            let mut pod = Pod::default();
            pod.metadata.uid = Some(uid.to_owned());
            Arc::new(pod)
        };
        let pods = ["late", "later", "quick"].map(pod);
        let mut looks = Looks::default();
        // A measurement describes the state at its start.
        let begun = Instant::now();
        let look = move |pod: Arc<Pod>| async move {
            let found = begun.elapsed().as_secs();
            let takes = match (pod.uid(), found) {
                ("late", 0) => HASTE * 2,
                ("later", 0) => HASTE * 6 + HASTE / 2,
                _ => Duration::ZERO,
            };
            tokio::time::sleep(takes).await;
            let rest = Measure { bytes: found, ..Measure::default() };
            Some(Usage { rest, ..Usage::default() })
        };
        let had = |measured: &HashMap<String, Usage>| {
            let mut had: Vec<_> = measured.iter().map(|(uid, usage)| (uid.clone(), usage.total().bytes)).collect();
            had.sort();
            had
        };
        let is = |uid: &str, bytes: Duration| (uid.to_owned(), bytes.as_secs());
        assert_eq!(had(&looks.measure(&pods, look).await), [is("quick", Duration::ZERO)], "others are not known");
        tokio::time::sleep(HASTE * 4).await;
        let measured = looks.measure(&pods, look).await;
        assert_eq!(had(&measured), ["late", "quick"].map(|uid| is(uid, HASTE * 5)), "one has ended meanwhile");
        let measured = looks.measure(&pods, look).await;
        let all = [is("late", HASTE * 6), is("later", HASTE * 6 + HASTE / 2), is("quick", HASTE * 6)];
        assert_eq!(had(&measured), all, "one ends just now");
        assert!(looks.busy.is_empty());
    }

    #[tokio::test]
    async fn a_look_that_panics_is_none_and_ends_nobody_elses() {
        let pod = Pod::default();
        assert_eq!(whole(&pod, async { 1 }).await, Some(1));
        assert_eq!(whole(&pod, async { panic!("a look") as u8 }).await, None);
    }
}
