//! The lifecycle of each container: its image is pulled, it is started, probed, and exits or is stopped.

use super::{
    Turn,
    effect::{Effect, ProbeChange, ProbedContainer, Work},
    intent::Failure,
    observed::{Exit, Image, SandboxState, Unhealthy},
    progress::Busy,
    start,
};
use crate::{
    backoff,
    events::millis,
    executor::{ActionError, ExecutorError, Pulled, Reason, Started},
    hooks::HookError,
    plan::{self, StopContainer},
    probes::{
        self,
        verdict::{Kind, Verdict},
    },
    spec::PodExt,
};

impl Turn<'_> {
    pub(super) fn image_of(&self, container: &str) -> String {
        self.pod().part(container).and_then(|p| p.container.image.clone()).unwrap_or_default()
    }

    pub(super) fn pull(&mut self, container: String) {
        self.state.progress.container_mut(&container).busy = Busy::Pulling;
        let image = self.image_of(&container);
        self.begin(Work::Pull { container, image });
    }

    pub(super) fn pulled(&mut self, container: &str, name: String, result: Result<Pulled, ActionError>) {
        let progress = self.state.progress.container_mut(container);
        progress.busy = Busy::Idle;
        let pulled = match result {
            Ok(pulled) => pulled,
            Err(trouble) => return self.pull_failed(container, &name, trouble),
        };
        // The reason of a failed start holds until one succeeds.
        let of_starts = ["CrashLoopBackOff", "CreateContainerError"];
        if progress.waiting.as_ref().is_some_and(|w| !of_starts.contains(&w.reason.as_str())) {
            progress.waiting = None;
        }
        progress.retry_at = None;
        self.state.progress.pulls.remove(&name);
        self.state.observed.container_mut(container).image = Image::Ready { name: name.clone(), id: pulled.id };
        let message = match pulled.pulled {
            None => format!("Container image \"{name}\" already present on machine and can be accessed by the pod"),
            Some((took, waited)) => {
                self.state.startup.pulled(waited);
                format!(
                    "Successfully pulled image \"{name}\" in {} ({} including waiting). Image size: {} bytes.",
                    millis(took),
                    millis(waited),
                    pulled.size
                )
            }
        };
        self.normal(Some(container), "Pulled", message);
    }

    /// A pull failed: reported with its own reason first, then as ImagePullBackOff.
    fn pull_failed(&mut self, container: &str, name: &str, trouble: ActionError) {
        let pulls = trouble.reason == Reason::ErrImagePull;
        if pulls {
            self.warning(Some(container), "Failed", format!("Failed to pull image \"{name}\": {}", trouble.message));
        } else {
            self.warning(Some(container), failed_reason(trouble.reason), trouble.message.clone());
        }
        self.warning(Some(container), "Failed", format!("Error: {}", trouble.reason));
        let backoff = self.state.progress.pulls.entry(name.to_owned()).or_default();
        backoff.raise(self.now, self.now);
        let until = backoff::later(self.now, backoff.delay());
        self.state.observed.container_mut(container).image = Image::Unknown;
        let progress = self.state.progress.container_mut(container);
        progress.retry_at = Some(until);
        progress.waiting = Some(trouble.failure());
        if !pulls {
            return;
        }
        // The server first gets the reason of the failure itself, then the back-off.
        self.report();
        let message = format!("Back-off pulling image \"{name}\": ErrImagePull: {}", trouble.message);
        self.normal(Some(container), "BackOff", format!("Back-off pulling image \"{name}\""));
        self.warning(Some(container), "Failed", "Error: ImagePullBackOff");
        let waiting = Failure { reason: "ImagePullBackOff".into(), message };
        self.state.progress.container_mut(container).waiting = Some(waiting);
    }

    pub(super) fn start(&mut self, container: String) {
        let progress = self.state.progress.container_mut(&container);
        progress.busy = Busy::Starting;
        let exit = self.state.observed.container(&container).last_exit();
        if let Some(exit) = exit.filter(|_| !progress.renewing) {
            progress.backoff.raise(exit.finished_at, self.now);
        }
        match start::order(self.pod(), &self.state.observed, &self.state.progress, &container) {
            Ok(order) => self.begin(Work::Start { container, order }),
            Err(trouble) => {
                let restart = self.state.observed.container(&container).next_restart();
                self.start_failed(&container, restart, &trouble);
            }
        }
    }

    pub(super) fn started(&mut self, container: &str, restart: u32, result: Result<Started, ActionError>) {
        let Some(part) = self.pod().part(container) else { return };
        let has_hook = part.container.lifecycle.as_ref().is_some_and(|l| l.post_start.is_some());
        let Started { id, at } = match result {
            Ok(started) => started,
            Err(trouble) => return self.start_failed(container, restart, &trouble),
        };
        self.normal(Some(container), "Created", format!("Created container: {container}"));
        self.normal(Some(container), "Started", format!("Started container {container}"));
        let known = (&mut self.state.observed, &mut self.state.progress);
        let forgotten = start::succeeded(known, container, restart, id.clone(), at);
        if let Some(old) = forgotten {
            self.effects.push(Effect::Forget(self.pod().clone(), old));
        }
        if let Some(exit) = self.state.early.remove(&id) {
            self.exited(container, &id, exit);
        } else if has_hook {
            let ips = self.state.observed.sandbox.ips.clone();
            self.begin(Work::PostStart { container: container.to_owned(), id, ips });
        } else {
            self.post_started(container, &id, Ok(()));
        }
    }

    fn start_failed(&mut self, container: &str, restart: u32, trouble: &ActionError) {
        self.warning(Some(container), "Failed", format!("Error: {}", trouble.message));
        let known = (&mut self.state.observed, &mut self.state.progress);
        start::failed(known, container, restart, trouble, self.now);
        // The next attempt may have the same id, and this was not its exit.
        let id = format!("/{container}.{restart}");
        self.state.early.retain(|early, _| !early.ends_with(&id));
    }

    pub(super) fn post_started(&mut self, container: &str, id: &str, result: Result<(), HookError>) {
        let known = self.state.observed.container_mut(container);
        // A hook may outlive its container: then it says nothing about the next start.
        if known.attempt.as_ref().is_none_or(|a| a.id != id || a.exit.is_some()) {
            return;
        }
        let progress = self.state.progress.container_mut(container);
        if progress.busy == Busy::Starting {
            progress.busy = Busy::Idle;
        }
        match result {
            _ if !known.is_running() => {}
            Ok(()) => self.probe(container),
            Err(why) => {
                known.unhealthy = Some(Unhealthy { why: "failed postStart hook".into(), grace: None });
                self.warning(Some(container), "FailedPostStartHook", format!("PostStartHook failed: {why}"));
            }
        }
    }

    pub(super) fn stop(&mut self, order: StopContainer) {
        let StopContainer { container, deadline, why, renew } = order;
        let attempt = self.state.observed.container(&container).attempt.as_ref();
        let Some(id) = attempt.map(|attempt| attempt.id.clone()) else { return };
        let progress = self.state.progress.container_mut(&container);
        if matches!(std::mem::replace(&mut progress.busy, Busy::Stopping { deadline }), Busy::Stopping { .. }) {
            progress.renewing |= renew;
            return self.effects.push(Effect::Shorten { container, deadline });
        }
        let noted = std::mem::replace(&mut progress.renewing, renew);
        self.normal(Some(&container), "Killing", why);
        self.probes(ProbeChange::Stop { container: container.clone(), keep_readiness: true });
        let ips = self.state.observed.sandbox.ips.clone();
        let note = (renew || noted).then_some(renew);
        self.begin(Work::Stop { container, id, ips, deadline, note });
    }

    pub(super) fn stopped(&mut self, container: &str, id: &str, result: Result<Option<Exit>, ExecutorError>) {
        // It may still run: the plan decides again whether to stop it.
        let stop_at = result.is_err().then(|| backoff::later(self.now, plan::STOP_PAUSE));
        if let Ok(exit) = result {
            self.exited(container, id, exit.unwrap_or_else(|| Exit::unknown(self.now)));
        }
        let progress = self.state.progress.container_mut(container);
        (progress.busy, progress.stop_at) = (Busy::Idle, stop_at);
    }

    /// Nothing requires the restart of a container any more that was about to be stopped for one.
    pub(super) fn keep(&mut self, container: &str) {
        self.state.progress.container_mut(container).renewing = false;
        let attempt = self.state.observed.container(container).attempt.as_ref();
        if let Some(id) = attempt.map(|attempt| attempt.id.clone()) {
            self.begin(Work::Note { id, renew: false });
        }
    }

    pub(super) fn exited(&mut self, container: &str, id: &str, exit: Exit) {
        let progress = self.state.progress.container_mut(container);
        let known = self.state.observed.container_mut(container);
        let Some(attempt) = known.attempt.as_mut().filter(|a| a.id == id) else {
            if progress.busy == Busy::Starting {
                self.state.early.insert(id.to_owned(), exit);
            }
            return;
        };
        if attempt.exit.is_some() {
            return;
        }
        attempt.exit = Some(exit);
        known.started = false;
        known.ready = false;
        known.unhealthy = None;
        // By its next start the image may have been removed, or its name may refer to another one.
        known.image = Image::Unknown;
        if !matches!(progress.busy, Busy::Stopping { .. }) {
            progress.busy = Busy::Idle;
        }
        self.probes(ProbeChange::Stop { container: container.to_owned(), keep_readiness: false });
    }

    /// The sandbox has died with everything in it.
    pub(super) fn sandbox_gone(&mut self, attempt: u32) {
        if attempt == self.state.observed.sandbox.attempt && self.state.inputs().sandbox_is(SandboxState::Ready) {
            self.state.lose_sandbox(self.now);
            self.probes(ProbeChange::Clear);
        }
    }

    /// Starts a container's probes; those not defined count as successful.
    pub(super) fn probe(&mut self, container: &str) {
        let pod = self.pod().clone();
        let Some(part) = pod.part(container) else { return };
        let ips = match pod.host_network() {
            true => self.state.host.addresses.clone(),
            false => self.state.observed.sandbox.ips.clone(),
        };
        let known = self.state.observed.container_mut(container);
        let Some(attempt) = &known.attempt else { return };
        known.started |= probes::spec(&part.container, Kind::Startup).is_none();
        known.ready |= probes::spec(&part.container, Kind::Readiness).is_none();
        let probed = ProbedContainer {
            pod: pod.clone(),
            container: container.to_owned(),
            id: attempt.id.clone(),
            ips,
            started_at: attempt.started_at.unwrap_or(self.now),
            started: known.started,
        };
        self.probes(ProbeChange::Start(probed));
    }

    pub(super) fn probed(&mut self, container: &str, id: &str, kind: Kind, verdict: Verdict) {
        let is_run = self.state.intent.is_run();
        let known = self.state.observed.container_mut(container);
        if known.attempt.as_ref().is_none_or(|a| a.id != id || a.exit.is_some()) {
            return;
        }
        match (kind, verdict) {
            (Kind::Startup, Verdict::Good) => {
                known.started = true;
                self.probes(ProbeChange::StartupSucceeded(container.to_owned()));
            }
            (Kind::Readiness, verdict) => known.ready = verdict == Verdict::Good,
            (Kind::Startup | Kind::Liveness, Verdict::Bad) if is_run => {
                let Some(part) = self.pod().part(container) else { return };
                let grace = probes::spec(&part.container, kind).and_then(|p| p.termination_grace_period_seconds);
                let why = format!("failed {} probe", kind.word());
                self.state.observed.container_mut(container).unhealthy = Some(Unhealthy { why, grace });
            }
            _ => {}
        }
    }
}

/// The event reason for an unusable image.
fn failed_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::InvalidImageName => "InspectFailed",
        Reason::ErrImageNeverPull => reason.as_str(),
        _ => "Failed",
    }
}
