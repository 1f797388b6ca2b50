//! One worker per Pod: feeds events to `pod::next` and executes the effects, without decisions of its own.

mod clock;
mod work;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
    time::Instant,
};
use tokio_util::task::TaskTracker;

use clock::Clock;

use super::{
    Shared,
    counters::table::{POD_START, POD_START_SLI, POD_WORKER},
    panics::caught,
    pod::{
        self,
        effect::{Effect, ProbeChange, Record, Work},
        event::{ActionResult, PodEvent},
        intent::Intent,
        observed::Observed,
        progress::Progress,
        state::PodState,
    },
    probes::{Probes, Target},
    resize::allocation::Allotment,
    spans::StartTrace,
    spec::PodExt,
};

/// A running worker, or one that panicked and will be replaced soon.
pub struct Handle {
    pub inbox: mpsc::UnboundedSender<PodEvent>,
    /// The Pod as last sent: with its requested resources.
    pub pod: Arc<Pod>,
    pub allotment: Allotment,
    /// Nothing of the Pod runs any more, and its volumes are released.
    pub over: Arc<AtomicBool>,
    /// The server has its latest status, as far as it can be written.
    pub reported: Arc<AtomicBool>,
    /// When it should be gone, in milliseconds since the epoch: [`STAYS`] unless it is ending, and once it is gone.
    pub leaves: Arc<AtomicI64>,
    /// It was notified that the Pod is gone from its source.
    pub gone: bool,
}

/// No deadline.
const STAYS: i64 = i64::MAX;

/// A worker's final message.
#[derive(Debug)]
pub struct Ended {
    pub uid: String,
    /// The message of its panic, or of one in an operation it started: its Pod still needs a worker.
    pub panic: Option<String>,
}

/// How long operations of a broken worker may take to end before another worker takes over.
const SETTLE: Duration = Duration::from_secs(10);

/// Executes a Pod's effects.
struct Worker {
    shared: Arc<Shared>,
    me: mpsc::UnboundedSender<PodEvent>,
    /// Pulls in progress, by container.
    pulls: HashMap<String, AbortHandle>,
    /// Stops in progress: notified when their grace is shortened.
    stops: HashMap<String, watch::Sender<Timestamp>>,
    probes: Probes,
    /// The trace of the Pod's startup.
    trace: StartTrace,
    /// Operations in progress.
    tasks: TaskTracker,
    /// When to sync without an event.
    wake: Option<Timestamp>,
    clock: Clock,
    over: Arc<AtomicBool>,
    reported: Arc<AtomicBool>,
    leaves: Arc<AtomicI64>,
}

/// Starts the worker of `pod` from this state. `finished` is notified when it ends.
pub fn spawn(
    shared: Arc<Shared>,
    pod: Arc<Pod>,
    (intent, seen, progress): (Intent, Observed, Progress),
    allotment: Allotment,
    finished: mpsc::UnboundedSender<Ended>,
) -> Handle {
    let (me, inbox) = mpsc::unbounded_channel();
    let (over, reported) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let leaves = Arc::new(AtomicI64::new(STAYS));
    let uid = pod.uid().to_owned();
    let now = shared.env.now();
    let state = PodState::new(pod.clone(), &allotment, (intent, seen, progress), shared.host.clone(), now);
    let handle = Handle {
        inbox: me.clone(),
        pod,
        allotment,
        over: over.clone(),
        reported: reported.clone(),
        leaves: leaves.clone(),
        gone: false,
    };
    let worker = Worker {
        shared,
        me,
        pulls: HashMap::new(),
        stops: HashMap::new(),
        probes: Probes::default(),
        trace: StartTrace::default(),
        tasks: TaskTracker::new(),
        wake: None,
        clock: Clock::new(now),
        over,
        reported,
        leaves,
    };
    let tasks = worker.tasks.clone();
    tokio::spawn(async move {
        let panic = caught(worker.run(state, inbox)).await.flatten().err();
        if panic.is_some() {
            tasks.close();
            tokio::time::timeout(SETTLE, tasks.wait()).await.ok();
        }
        finished.send(Ended { uid, panic }).ok();
    });
    handle
}

impl Worker {
    /// Fails with the message of a panic in one of its operations.
    async fn run(mut self, mut state: PodState, mut inbox: mpsc::UnboundedReceiver<PodEvent>) -> Result<(), String> {
        state = self.take(state, PodEvent::Start)?;
        let mut turn = "create";
        loop {
            let begin = Instant::now();
            state = self.take(state, PodEvent::Sync)?;
            self.show(&state);
            self.shared.counters.observe(&POD_WORKER, &[std::mem::replace(&mut turn, "sync")], begin.elapsed());
            if state.is_over() {
                return Ok(());
            }
            tokio::select! {
                event = inbox.recv() => match event {
                    Some(event) => state = self.take(state, event)?,
                    None => return Ok(()),
                },
                () = tokio::time::sleep(self.pause()) => {}
                () = self.shared.stop.cancelled() => return Ok(()),
            }
            while let Ok(event) = inbox.try_recv() {
                state = self.take(state, event)?;
            }
        }
    }

    /// How long to wait for the next event.
    fn pause(&self) -> Duration {
        match self.wake {
            Some(at) => Duration::try_from(at.duration_since(self.shared.env.now())).unwrap_or(Duration::ZERO),
            // Only an event can change anything.
            None => Duration::from_secs(3600),
        }
    }

    /// Publishes the Pod's progress.
    fn show(&self, state: &PodState) {
        self.over.store(state.has_ended(), Ordering::Relaxed);
        self.reported.store(state.report.is_complete(), Ordering::Relaxed);
        self.leaves.store(state.leaves().map_or(STAYS, Timestamp::as_millisecond), Ordering::Relaxed);
    }

    /// Handles an event and executes its effects. Fails if the worker must give up.
    fn take(&mut self, state: PodState, event: PodEvent) -> Result<PodState, String> {
        self.ends(&event);
        let now = self.shared.env.now();
        let set = self.clock.set_by(now).map(PodEvent::ClockSet);
        set.into_iter().chain([event]).try_fold(state, |state, event| {
            let (state, effects) = pod::next(state, event, now);
            effects.into_iter().try_for_each(|effect| self.act(effect))?;
            Ok(state)
        })
    }

    /// A finished operation needs no handle any more.
    fn ends(&mut self, event: &PodEvent) {
        match event {
            PodEvent::Done(ActionResult::Pulled { container, .. }) => drop(self.pulls.remove(container)),
            PodEvent::Done(ActionResult::Stopped { container, .. }) => drop(self.stops.remove(container)),
            _ => {}
        }
    }

    fn act(&mut self, effect: Effect) -> Result<(), String> {
        let shared = &self.shared;
        match effect {
            Effect::Begin(pod, work) => self.begin(pod, work),
            Effect::CancelPull(container) => {
                if let Some(pull) = self.pulls.remove(&container) {
                    pull.abort();
                }
            }
            Effect::Shorten { container, deadline } => {
                if let Some(stop) = self.stops.get(&container) {
                    stop.send_replace(deadline);
                }
            }
            Effect::Probes(change) => self.probe(change),
            Effect::Record(Record { about, warning: true, reason, message }) => {
                shared.recorder.warning(about, &reason, message);
            }
            Effect::Record(Record { about, warning: false, reason, message }) => {
                shared.recorder.normal(about, &reason, message);
            }
            Effect::WarnOfShortcomings { pod, unless_of } => {
                let known = unless_of.map(|before| shared.executor.shortcomings(&before)).unwrap_or_default();
                let all = shared.executor.shortcomings(&pod).into_iter();
                for shortcoming in all.filter(|shortcoming| !known.contains(shortcoming)) {
                    shared.recorder.warning(pod.about(None), "LimitsNotEnforced", shortcoming);
                }
            }
            Effect::Forget(pod, attempt) => {
                let shared = shared.clone();
                tokio::spawn(async move { shared.executor.forget(&pod, &attempt).await });
            }
            Effect::TraceStart(pod) => self.trace = StartTrace::begin(&shared.client, &pod),
            Effect::TraceEnd => self.trace = StartTrace::default(),
            Effect::Started(took) => {
                shared.counters.observe(&POD_START, &[], took.from_sight);
                shared.counters.observe(&POD_START_SLI, &[], took.own);
            }
            Effect::Wake(at) => self.wake = at,
            Effect::GiveUp(why) => return Err(why),
        }
        Ok(())
    }

    fn probe(&mut self, change: ProbeChange) {
        match change {
            ProbeChange::Start(probed) => {
                let Some(part) = probed.pod.part(&probed.container) else { return };
                let container = part.container.into_owned();
                let target = Target {
                    shared: self.shared.clone(),
                    pod: probed.pod.clone(),
                    container,
                    id: probed.id,
                    ips: probed.ips,
                    started_at: probed.started_at,
                };
                self.probes.start(target, probed.started, self.me.clone());
            }
            ProbeChange::StartupSucceeded(container) => self.probes.started(&container),
            ProbeChange::Stop { container, keep_readiness } => self.probes.stop(&container, keep_readiness),
            ProbeChange::KeepReadinessOnly => self.probes.keep_readiness_only(),
            ProbeChange::Clear => self.probes.clear(),
        }
    }

    /// Starts work beside the worker; its result becomes an event.
    fn begin(&mut self, pod: Arc<Pod>, work: Work) {
        let (pull, stop) = match &work {
            Work::Pull { container, .. } => (Some(container.clone()), None),
            Work::Stop { container, deadline, .. } => (None, Some((container.clone(), *deadline))),
            _ => (None, None),
        };
        let shorter = stop.map(|(container, deadline)| {
            let (sender, receiver) = watch::channel(deadline);
            self.stops.insert(container, sender);
            receiver
        });
        // The trace ends when its last holder is dropped.
        let is_of_start = matches!(
            work,
            Work::MountVolume { .. } | Work::StartSandbox { .. } | Work::Pull { .. } | Work::Start { .. }
        );
        let trace = if is_of_start { self.trace.clone() } else { StartTrace::default() };
        let run = work::Run { shared: self.shared.clone(), pod, me: self.me.clone(), trace };
        let me = self.me.clone();
        let task = self.tasks.spawn(async move {
            let end = caught(run.work(work, shorter)).await;
            me.send(end.map_or_else(PodEvent::Broken, PodEvent::Done))
        });
        if let Some(container) = pull {
            self.pulls.insert(container, task.abort_handle());
        }
    }
}
