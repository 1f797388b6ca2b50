//! All Pods of a node: distributes events from the server and the manifest folder to one worker per Pod; adopts Pods after a
//! restart.

mod grants;

use std::{
    collections::{BTreeMap, HashMap},
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;

use super::{
    Shared,
    admission::{Allocatable, admit, protections::Protections},
    backoff::Backoff,
    counters::table::{PROBES_DURATION, PROBES_TOTAL, PROBES_WAIT},
    events,
    executor::{RecoveredPod, RuntimeEvent},
    machine::Machine,
    objects::Objects,
    orders::Order,
    pod::{
        event::PodEvent,
        intent::{Failure, Intent, Stop},
        observed::{Observed, SandboxState},
        progress::Progress,
    },
    references::References,
    resize::allocation::{Allocation, Allotment},
    restore_status, shutdown,
    spec::PodExt,
    static_pods::{self, Mirrors},
    storage::{self, is_about_to_go},
    undecodable,
    worker::{self, Ended, Handle},
};
use podwright_client::{Delta, Informer, Key, Undecodable};

/// The interval for renewing tokens and retrying failed mirror Pods.
const UPKEEP: Duration = Duration::from_secs(30);

/// The interval for checking whether records, or files of ConfigMaps, Secrets and the like, were changed externally.
const GLANCE: Duration = Duration::from_secs(2);

type Labels = Box<dyn Fn() -> BTreeMap<String, String> + Send + Sync>;

pub struct Pods {
    shared: Arc<Shared>,
    pub(super) allocatable: Allocatable,
    labels: Labels,
    protections: Protections,
    pub(super) workers: HashMap<String, Handle>,
    finished: mpsc::UnboundedSender<Ended>,
    ended: mpsc::UnboundedReceiver<Ended>,
    /// Restart back-off of workers that panicked.
    broken: HashMap<String, Backoff>,
    due: (mpsc::UnboundedSender<String>, mpsc::UnboundedReceiver<String>),
    /// Pods of the server that this agent cannot decode: their uids, and why.
    undecodable: HashMap<Key, (String, String)>,
    mirrors: Mirrors,
    references: References,
}

impl Pods {
    pub fn new(shared: Arc<Shared>, allocatable: Allocatable, labels: Labels, protections: Protections) -> Pods {
        let (finished, ended) = mpsc::unbounded_channel();
        let mirrors = Mirrors::new(shared.client.clone());
        Pods {
            shared,
            allocatable,
            labels,
            protections,
            workers: HashMap::new(),
            finished,
            ended,
            broken: HashMap::new(),
            due: mpsc::unbounded_channel(),
            undecodable: HashMap::new(),
            mirrors,
            references: References::default(),
        }
    }

    /// Runs all Pods, forever. `wanted`: those bound to this node; `registered`: resolves once the server knows the node, and the
    /// node what its Pods need; `machine`: the parts of a real node besides its executor; `manager`: delays the machine's shutdown.
    ///
    /// 1. Tidy the machine, then listen to it.
    /// 2. Start the static Pods that need nothing of the server.
    /// 3. Wait for the first complete list of every source, while events are processed.
    /// 4. Find existing Pods.
    /// 5. Give each Pod its worker.
    /// 6. Remove what belongs to none.
    /// 7. Process events.
    pub async fn run(
        mut self,
        wanted: Informer<Pod>,
        registered: impl Future<Output = ()>,
        machine: Option<(Arc<Objects>, Arc<Machine>)>,
        manager: Option<shutdown::Manager>,
    ) {
        self.shared.executor.tidy().await;
        let mut runtime_events = self.shared.executor.runtime_events();
        let (manifests, name) = (self.shared.config.manifests.as_deref(), &self.shared.config.name);
        let mut folder = manifests.map(|folder| static_pods::watch(folder, name));
        let (orders, mut asked) = mpsc::unbounded_channel();
        if let Some(manager) = manager {
            tokio::spawn(manager.run(self.shared.clone(), orders.clone()));
        }
        let mut statics = match &mut folder {
            Some(folder) => folder.recv().await.unwrap_or_default(),
            None => Vec::new(),
        };
        self.independent(&statics).await;
        let mut listed = pin!(async {
            registered.await;
            wanted.synced().await;
        });
        // `None`: until all are listed.
        let mut deltas = None;
        let mut changes = machine.as_ref().map(|(objects, _)| objects.changes());
        let mut damaged = machine.as_ref().map(|(_, machine)| damaged_files(machine.clone()));
        let mut upkeep = tokio::time::interval(UPKEEP);
        loop {
            self.shared.counters.turned();
            tokio::select! {
                () = &mut listed, if deltas.is_none() => {
                    deltas = Some(wanted.subscribe());
                    self.adopt(&wanted, &statics).await;
                    self.shared.residents.recovered();
                    let living = self.workers.keys().cloned().collect();
                    for error in self.shared.executor.sweep(living).await {
                        tracing::warn!(error, "failed to remove what an earlier Pod left behind");
                    }
                    // Whom to evict is chosen among all.
                    tokio::spawn(storage::run(self.shared.clone(), orders.clone()));
                }
                Some(delta) = next(&mut deltas) => self.delta(delta),
                Some(event) = runtime_events.recv() => self.on_runtime_event(event).await,
                Some(ended) = self.ended.recv() => self.ended(ended),
                Some(order) = asked.recv() => self.ordered(order),
                Some(uid) = self.due.1.recv() => self.replace(&uid).await,
                Some(now) = next(&mut folder) => {
                    statics = now;
                    match deltas.is_some() {
                        true => self.statics(statics.clone()),
                        false => self.independent(&statics).await,
                    }
                }
                Some(uid) = next(&mut damaged) => {
                    tracing::warn!(uid, "rewriting a Pod's volume files that were changed by something else");
                    self.tell(&uid, PodEvent::Resync);
                }
                Some(changed) = next(&mut changes) => self.resync(&self.references.to(&changed)),
                _ = upkeep.tick() => {
                    if deltas.is_some() {
                        self.mirrors.retry();
                    }
                    self.grant_pending();
                    if let Some((_, machine)) = &machine {
                        self.resync(&machine.volumes.stale_tokens());
                    }
                }
            }
        }
    }

    /// Before anything is heard from the server: gives static Pods on the node's network their workers, as the server itself may be
    /// one of them, and ends those whose manifest is gone. Pods with a network of their own wait: their policies are unknown. So do
    /// those that are not admitted: the server may know labels of the node that the node does not.
    async fn independent(&mut self, statics: &[Arc<Pod>]) {
        let gone: Vec<String> =
            self.workers.keys().filter(|uid| !statics.iter().any(|pod| pod.uid() == *uid)).cloned().collect();
        gone.iter().for_each(|uid| self.tell(uid, PodEvent::Gone));
        for pod in statics {
            if self.workers.contains_key(pod.uid()) {
                continue;
            }
            if !pod.host_network() {
                tracing::info!(pod = %pod.full_name(), "a static Pod waits for the server, which knows its policies");
                continue;
            }
            match self.shared.executor.find_one(pod.uid()).await {
                Some(RecoveredPod { pod: admitted, mut seen, progress }) => {
                    restore_status::carry_over(pod, &mut seen);
                    self.spawn(pod.clone(), (Intent::Run, seen, progress), Allocation::of(&admitted));
                }
                None if self.admits(pod, &Allocation::recalled(pod)).is_ok() => self.begin(pod.clone()),
                None => {}
            }
        }
    }

    /// Starts workers for found Pods and for desired ones; a found Pod that is not desired any more gets a worker that ends it.
    async fn adopt(&mut self, wanted: &Informer<Pod>, statics: &[Arc<Pod>]) {
        let mut found: HashMap<String, RecoveredPod> =
            self.shared.executor.find().await.into_iter().map(|f| (f.pod.uid().to_owned(), f)).collect();
        found.retain(|uid, _| !self.workers.contains_key(uid));
        let mut pods: Vec<Arc<Pod>> = wanted.list().into_iter().filter(|p| !p.is_mirror()).collect();
        pods.sort_by(|a, b| a.metadata.creation_timestamp.cmp(&b.metadata.creation_timestamp));
        for pod in pods.iter().chain(statics) {
            if let Some(RecoveredPod { pod: admitted, mut seen, progress }) = found.remove(pod.uid()) {
                restore_status::carry_over(pod, &mut seen);
                self.spawn(pod.clone(), (Intent::Run, seen, progress), Allocation::of(&admitted));
            }
        }
        for object in wanted.undecodable() {
            // It is not deleted: it goes on as it was admitted.
            if let Some(RecoveredPod { pod, mut seen, progress }) = found.remove(&object.uid) {
                let allocated = Allocation::of(&pod);
                let pod = undecodable::overlay(&pod, &object.object);
                restore_status::carry_over(&pod, &mut seen);
                self.spawn(Arc::new(pod), (Intent::Run, seen, progress), allocated);
            }
        }
        for (_, RecoveredPod { pod, seen, progress }) in found {
            let uid = pod.uid().to_owned();
            tracing::info!(pod = %pod.full_name(), "a Pod was deleted while the agent was down");
            let allocated = Allocation::of(&pod);
            self.spawn(Arc::new(pod), (Intent::Run, seen, progress), allocated);
            self.tell(&uid, PodEvent::Gone);
        }
        wanted.list().iter().filter(|pod| pod.is_mirror()).for_each(|mirror| self.mirrors.found(mirror));
        self.statics(statics.to_vec());
        for pod in wanted.list() {
            self.changed(pod);
        }
    }

    fn spawn(&mut self, pod: Arc<Pod>, from: (Intent, Observed, Progress), allocated: Allocation) {
        let uid = pod.uid().to_owned();
        let allotment = Allotment::new(&pod, allocated);
        self.shared.residents.put(pod.clone());
        self.references.put(&pod);
        let handle = worker::spawn(self.shared.clone(), pod, from, allotment, self.finished.clone());
        self.workers.insert(uid, handle);
    }

    fn tell(&mut self, uid: &str, event: PodEvent) {
        if let Some(worker) = self.workers.get_mut(uid) {
            worker.gone |= matches!(event, PodEvent::Gone);
            // A worker that has just ended will be removed with its last message.
            worker.inbox.send(event).ok();
        }
    }

    /// A worker has ended: its Pod is done; or it panicked, and is replaced after a back-off.
    fn ended(&mut self, Ended { uid, panic }: Ended) {
        let worker = self.workers.get(&uid);
        let (Some(worker), Some(panic)) = (worker, panic) else {
            if let Some(worker) = self.workers.remove(&uid) {
                self.forget(&worker.pod);
            }
            self.shared.residents.remove(&uid);
            self.references.remove(&uid);
            self.broken.remove(&uid);
            self.grant_pending();
            return;
        };
        let (now, backoff) = (self.shared.env.now(), self.broken.entry(uid.clone()).or_default());
        backoff.raise(now, now);
        let delay = backoff.delay();
        tracing::error!(pod = %worker.pod.full_name(), panic, ?delay, "the Pod worker panicked");
        let again = events::duration(delay);
        let message = format!("error syncing pod, will be tried again in {again}: its worker panicked: {panic}");
        self.shared.recorder.warning(worker.pod.about(None), "FailedSync", message);
        let due = self.due.0.clone();
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            due.send(uid).ok();
        });
    }

    /// Drops the counters of a Pod's probes. Another Pod of the same name may exist by now.
    fn forget(&self, pod: &Pod) {
        let namesake = |other: &Handle| other.pod.name() == pod.name() && other.pod.namespace() == pod.namespace();
        let last = !self.workers.values().any(namesake);
        // The uid is the last label: see the table.
        self.shared.counters.forget(&[&PROBES_TOTAL], |labels| labels.last().is_some_and(|uid| uid == pod.uid()));
        self.shared.counters.forget(&[&PROBES_DURATION, &PROBES_WAIT], |labels| {
            last && labels.ends_with(&[pod.name().to_owned(), pod.namespace().to_owned()])
        });
    }

    /// Starts a new worker for a Pod whose worker panicked, from what is found on the machine.
    async fn replace(&mut self, uid: &str) {
        let Some(Handle { pod, gone, allotment, .. }) = self.workers.remove(uid) else { return };
        match self.shared.executor.find_one(uid).await {
            Some(RecoveredPod { mut seen, progress, .. }) => {
                restore_status::carry_over(&pod, &mut seen);
                self.spawn(pod.clone(), (Intent::Run, seen, progress), allotment.allocated);
            }
            None => self.begin(pod.clone()),
        }
        self.show(&pod);
        if gone {
            self.tell(uid, PodEvent::Gone);
        }
    }

    fn delta(&mut self, delta: Delta<Pod>) {
        let replaced =
            delta.old.filter(|old| delta.new.as_ref().is_none_or(|new| new.metadata.uid != old.metadata.uid));
        if let Some(old) = replaced {
            match old.is_mirror() {
                true => {
                    self.shared.residents.shows_no_more(old.uid());
                    self.mirrors.gone(&old);
                }
                false => {
                    self.tell(old.uid(), PodEvent::Gone);
                    if old.is_false_mirror() {
                        self.mirrors.gone(&old);
                    }
                }
            }
        }
        if let Some(object) = &delta.undecodable {
            return self.undecodable(object);
        }
        if let Some((uid, _)) = self.undecodable.remove(&delta.key)
            && delta.new.as_ref().is_none_or(|new| new.uid() != uid)
        {
            self.tell(&uid, PodEvent::Gone);
        }
        if let Some(new) = delta.new {
            self.changed(new);
        }
    }

    /// A Pod of the server that this agent cannot decode. It exists, so its running parts go on as last read; a Pod that does not
    /// run yet waits until it can be decoded.
    fn undecodable(&mut self, object: &Undecodable) {
        let worker = self.workers.get(&object.uid);
        let pod = undecodable::overlay(&worker.map_or_else(Default::default, |w| (*w.pod).clone()), &object.object);
        if pod.is_mirror() {
            return;
        }
        let known = (object.uid.clone(), object.why.clone());
        if self.undecodable.insert(object.key.clone(), known.clone()).as_ref() != Some(&known) {
            let so = if worker.is_some() { "goes on as it is" } else { "is not started" };
            let why = format!("This node cannot read the Pod, which therefore {so}: {}", object.why);
            tracing::error!(pod = %pod.full_name(), "{why}");
            self.shared.recorder.warning(pod.about(None), "FailedDecode", why);
        }
        if worker.is_some() {
            // The decodable rest applies: that it is being deleted, for example.
            self.changed(Arc::new(pod));
        }
    }

    /// A Pod of the server has changed.
    fn changed(&mut self, pod: Arc<Pod>) {
        if pod.is_mirror() {
            if let Some(uid) = self.mirrors.seen(&pod) {
                self.shown_by(&uid, pod);
            }
            return;
        }
        if pod.is_false_mirror() && self.mirrors.stands_in_the_way(&pod) && !self.workers.contains_key(pod.uid()) {
            return;
        }
        if !self.workers.contains_key(pod.uid()) {
            return self.begin(pod);
        }
        let (uid, over) = (pod.uid().to_owned(), pod.is_terminal());
        if let Some(worker) = self.workers.get_mut(&uid) {
            self.shared.residents.put(pod.clone());
            if worker.pod.spec != pod.spec {
                self.references.put(&pod);
            }
            worker.pod = pod;
        }
        // Released resources may make room for others.
        if self.grant(&uid) || over {
            self.grant_pending();
        }
    }

    /// Starts a Pod of which nothing exists on this node yet.
    fn begin(&mut self, pod: Arc<Pod>) {
        let mut intent = Intent::Run;
        let (seen, progress) = restore_status::recall(&pod, self.shared.env.now());
        let fresh = pod.metadata.deletion_timestamp.is_none() && !pod.is_terminal();
        let allocated = Allocation::recalled(&pod);
        if fresh && let Err(failure) = self.admits(&pod, &allocated) {
            self.shared.recorder.warning(pod.about(None), &failure.reason, failure.message.clone());
            let deadline = self.shared.env.now();
            let failure = Some(failure);
            intent = Intent::Stop(Stop { deadline, grace: 0, failure, remove: false, disruption: false });
        }
        let (uid, granted) = (pod.uid().to_owned(), allocated.satisfies(&pod));
        self.spawn(pod, (intent, seen, progress), allocated);
        if !granted {
            self.grant(&uid);
        }
    }

    /// Whether a Pod may start here.
    fn admits(&self, pod: &Arc<Pod>, allocated: &Allocation) -> Result<(), Failure> {
        let others = self.others(pod.uid());
        let admitted = allocated.overlay(pod.clone());
        let labels = (self.labels)();
        shutdown::admit(*self.shared.shutting_down.borrow())?;
        storage::pressure::admit(&admitted, *self.shared.pressure.borrow())?;
        admit(&admitted, &others, &self.allocatable, &labels, &self.protections)
    }

    /// The current Pods of the manifest folder.
    fn statics(&mut self, pods: Vec<Arc<Pod>>) {
        for gone in self.mirrors.replace(&pods) {
            self.tell(&gone, PodEvent::Gone);
        }
        for pod in pods {
            if !self.workers.contains_key(pod.uid()) {
                self.begin(pod.clone());
            }
            self.show(&pod);
        }
    }

    /// Connects a static Pod with its mirror Pod, if there is one.
    fn show(&mut self, pod: &Pod) {
        if let Some(mirror) = self.mirrors.of(pod) {
            self.shown_by(pod.uid(), mirror);
        }
    }

    fn shown_by(&mut self, uid: &str, mirror: Arc<Pod>) {
        self.shared.residents.shows(mirror.uid(), uid);
        self.tell(uid, PodEvent::Mirror(mirror));
    }

    /// Handles orders of the managers of the whole node.
    fn ordered(&mut self, order: Order) {
        match order {
            Order::Active(answer) => {
                let active = self.workers.values().filter(|worker| !worker.over.load(Ordering::Relaxed));
                answer.send(active.map(|worker| worker.pod.clone()).collect()).ok();
            }
            Order::Leaving(answer) => {
                let now = self.shared.env.now().as_millisecond();
                let is_leaving = |worker: &Handle| is_about_to_go(worker.leaves.load(Ordering::Relaxed), now);
                let leaving = self.workers.iter().filter(|(_, worker)| is_leaving(worker));
                answer.send(leaving.map(|(uid, _)| uid.clone()).collect()).ok();
            }
            Order::Unreported(answer) => {
                let unreported = self.workers.values().filter(|worker| !worker.reported.load(Ordering::Relaxed));
                answer.send(unreported.count()).ok();
            }
            Order::Evict(eviction) => {
                let uid = eviction.uid.clone();
                self.tell(&uid, PodEvent::Evict(eviction));
            }
        }
    }

    async fn on_runtime_event(&mut self, event: RuntimeEvent) {
        match event {
            RuntimeEvent::Exited { uid, container, id, exit } => {
                self.tell(&uid, PodEvent::Exited { container, id, exit })
            }
            RuntimeEvent::SandboxGone { uid, attempt } => self.tell(&uid, PodEvent::SandboxGone { attempt }),
            RuntimeEvent::Damage { reason, message } => {
                tracing::warn!("{message}");
                self.shared.recorder.warning(storage::node(&self.shared), reason, message);
            }
            RuntimeEvent::Lagged => {
                for RecoveredPod { pod, seen, .. } in self.shared.executor.find().await {
                    self.catch_up(&pod, &seen);
                }
            }
        }
    }

    /// Sends a worker all exits known so far.
    fn catch_up(&mut self, pod: &Pod, seen: &Observed) {
        for (name, container) in &seen.containers {
            let Some(attempt) = &container.attempt else { continue };
            if let Some(exit) = attempt.exit.clone() {
                let (container, id) = (name.clone(), attempt.id.clone());
                self.tell(pod.uid(), PodEvent::Exited { container, id, exit });
            }
        }
        if seen.sandbox.state == SandboxState::Stopped {
            self.tell(pod.uid(), PodEvent::SandboxGone { attempt: seen.sandbox.attempt });
        }
    }

    fn resync<'a>(&self, concerned: impl IntoIterator<Item = &'a (impl AsRef<str> + 'a)>) {
        for worker in concerned.into_iter().filter_map(|uid| self.workers.get(uid.as_ref())) {
            worker.inbox.send(PodEvent::Resync).ok();
        }
    }
}

/// The next item of an optional source; never returns if it is missing or has ended.
async fn next<T>(source: &mut Option<mpsc::UnboundedReceiver<T>>) -> Option<T> {
    match source {
        Some(receiver) => match receiver.recv().await {
            Some(item) => Some(item),
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// Checks for Pods whose volumes were changed externally, until the receiver is dropped; sends their uids. Also rewrites the
/// runtime's records, at a rate of their own.
fn damaged_files(machine: Arc<Machine>) -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let (looked_at, listened_to) = (machine.clone(), sender.clone());
    tokio::spawn(async move {
        while !sender.is_closed() {
            tokio::time::sleep(GLANCE).await;
            machine.volumes.damaged().await.into_iter().for_each(|uid| drop(sender.send(uid)));
        }
    });
    tokio::spawn(async move {
        while !listened_to.is_closed() {
            tokio::time::sleep(GLANCE).await;
            for record in looked_at.runtime.mend_records().await {
                tracing::warn!(path = %record.display(), "rewriting a record that was damaged by something else");
            }
        }
    });
    receiver
}
