//! One worker per Pod: it feeds what happens to `pod::next`, does the effects, and decides nothing itself.

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
        state::PodState,
    },
    probes::{Probes, Target},
    resize::allocation::Allotment,
    spans::StartTrace,
    spec::PodExt,
};

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

/// A worker's last word.
#[derive(Debug)]
pub struct Ended {
    pub uid: String,
    /// What it panicked with, or something that it had begun: then its Pod still needs a worker.
    pub panic: Option<String>,
}

/// How long what a broken worker had begun may take to end before another worker takes over.
const SETTLE: Duration = Duration::from_secs(10);

/// Does a Pod's effects.
struct Worker {
    shared: Arc<Shared>,
    me: mpsc::UnboundedSender<PodEvent>,
    /// Pulls under way, by their containers.
    pulls: HashMap<String, AbortHandle>,
    /// Stops under way: told here when their grace is shortened.
    stops: HashMap<String, watch::Sender<Timestamp>>,
    probes: Probes,
    /// The Pod's start, for as long as it takes.
    trace: StartTrace,
    /// What has been begun and has not come to its end.
    tasks: TaskTracker,
    /// When to sync although nothing has happened.
    wake: Option<Timestamp>,
    clock: Clock,
    over: Arc<AtomicBool>,
    leaves: Arc<AtomicI64>,
}

/// Starts the worker of `pod`, of which this was observed. `finished` is told when it ends.
pub fn spawn(
    shared: Arc<Shared>,
    pod: Arc<Pod>,
    (intent, seen): (Intent, Observed),
    allotment: Allotment,
    finished: mpsc::UnboundedSender<Ended>,
) -> Handle {
    let (me, inbox) = mpsc::unbounded_channel();
    let (over, leaves) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(STAYS)));
    let uid = pod.uid().to_owned();
    let now = shared.env.now();
    let state = PodState::new(pod.clone(), &allotment, intent, seen, shared.host.clone(), now);
    let handle = Handle { inbox: me.clone(), pod, allotment, over: over.clone(), leaves: leaves.clone(), gone: false };
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
    /// Errors: what something that it had begun panicked with.
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
            // Nothing but an event can change anything.
            None => Duration::from_secs(3600),
        }
    }

    /// Shows others how far the Pod is.
    fn show(&self, state: &PodState) {
        self.over.store(state.has_ended(), Ordering::Relaxed);
        self.leaves.store(state.leaves().map_or(STAYS, Timestamp::as_millisecond), Ordering::Relaxed);
    }

    /// An event, and what is to be done about it. Errors: the worker is to give up.
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

    /// What has ended needs no handle any more.
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
                if unless_of.is_none_or(|before| shared.executor.shortcomings(&before).is_empty()) {
                    for shortcoming in shared.executor.shortcomings(&pod) {
                        shared.recorder.warning(pod.about(None), "LimitsNotEnforced", shortcoming);
                    }
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

    /// Runs work beside the worker, and takes its end as an event.
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
        // The trace has ended when nobody holds it any more.
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
