//! One worker per Pod: it takes news, plans, acts, and tells the server; the newest wish wins.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::{sync::mpsc, task::AbortHandle};

use super::{
    Shared,
    backoff::{self, Backoff},
    events::millis,
    executor::{Pulled, Started, Trouble},
    observed::{Attempt, Busy, Exit, Failure, Image, Intent, Observed, SandboxState, Step, Stop, Unhealthy},
    plan::{self, Action, StopContainer},
    probes::{self, Kind, Probes},
    publish::{self, Publisher},
    spec::PodExt,
    start, stop,
};

/// What a worker is told.
#[derive(Debug)]
pub enum News {
    /// The Pod as it is wanted now.
    Wanted(Arc<Pod>),
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
    Poke,
    Probe {
        container: String,
        id: String,
        kind: Kind,
        verdict: probes::Verdict,
    },
    Done(Done),
}

/// An action has come to its end.
#[derive(Debug)]
pub enum Done {
    Volumes(Result<(), Trouble>),
    VolumesReleased(Result<(), String>),
    Sandbox(Result<Vec<std::net::IpAddr>, Trouble>),
    SandboxStopped(Result<(), String>),
    SandboxRemoved(Result<(), String>),
    Pulling {
        container: String,
    },
    Pulled {
        container: String,
        result: Result<Pulled, Trouble>,
    },
    Started {
        container: String,
        restart: u32,
        result: Result<Started, Trouble>,
    },
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
    Removed(Result<(), String>),
    Written(Box<Result<Pod, crate::api::Status>>),
    Deleted(Result<(), crate::api::Status>),
}

/// A running worker.
pub struct Handle {
    pub inbox: mpsc::UnboundedSender<News>,
    /// The Pod as last told.
    pub pod: Arc<Pod>,
}

pub struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) pod: Arc<Pod>,
    pub(super) seen: Observed,
    pub(super) me: mpsc::UnboundedSender<News>,
    inbox: mpsc::UnboundedReceiver<News>,
    pulls: HashMap<String, AbortHandle>,
    /// Stops in flight: told here when their grace is shortened.
    stops: HashMap<String, tokio::sync::watch::Sender<Timestamp>>,
    probes: Probes,
    publisher: Publisher,
    /// Backed off after a failed pull: counted per image name.
    pull_backoff: HashMap<String, (Backoff, Timestamp)>,
    /// Ends of attempts whose start has not been told yet, by their id.
    early: HashMap<String, Exit>,
    /// The Pod is no longer known to its source.
    gone: bool,
    warned: bool,
    refreshing: bool,
    refresh_again: bool,
}

/// Starts the worker of `pod`. `finished` is told its uid when it ends.
pub fn spawn(shared: Arc<Shared>, pod: Arc<Pod>, seen: Observed, finished: mpsc::UnboundedSender<String>) -> Handle {
    let (me, inbox) = mpsc::unbounded_channel();
    let handle = Handle { inbox: me.clone(), pod: pod.clone() };
    let uid = pod.uid().to_owned();
    let publisher = Publisher::new(&pod);
    let worker = Worker {
        shared,
        pod,
        seen,
        me,
        inbox,
        pulls: HashMap::new(),
        stops: HashMap::new(),
        probes: Probes::default(),
        publisher,
        pull_backoff: HashMap::new(),
        early: HashMap::new(),
        gone: false,
        warned: false,
        refreshing: false,
        refresh_again: false,
    };
    tokio::spawn(async move {
        worker.run().await;
        finished.send(uid).ok();
    });
    handle
}

impl Worker {
    async fn run(mut self) {
        self.begin();
        loop {
            let wake = self.step();
            if self.is_over() {
                return;
            }
            let pause = match wake {
                Some(at) => Duration::try_from(at.duration_since(self.now())).unwrap_or(Duration::ZERO),
                // Nothing but news can change anything.
                None => Duration::from_secs(3600),
            };
            tokio::select! {
                news = self.inbox.recv() => match news {
                    Some(news) => self.note(news),
                    None => return,
                },
                () = tokio::time::sleep(pause) => {}
            }
            while let Ok(news) = self.inbox.try_recv() {
                self.note(news);
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
        self.heed();
        self.warn();
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
                self.publish(now);
                return plan.wake;
            }
            for action in plan.actions {
                tracing::debug!(pod = %self.pod.full_name(), ?action, "act");
                self.act(action, now);
            }
        }
        tracing::error!(pod = %self.pod.full_name(), "the plan does not come to rest");
        Some(plan::after(self.now(), 1))
    }

    fn is_over(&self) -> bool {
        self.seen.removal == Step::Done && (self.publisher.is_deleted() || self.gone)
    }

    /// Takes the newest wish: deletion begins, or its grace is shortened.
    fn heed(&mut self) {
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

    fn end(&mut self, stop: Stop) {
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

    /// Runs `work` beside the worker and takes its end as news.
    pub(super) fn spawn(&self, work: impl Future<Output = Done> + Send + 'static) -> AbortHandle {
        let me = self.me.clone();
        tokio::spawn(async move { me.send(News::Done(work.await)) }).abort_handle()
    }

    fn publish(&mut self, now: Timestamp) {
        let status = super::status::status(&self.pod, &self.seen, &self.shared.host, now);
        let removed = self.seen.removal == Step::Done;
        let (client, pod) = (self.shared.client.clone(), self.pod.clone());
        if let Some(work) = self.publisher.next(client, &pod, status, removed, self.gone) {
            self.spawn(work);
        }
    }

    fn act(&mut self, action: Action, now: Timestamp) {
        let (shared, pod) = (self.shared.clone(), self.pod.clone());
        let attempt = self.seen.sandbox.attempt;
        match action {
            Action::PrepareVolumes => {
                self.tries(|seen| &mut seen.volumes);
                self.spawn(async move { Done::Volumes(shared.executor.prepare_volumes(&pod).await) });
            }
            Action::ReleaseVolumes => {
                self.seen.volumes = Step::Doing;
                self.spawn(async move { Done::VolumesReleased(shared.executor.release_volumes(&pod).await) });
            }
            Action::StartSandbox => {
                self.seen.sandbox.state = SandboxState::Starting;
                let seen = self.seen.clone();
                self.spawn(async move { Done::Sandbox(shared.executor.start_sandbox(&pod, attempt, &seen).await) });
            }
            Action::RenewSandbox => {
                self.normal(None, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.");
                self.seen.sandbox.state = SandboxState::Stopping;
                self.spawn(async move { Done::SandboxRemoved(shared.executor.remove_sandbox(&pod, attempt).await) });
            }
            Action::StopSandbox => {
                self.seen.sandbox.state = SandboxState::Stopping;
                self.spawn(async move { Done::SandboxStopped(shared.executor.stop_sandbox(&pod, attempt).await) });
            }
            Action::Pull(container) => self.pull(container),
            Action::Start(container) => self.start(container, now),
            Action::Stop(order) => self.stop(order),
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
                self.spawn(async move { Done::Removed(shared.executor.remove(&pod, attempt).await) });
            }
        }
    }

    /// Marks a step as begun; how often it was tried is kept for its back-off.
    fn tries(&mut self, step: impl Fn(&mut Observed) -> &mut Step) {
        let step = step(&mut self.seen);
        self.publisher.volume_tries = step.failures();
        *step = Step::Doing;
    }

    fn pull(&mut self, container: String) {
        let (shared, pod, me) = (self.shared.clone(), self.pod.clone(), self.me.clone());
        self.seen.container_mut(&container).busy = Busy::Pulling;
        let name = container.clone();
        let pull = self.spawn(async move {
            let news = |_| {
                me.send(News::Done(Done::Pulling { container: name.clone() })).ok();
            };
            let result = match pod.part(&name) {
                Some(part) => shared.executor.pull(&pod, &part, &news).await,
                None => Err(Trouble::new("ErrImagePull", "the container has left the manifest")),
            };
            Done::Pulled { container: name.clone(), result }
        });
        self.pulls.insert(container, pull);
    }

    fn start(&mut self, container: String, now: Timestamp) {
        let seen = self.seen.container_mut(&container);
        seen.busy = Busy::Starting;
        if let Some(exit) = seen.attempt.as_ref().and_then(|a| a.exit.as_ref()) {
            seen.backoff.raise(exit.finished_at, now);
        }
        let order = start::order(&self.seen, &container);
        let (shared, pod) = (self.shared.clone(), self.pod.clone());
        self.spawn(async move {
            let restart = order.restart;
            let result = match pod.part(&container) {
                Some(part) => shared.executor.start(&pod, &part, order).await,
                None => Err(Trouble::new("CreateContainerError", "the container has left the manifest")),
            };
            Done::Started { container, restart, result }
        });
    }

    fn stop(&mut self, order: StopContainer) {
        let StopContainer { container, deadline, why } = order;
        let seen = self.seen.container_mut(&container);
        let Some(attempt) = seen.attempt.clone() else { return };
        seen.busy = Busy::Stopping { deadline };
        if let Some(running) = self.stops.get(&container) {
            running.send_replace(deadline);
            return;
        }
        self.normal(Some(&container), "Killing", why);
        self.probes.stop(&container, true);
        let (deadline, shorter) = tokio::sync::watch::channel(deadline);
        self.stops.insert(container.clone(), deadline);
        let (shared, pod) = (self.shared.clone(), self.pod.clone());
        let ips = self.seen.sandbox.ips.clone();
        self.spawn(async move {
            let result = stop::stop(&shared, &pod, &container, &attempt.id, &ips, shorter).await;
            Done::Stopped { container, id: attempt.id, result }
        });
    }

    fn note(&mut self, news: News) {
        match news {
            News::Wanted(pod) => {
                let newest = publish::newer(&self.pod, pod);
                if !Arc::ptr_eq(&newest, &self.pod) {
                    self.publisher.saw(&newest.status);
                    self.pod = newest;
                }
                self.heed();
            }
            News::Mirror(mirror) => self.publisher.mirror = Some(mirror),
            News::Gone => {
                self.gone = true;
                self.heed();
            }
            News::Exited { container, id, exit } => self.exited(&container, &id, exit),
            News::SandboxGone { attempt } => {
                if attempt == self.seen.sandbox.attempt && self.seen.sandbox.state == SandboxState::Ready {
                    self.seen.lose_sandbox(self.shared.env.now());
                    self.probes.clear();
                }
            }
            News::Poke => self.poke(),
            News::Probe { container, id, kind, verdict } => self.probed(&container, &id, kind, verdict),
            News::Done(done) => self.done(done),
        }
    }

    /// Something that the Pod refers to has changed: what failed for want of it is due, what is mounted is refreshed.
    fn poke(&mut self) {
        let now = self.now();
        if let Step::Failed { retry_at, .. } = &mut self.seen.volumes {
            *retry_at = now;
        }
        for container in self.seen.containers.values_mut() {
            if container.waiting.as_ref().is_some_and(|w| w.reason == "CreateContainerConfigError") {
                container.retry_at = None;
            }
        }
        if self.seen.volumes == Step::Done && self.seen.intent == Intent::Run {
            if std::mem::replace(&mut self.refreshing, true) {
                self.refresh_again = true;
                return;
            }
            let (shared, pod) = (self.shared.clone(), self.pod.clone());
            self.spawn(async move { Done::Volumes(shared.executor.refresh_volumes(&pod).await) });
        }
    }

    fn exited(&mut self, container: &str, id: &str, exit: Exit) {
        let always =
            self.pod.part(container).is_some_and(|p| p.container.image_pull_policy.as_deref() == Some("Always"));
        let seen = self.seen.container_mut(container);
        let Some(attempt) = seen.attempt.as_mut().filter(|a| a.id == id) else {
            if seen.busy == Busy::Starting {
                self.early.insert(id.to_owned(), exit);
            }
            return;
        };
        if attempt.exit.is_some() {
            return;
        }
        attempt.exit = Some(exit);
        seen.started = false;
        seen.ready = false;
        seen.unhealthy = None;
        if always {
            seen.image = Image::Unknown;
        }
        if !matches!(seen.busy, Busy::Stopping { .. }) {
            seen.busy = Busy::Idle;
        }
        self.probes.stop(container, false);
    }

    fn probe(&mut self, container: &str) {
        let Some(part) = self.pod.part(container) else { return };
        let seen = self.seen.container_mut(container);
        let Some(attempt) = seen.attempt.clone() else { return };
        let has = |kind| probes::spec(&part.container, kind).is_some();
        if !has(Kind::Startup) {
            seen.started = true;
        }
        if !has(Kind::Readiness) {
            seen.ready = true;
        }
        let target = probes::Target {
            shared: self.shared.clone(),
            pod: self.pod.clone(),
            container: part.container.clone().into_owned(),
            id: attempt.id,
            ips: match self.pod.host_network() {
                true => self.shared.host.addresses.clone(),
                false => self.seen.sandbox.ips.clone(),
            },
            started_at: attempt.started_at.unwrap_or(self.shared.env.now()),
        };
        self.probes.start(target, self.seen.container(container).started, self.me.clone());
    }

    fn probed(&mut self, container: &str, id: &str, kind: Kind, verdict: probes::Verdict) {
        let seen = self.seen.container_mut(container);
        if seen.attempt.as_ref().is_none_or(|a| a.id != id || a.exit.is_some()) {
            return;
        }
        match (kind, verdict) {
            (Kind::Startup, probes::Verdict::Good) => {
                seen.started = true;
                self.probes.started(container);
            }
            (Kind::Readiness, verdict) => seen.ready = verdict == probes::Verdict::Good,
            (Kind::Startup | Kind::Liveness, probes::Verdict::Bad) if self.seen.intent == Intent::Run => {
                let Some(part) = self.pod.part(container) else { return };
                let grace = probes::spec(&part.container, kind).and_then(|p| p.termination_grace_period_seconds);
                let why = format!("failed {} probe", kind.word());
                self.seen.container_mut(container).unhealthy = Some(Unhealthy { why, grace });
            }
            _ => {}
        }
    }

    fn done(&mut self, done: Done) {
        let now = self.now();
        match done {
            Done::Volumes(result) => self.volumes_done(result, now),
            Done::VolumesReleased(result) => {
                self.complain("release volumes", &result);
                self.seen.volumes = Step::Undone;
            }
            Done::Sandbox(Ok(ips)) => {
                self.seen.sandbox.state = SandboxState::Ready;
                self.seen.sandbox.ips = ips;
                self.seen.sandbox.trouble = None;
            }
            Done::Sandbox(Err(trouble)) => {
                let tries = self.seen.sandbox.trouble.map_or(0, |t| t.0);
                let Step::Failed { tries, retry_at } = Step::failed(tries, now) else { return };
                self.seen.sandbox.state = SandboxState::None;
                self.seen.sandbox.trouble = Some((tries, retry_at));
                let message = format!("Failed to create pod sandbox: {}", trouble.message);
                self.warning(None, "FailedCreatePodSandBox", message);
            }
            Done::SandboxStopped(result) => {
                self.complain("stop the sandbox", &result);
                self.seen.lose_sandbox(now);
            }
            Done::SandboxRemoved(result) => {
                self.complain("remove the sandbox", &result);
                self.seen.renew_sandbox();
            }
            Done::Pulling { container } => {
                let image = self.image_of(&container);
                self.normal(Some(&container), "Pulling", format!("Pulling image \"{image}\""));
            }
            Done::Pulled { container, result } => self.pulled(&container, result, now),
            Done::Started { container, restart, result } => self.started(&container, restart, result, now),
            Done::PostStart { container, id, result } => self.post_started(&container, &id, result),
            Done::Stopped { container, id, result } => {
                self.stops.remove(&container);
                self.complain("stop a container", &result.as_ref().map(drop).map_err(Clone::clone));
                match result {
                    Ok(Some(exit)) => self.exited(&container, &id, exit),
                    Ok(None) => self.exited(&container, &id, Exit::unknown(now)),
                    // It may still run: the plan will stop it again.
                    Err(_) => {}
                }
                self.seen.container_mut(&container).busy = Busy::Idle;
            }
            Done::Removed(Ok(())) => self.seen.removal = Step::Done,
            Done::Removed(Err(why)) => {
                tracing::warn!(pod = %self.pod.full_name(), why, "removing a Pod did not succeed entirely");
                self.seen.removal = Step::failed(self.publisher.removal_tries, now);
                self.publisher.removal_tries += 1;
            }
            Done::Written(result) => self.publisher.written(*result, &mut self.pod, &mut self.gone),
            Done::Deleted(result) => self.publisher.deleted(result),
        }
        if self.gone {
            self.heed();
        }
    }

    fn complain(&self, what: &str, result: &Result<(), String>) {
        if let Err(why) = result {
            tracing::warn!(pod = %self.pod.full_name(), why, "failed to {what}");
        }
    }

    fn volumes_done(&mut self, result: Result<(), Trouble>, now: Timestamp) {
        if std::mem::take(&mut self.refreshing) {
            if let Err(trouble) = &result {
                self.warning(None, &trouble.reason, trouble.message.clone());
            }
            if std::mem::take(&mut self.refresh_again) {
                self.poke();
            }
            return;
        }
        match result {
            Ok(()) => self.seen.volumes = Step::Done,
            Err(trouble) => {
                self.warning(None, &trouble.reason, trouble.message);
                self.seen.volumes = Step::failed(self.publisher.volume_tries, now);
            }
        }
    }

    fn image_of(&self, container: &str) -> String {
        self.pod.part(container).and_then(|p| p.container.image.clone()).unwrap_or_default()
    }

    fn pulled(&mut self, container: &str, result: Result<Pulled, Trouble>, now: Timestamp) {
        self.pulls.remove(container);
        let name = self.image_of(container);
        let seen = self.seen.container_mut(container);
        seen.busy = Busy::Idle;
        match result {
            Ok(pulled) => {
                if seen.waiting.as_ref().is_some_and(|w| w.reason != "CrashLoopBackOff") {
                    seen.waiting = None;
                }
                seen.retry_at = None;
                seen.image = Image::Ready { name: name.clone(), id: pulled.id };
                self.pull_backoff.remove(&name);
                let message = match pulled.pulled {
                    None => format!("Container image \"{name}\" already present on machine"),
                    Some((took, waited)) => format!(
                        "Successfully pulled image \"{name}\" in {} ({} including waiting). Image size: {} bytes.",
                        millis(took),
                        millis(waited),
                        pulled.size
                    ),
                };
                self.normal(Some(container), "Pulled", message);
            }
            Err(trouble) => self.pull_failed(container, &name, trouble, now),
        }
    }

    /// A pull has failed: told as its own reason first, as ImagePullBackOff while it waits.
    fn pull_failed(&mut self, container: &str, name: &str, trouble: Trouble, now: Timestamp) {
        if trouble.reason == "ErrImagePull" || trouble.reason == "RegistryUnavailable" {
            self.warning(Some(container), "Failed", format!("Failed to pull image \"{name}\": {}", trouble.message));
        } else {
            self.warning(Some(container), &failed_reason(&trouble.reason), trouble.message.clone());
        }
        self.warning(Some(container), "Failed", format!("Error: {}", trouble.reason));
        let (backoff, failed) = self.pull_backoff.entry(name.to_owned()).or_insert((Backoff::default(), now));
        backoff.raise(now, now);
        *failed = now;
        let until = backoff::later(now, backoff.delay());
        let pulls = matches!(trouble.reason.as_str(), "ErrImagePull" | "RegistryUnavailable");
        let seen = self.seen.container_mut(container);
        seen.image = Image::Unknown;
        seen.retry_at = Some(until);
        seen.waiting = Some(trouble.failure());
        if !pulls {
            return;
        }
        // The server sees the reason of the failure itself first; what follows is the wait.
        self.publish(now);
        let message = format!("Back-off pulling image \"{name}\": ErrImagePull: {}", trouble.message);
        self.normal(Some(container), "BackOff", format!("Back-off pulling image \"{name}\""));
        self.warning(Some(container), "Failed", "Error: ImagePullBackOff");
        let waiting = Failure { reason: "ImagePullBackOff".into(), message };
        self.seen.container_mut(container).waiting = Some(waiting);
    }

    fn started(&mut self, container: &str, restart: u32, result: Result<Started, Trouble>, now: Timestamp) {
        let Some(part) = self.pod.part(container) else { return };
        let has_hook = part.container.lifecycle.as_ref().is_some_and(|l| l.post_start.is_some());
        match result {
            Ok(Started { id, at }) => {
                self.normal(Some(container), "Created", format!("Created container: {container}"));
                self.normal(Some(container), "Started", format!("Started container {container}"));
                start::succeeded(&mut self.seen, &self.shared, &self.pod, container, restart, id.clone(), at);
                if let Some(exit) = self.early.remove(&id) {
                    self.exited(container, &id, exit);
                } else if has_hook {
                    let (shared, pod) = (self.shared.clone(), self.pod.clone());
                    let (ips, container) = (self.seen.sandbox.ips.clone(), container.to_owned());
                    self.spawn(async move {
                        let result = start::post_start(&shared, &pod, &container, &id, &ips).await;
                        Done::PostStart { container, id, result }
                    });
                } else {
                    self.post_started(container, &id, Ok(()));
                }
            }
            Err(trouble) => {
                let label = if trouble.reason == "StartError" { "RunContainerError" } else { &trouble.reason };
                let message = format!("Error: {}", trouble.message);
                tracing::info!(pod = %self.pod.full_name(), container, label, message, "a container did not start");
                self.warning(Some(container), "Failed", message);
                start::failed(&mut self.seen, container, restart, &trouble, now);
            }
        }
    }

    fn post_started(&mut self, container: &str, id: &str, result: Result<(), String>) {
        let seen = self.seen.container_mut(container);
        if seen.attempt.as_ref().is_none_or(|a| a.id != id) {
            return;
        }
        if seen.busy == Busy::Starting {
            seen.busy = Busy::Idle;
        }
        match result {
            _ if !seen.is_running() => {}
            Ok(()) => self.probe(container),
            Err(why) => {
                self.warning(Some(container), "FailedPostStartHook", why);
                let unhealthy = Unhealthy { why: "failed postStart hook".into(), grace: None };
                self.seen.container_mut(container).unhealthy = Some(unhealthy);
            }
        }
    }
}

/// The event's reason for what kept an image from being used.
fn failed_reason(reason: &str) -> String {
    match reason {
        "InvalidImageName" => "InspectFailed".to_owned(),
        "ErrImageNeverPull" => "ErrImageNeverPull".to_owned(),
        _ => "Failed".to_owned(),
    }
}

/// A fresh attempt, before anything is known of it.
pub fn attempt(id: String, restart: u32, image: &Image, started_at: Option<Timestamp>) -> Attempt {
    let Image::Ready { name, id: image_id } = image else {
        return Attempt {
            id,
            restart,
            image: String::new(),
            image_id: String::new(),
            started_at,
            exit: None,
            current: true,
        };
    };
    let (image, image_id) = (name.clone(), image_id.clone());
    Attempt { id, restart, image, image_id, started_at, exit: None, current: true }
}
