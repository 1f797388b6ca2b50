//! One worker per Pod: it takes events, plans, acts, and tells the server; the newest wish wins.

mod containers;
mod events;
mod resize;
mod results;

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use tokio::{sync::mpsc, task::AbortHandle, time::Instant};
use tokio_util::task::TaskTracker;

use super::{
    Shared,
    backoff::Backoff,
    counters::table::{POD_START, POD_START_SLI, POD_WORKER},
    executor::{ActionError, Pulled, Resized, Started},
    plan::{self, Action},
    pod_state::{Busy, Exit, Failure, Intent, PodState, SandboxState, Step, Stop},
    probes::{self, Kind, Probes},
    publish::{Publisher, Standing},
    resize::{Allocation, Allotment, carried_over},
    spans::{StartTrace, trouble},
    spec::PodExt,
    startup::Startup,
    storage::Eviction,
};

pub use containers::attempt;

/// What happens to a Pod, as its worker receives it.
#[derive(Debug)]
pub enum PodEvent {
    /// The Pod as it is wanted now, and what of its resources it may have.
    Wanted(Arc<Pod>, Allotment),
    /// Its source does not know the Pod any more.
    Gone,
    /// The object by which the server shows a static Pod.
    Mirror(Arc<Pod>),
    Exited {
        container: String,
        id: String,
        exit: Exit,
    },
    SandboxGone {
        attempt: u32,
    },
    /// A ConfigMap, Secret or anything else that the Pod may wait for has changed.
    Resync,
    Evict(Eviction),
    Probe {
        container: String,
        id: String,
        kind: Kind,
        verdict: probes::Verdict,
    },
    Done(ActionResult),
    /// What the worker had begun has panicked: what is known of the Pod can no longer be trusted.
    Broken(String),
}

/// An action has come to its end.
#[derive(Debug)]
pub enum ActionResult {
    Volumes(Result<(), ActionError>),
    VolumesReleased(Result<(), String>),
    Sandbox(Result<Vec<std::net::IpAddr>, ActionError>),
    SandboxStopped(Result<(), String>),
    SandboxRemoved(Result<(), String>),
    Pulling {
        container: String,
    },
    Pulled {
        container: String,
        /// What was asked for; the manifest may name another one by now.
        image: String,
        result: Result<Pulled, ActionError>,
    },
    Started {
        container: String,
        restart: u32,
        resources: Option<ResourceRequirements>,
        result: Result<Started, ActionError>,
    },
    Resized(Resized),
    /// The postStart hook has returned, or there was none.
    PostStart {
        container: String,
        id: String,
        result: Result<(), String>,
    },
    Stopped {
        container: String,
        id: String,
        result: Result<Option<Exit>, String>,
    },
    /// Whether a container is started anew.
    Noted,
    Removed(Result<(), String>),
    Written(Box<Result<Pod, podwright_api::Status>>),
    Deleted(Result<(), podwright_api::Status>),
}

/// A running worker, or one that will be replaced soon because it panicked.
pub struct Handle {
    pub inbox: mpsc::UnboundedSender<PodEvent>,
    /// The Pod as last told: with all that it wishes.
    pub pod: Arc<Pod>,
    pub allotment: Allotment,
    /// Nothing of the Pod runs any more, and its volumes are released.
    pub over: Arc<AtomicBool>,
    /// When it is to be gone, in milliseconds of the epoch: [`STAYS`] unless it is to go, and once it is gone.
    pub leaves: Arc<AtomicI64>,
    /// It was told that the Pod's source does not know it any more.
    pub gone: bool,
}

/// No time at which a Pod goes.
const STAYS: i64 = i64::MAX;

fn leaves(seen: &PodState) -> i64 {
    match &seen.intent {
        Intent::Stop(stop) if stop.remove && seen.removal != Step::Done => stop.deadline.as_millisecond(),
        _ => STAYS,
    }
}

/// A worker's last word.
#[derive(Debug)]
pub struct Ended {
    pub uid: String,
    /// What it panicked with, or something that it had begun: then its Pod still needs a worker.
    pub panic: Option<String>,
}

/// How long what a broken worker had begun may take to end before another worker takes over.
const SETTLE: Duration = Duration::from_secs(10);

pub struct Worker {
    pub(super) shared: Arc<Shared>,
    /// With the resources that are allocated to it.
    pub(super) pod: Arc<Pod>,
    /// With those that it wishes.
    wish: Arc<Pod>,
    allocated: Allocation,
    pub(super) seen: PodState,
    pub(super) me: mpsc::UnboundedSender<PodEvent>,
    inbox: mpsc::UnboundedReceiver<PodEvent>,
    pulls: HashMap<String, AbortHandle>,
    /// Stops in flight: told here when their grace is shortened.
    stops: HashMap<String, tokio::sync::watch::Sender<Timestamp>>,
    probes: Probes,
    publisher: Publisher,
    /// The Pod's start, for as long as it takes.
    trace: StartTrace,
    /// Backed off after a failed pull: counted per image name.
    pull_backoff: HashMap<String, (Backoff, Timestamp)>,
    startup: Startup,
    /// Ends of attempts whose start has not been told yet, by their id.
    early: HashMap<String, Exit>,
    /// What has been begun and has not come to its end.
    tasks: TaskTracker,
    broken: Option<String>,
    over: Arc<AtomicBool>,
    leaves: Arc<AtomicI64>,
    /// The Pod is no longer known to its source.
    gone: bool,
    warned: bool,
    refreshing: bool,
    refresh_again: bool,
}

/// Starts the worker of `pod`. `finished` is told when it ends.
pub fn spawn(
    shared: Arc<Shared>,
    wish: Arc<Pod>,
    mut seen: PodState,
    allotment: Allotment,
    finished: mpsc::UnboundedSender<Ended>,
) -> Handle {
    let (me, inbox) = mpsc::unbounded_channel();
    let (over, leaves) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(STAYS)));
    let (pod, allotted) = (wish.clone(), allotment.clone());
    let handle =
        Handle { inbox: me.clone(), pod, allotment: allotted, over: over.clone(), leaves: leaves.clone(), gone: false };
    let pod = allotment.allocated.overlay(wish.clone());
    seen.resize = carried_over(&pod, &allotment, &seen);
    let allocated = allotment.allocated;
    let uid = pod.uid().to_owned();
    let (publisher, startup) = (Publisher::new(&pod), Startup::new(&pod, &seen, shared.env.now()));
    let worker = Worker {
        shared,
        pod,
        wish,
        allocated,
        seen,
        me,
        inbox,
        pulls: HashMap::new(),
        stops: HashMap::new(),
        probes: Probes::default(),
        publisher,
        trace: StartTrace::default(),
        pull_backoff: HashMap::new(),
        startup,
        early: HashMap::new(),
        tasks: TaskTracker::new(),
        broken: None,
        over,
        leaves,
        gone: false,
        warned: false,
        refreshing: false,
        refresh_again: false,
    };
    let tasks = worker.tasks.clone();
    tokio::spawn(async move {
        let panic = caught(worker.run()).await.flatten().err();
        if panic.is_some() {
            tasks.close();
            tokio::time::timeout(SETTLE, tasks.wait()).await.ok();
        }
        finished.send(Ended { uid, panic }).ok();
    });
    handle
}

/// What `work` gives, or what it panicked with.
pub async fn caught<T>(work: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| match panic.downcast::<String>() {
        Ok(words) => *words,
        Err(panic) => {
            panic.downcast_ref::<&str>().map_or("a panic without words".to_owned(), |words| (*words).to_owned())
        }
    })
}

impl Worker {
    /// Errors: what something that it had begun panicked with.
    async fn run(mut self) -> Result<(), String> {
        self.begin();
        let mut turn = "create";
        loop {
            let begin = Instant::now();
            let wake = self.step();
            self.shared.counters.observe(&POD_WORKER, &[std::mem::replace(&mut turn, "sync")], begin.elapsed());
            if self.is_over() {
                return Ok(());
            }
            let pause = match wake {
                Some(at) => Duration::try_from(at.duration_since(self.now())).unwrap_or(Duration::ZERO),
                // Nothing but an event can change anything.
                None => Duration::from_secs(3600),
            };
            tokio::select! {
                event = self.inbox.recv() => match event {
                    Some(event) => self.note(event),
                    None => return Ok(()),
                },
                () = tokio::time::sleep(pause) => {}
                () = self.shared.stop.cancelled() => return Ok(()),
            }
            while let Ok(event) = self.inbox.try_recv() {
                self.note(event);
            }
            if let Some(why) = self.broken.take() {
                return Err(why);
            }
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.shared.env.now()
    }

    fn begin(&mut self) {
        self.seen.start_time.get_or_insert(self.shared.env.now());
        if let Some(start) = self.pod.status.as_ref().and_then(|s| s.start_time.as_ref()) {
            self.seen.start_time = Some(start.0);
        }
        self.apply_deletion();
        self.warn();
        if self.seen.sandbox.state == SandboxState::None && matches!(self.seen.intent, Intent::Run) {
            self.trace = StartTrace::begin(&self.shared.client, &self.pod);
        }
        for part in self.pod.clone().parts() {
            if self.seen.container(part.name()).is_running() {
                self.probe(part.name());
            }
        }
    }

    /// Plans and acts until nothing more can be done at once; when to look again.
    fn step(&mut self) -> Option<Timestamp> {
        // Each round changes what is known; a plan that never comes to rest would be a fault of ours.
        for _ in 0..100 {
            let now = self.now();
            let plan = plan::plan(&self.pod, &self.seen, now);
            if plan.actions.is_empty() {
                self.look_at_trace();
                let over = plan::ended(&self.pod.parts(), &self.seen) && self.seen.volumes == Step::Undone;
                self.over.store(over, Ordering::Relaxed);
                self.leaves.store(leaves(&self.seen), Ordering::Relaxed);
                self.publish(now);
                return plan.wake.into_iter().chain(self.publisher.held_until()).min();
            }
            for action in plan.actions {
                tracing::debug!(pod = %self.pod.full_name(), ?action, "act");
                self.act(action, now);
            }
        }
        tracing::error!(pod = %self.pod.full_name(), "the plan of a Pod does not converge");
        Some(plan::after(self.now(), 1))
    }

    /// The start is over when all containers have been started, or the Pod shall end.
    fn look_at_trace(&mut self) {
        let all = || self.pod.parts().iter().all(|part| self.seen.container(part.name()).attempt.is_some());
        if self.trace.is_told() && (!matches!(self.seen.intent, Intent::Run) || all()) {
            self.trace = StartTrace::default();
        }
    }

    fn is_over(&self) -> bool {
        self.seen.removal == Step::Done && (self.publisher.is_deleted() || self.gone)
    }

    /// Takes the newest wish: deletion begins, or its grace is shortened.
    fn apply_deletion(&mut self) {
        let deleted = self.pod.metadata.deletion_timestamp.is_some() || self.gone;
        let now = self.now();
        match &mut self.seen.intent {
            Intent::Run if deleted => {
                let grace = self.pod.grace();
                self.end(Stop { deadline: plan::after(now, grace), grace, failure: None, remove: true });
            }
            Intent::Run if self.pod.is_terminal() => {
                self.end(Stop { deadline: now, grace: 0, failure: None, remove: false });
            }
            Intent::Stop(stop) if deleted => {
                let asked = plan::after(now, self.pod.grace());
                if !stop.remove || asked < stop.deadline {
                    stop.deadline = stop.deadline.min(asked);
                }
                stop.remove = true;
            }
            _ => {}
        }
    }

    pub(super) fn end(&mut self, stop: Stop) {
        self.seen.intent = Intent::Stop(stop);
        self.probes.keep_readiness_only();
        for (container, pull) in self.pulls.drain() {
            pull.abort();
            self.seen.container_mut(&container).busy = Busy::Idle;
        }
    }

    /// One Warning for all that the Pod asks and this node does not do.
    fn warn(&mut self) {
        if std::mem::replace(&mut self.warned, true) || !matches!(self.seen.intent, Intent::Run) {
            return;
        }
        let fields = super::unsupported::fields(&self.pod);
        let known = self.seen.sandbox.state != SandboxState::None;
        if known {
            return;
        }
        if !fields.is_empty() {
            let message = format!("Fields that this node does not act upon: {}", fields.join(", "));
            self.warning(None, "UnsupportedFields", message);
        }
        for shortcoming in self.shared.executor.shortcomings(&self.pod) {
            self.warning(None, "LimitsNotEnforced", shortcoming);
        }
    }

    pub(super) fn normal(&self, container: Option<&str>, reason: &str, message: impl Into<String>) {
        self.shared.recorder.normal(self.pod.about(container), reason, message);
    }
    pub(super) fn warning(&self, container: Option<&str>, reason: &str, message: impl Into<String>) {
        self.shared.recorder.warning(self.pod.about(container), reason, message);
    }

    /// Runs `work` beside the worker and takes its end as an event.
    pub(super) fn spawn(&self, work: impl Future<Output = ActionResult> + Send + 'static) -> AbortHandle {
        let me = self.me.clone();
        let task =
            self.tasks.spawn(async move { me.send(caught(work).await.map_or_else(PodEvent::Broken, PodEvent::Done)) });
        task.abort_handle()
    }

    fn publish(&mut self, now: Timestamp) {
        let status = super::status::status(&self.pod, &self.seen, &self.shared.host, now);
        if let Some(took) = self.startup.look(&self.pod, &status, &self.seen, now) {
            self.shared.counters.observe(&POD_START, &[], took.from_sight);
            self.shared.counters.observe(&POD_START_SLI, &[], took.own);
        }
        let standing = Standing { removed: self.seen.removal == Step::Done, gone: self.gone, now };
        let (client, pod) = (self.shared.client.clone(), self.pod.clone());
        if let Some(work) = self.publisher.next(client, &pod, status, standing) {
            self.spawn(work);
        }
    }

    fn act(&mut self, action: Action, now: Timestamp) {
        let (shared, pod) = (self.shared.clone(), self.pod.clone());
        let attempt = self.seen.sandbox.attempt;
        match action {
            Action::PrepareVolumes => {
                self.tries(|seen| &mut seen.volumes);
                let trace = self.trace.clone();
                self.spawn(async move {
                    let work = shared.executor.prepare_volumes(&pod);
                    ActionResult::Volumes(trace.step("Prepare volumes", None, work, trouble).await)
                });
            }
            Action::ReleaseVolumes => {
                self.seen.volumes = Step::Doing;
                self.spawn(async move { ActionResult::VolumesReleased(shared.executor.release_volumes(&pod).await) });
            }
            Action::StartSandbox => {
                self.seen.sandbox.state = SandboxState::Starting;
                let seen = self.seen.clone();
                let trace = self.trace.clone();
                self.spawn(async move {
                    let work = shared.executor.start_sandbox(&pod, attempt, &seen);
                    ActionResult::Sandbox(trace.step("Start sandbox", None, work, trouble).await)
                });
            }
            Action::RenewSandbox => {
                self.normal(None, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.");
                self.seen.sandbox.state = SandboxState::Stopping;
                self.spawn(
                    async move { ActionResult::SandboxRemoved(shared.executor.remove_sandbox(&pod, attempt).await) },
                );
            }
            Action::StopSandbox => {
                self.seen.sandbox.state = SandboxState::Stopping;
                self.spawn(
                    async move { ActionResult::SandboxStopped(shared.executor.stop_sandbox(&pod, attempt).await) },
                );
            }
            Action::Resize(containers) => self.resize(&containers),
            Action::Resized => self.resize_completed(),
            Action::Pull(container) => self.pull(container),
            Action::Start(container) => self.start(container, now),
            Action::Stop(order) => self.stop(order),
            Action::Keep(container) => self.keep(&container),
            Action::BackOff { container, message } => {
                let words = format!("Back-off restarting failed container {container} in pod {}", pod.full_name());
                self.warning(Some(&container), "BackOff", words);
                let reason = "CrashLoopBackOff".to_owned();
                self.seen.container_mut(&container).waiting = Some(Failure { reason, message });
            }
            Action::Fail(failure) => {
                self.normal(None, &failure.reason, failure.message.clone());
                let grace = pod.grace();
                let deadline = plan::after(now, grace);
                self.end(Stop { deadline, grace, failure: Some(failure), remove: false });
            }
            Action::Finish => {
                let grace = pod.grace();
                self.end(Stop { deadline: plan::after(now, grace), grace, failure: None, remove: false });
            }
            Action::Remove => {
                self.seen.removal = Step::Doing;
                self.spawn(async move { ActionResult::Removed(shared.executor.remove(&pod, attempt).await) });
            }
        }
    }

    /// Marks a step as begun; how often it was tried is kept for its back-off.
    fn tries(&mut self, step: impl Fn(&mut PodState) -> &mut Step) {
        let step = step(&mut self.seen);
        self.publisher.volume_tries = step.failures();
        *step = Step::Doing;
    }
}
