//! What to do next for one Pod, as data: `(Pod, Inputs, now) -> PodActions`. Pure; upstream's counterpart is `computePodActions`.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as ContainerSpec, Pod, Volume};

use super::{
    backoff::{later, pause},
    pod::{
        inputs::Inputs,
        intent::{Failure, Intent, Stop},
        observed::{Attempt, Container, Exit, Image, SandboxState},
        progress::{Busy, ContainerProgress},
        step::Step,
        volumes::{PodVolumes, VolumeState},
    },
    resize::{is_behind, must_restart},
    spec::{ContainerRef, PodExt, Role},
};

/// The minimum grace period between SIGTERM and SIGKILL, even if a preStop hook or other containers used up the time.
const LEAST_GRACE: i64 = 2;

/// Maximum concurrent mounts of a Pod: each may hang on a disk, blocking a thread that others need.
const MOUNTS: usize = 4;

/// One step to take. All actions of a plan may run concurrently.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    MountVolume(String),
    ReleaseVolumes,
    StartSandbox,
    /// Removes a dead sandbox and its containers, so that the Pod starts over.
    RenewSandbox,
    StopSandbox,
    /// Ensures that the container's image is present.
    Pull(String),
    Start(String),
    Stop(StopContainer),
    /// Cancels the restart of a running container: it is no longer needed.
    Keep(String),
    /// Applies the allocation to the Pod's cgroup and to those of these running containers.
    Resize(Vec<String>),
    /// All containers have their allocated resources.
    Resized,
    /// The container must back off before its next start; reported once.
    BackOff {
        container: String,
        message: String,
    },
    /// The Pod as a whole has failed: end it.
    Fail(Failure),
    /// The Pod has completed: end it.
    Finish,
    /// Removes containers, sandbox, volumes and folders.
    Remove,
}

/// How to stop a container.
#[derive(Clone, Debug, PartialEq)]
pub struct StopContainer {
    pub container: String,
    /// When SIGKILL is sent.
    pub deadline: Timestamp,
    /// Upstream's message for the Killing event.
    pub why: String,
    /// Restart it regardless of its restart policy.
    pub renew: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodActions {
    pub actions: Vec<Action>,
    /// When to plan again without an event.
    pub wake: Option<Timestamp>,
}

impl PodActions {
    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }
    fn wake(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
    }
    /// Whether something scheduled for `at` is due; if not, wakes up then.
    fn due(&mut self, at: Option<Timestamp>, now: Timestamp) -> bool {
        match at {
            Some(at) if at > now => {
                self.wake(at);
                false
            }
            _ => true,
        }
    }
}

/// The next steps for `pod`.
pub fn plan(pod: &Pod, known: Inputs<'_>, now: Timestamp) -> PodActions {
    let mut plan = PodActions::default();
    match known.intent {
        Intent::Run => run(&mut plan, pod, known, now),
        Intent::Stop(stop) => end(&mut plan, pod, known, stop, now),
    }
    plan
}

/// A Pod that should run:
///
/// 1. end it if its active deadline has passed,
/// 2. find the containers that should start, and end the Pod if nothing is left to do,
/// 3. restart running containers that must not go on as they are,
/// 4. apply allocated resources to those that go on,
/// 5. set up volumes and sandbox,
/// 6. pull images and start containers in order.
fn run(plan: &mut PodActions, pod: &Pod, known: Inputs<'_>, now: Timestamp) {
    if let (Some(seconds), Some(since)) = (pod.spec().active_deadline_seconds, known.seen.active_since) {
        let end = later(since, std::time::Duration::from_secs(seconds.max(0) as u64));
        if !plan.due(Some(end), now) {
            // The active deadline has not passed.
        } else {
            return plan.act(Action::Fail(Failure {
                reason: "DeadlineExceeded".into(),
                message: "Pod was active on the node longer than the specified deadline".into(),
            }));
        }
    }

    let parts = pod.parts();
    let Some(wanted) = wanted(pod, &parts, known) else { return plan.act(Action::Finish) };

    for part in &parts {
        restart_running(plan, pod, part, known, now);
    }
    let resizing = resize(plan, &parts, known, now);

    let progress = known.progress;
    mount_volumes(plan, pod, &parts, &progress.volumes, now);
    if known.sandbox_is(SandboxState::None) {
        if plan.due(progress.sandbox.start.waits(now), now) {
            plan.act(Action::StartSandbox);
        }
    } else if known.sandbox_is(SandboxState::Stopped)
        && !progress.resize.busy
        && known.all_still()
        && plan.due(progress.sandbox.renewal.waits(now), now)
    {
        plan.act(Action::RenewSandbox);
    }

    let mut starting = resizing || progress.containers.values().any(|c| c.busy == Busy::Starting);
    let ready = known.sandbox_is(SandboxState::Ready) && has_volumes(pod, &parts, &progress.volumes);
    for part in wanted {
        if known.of(part.name()).busy != Busy::Idle || !may_start(plan, pod, part, known, now) {
            continue;
        }
        match &known.container(part.name()).image {
            // Permission for one image says nothing about another that replaced it since.
            Image::Ready { name, .. } if *name == part.container.image.as_deref().unwrap_or_default() => {
                if ready && !starting {
                    starting = true;
                    plan.act(Action::Start(part.name().to_owned()));
                }
            }
            Image::Ready { .. } | Image::Unknown => plan.act(Action::Pull(part.name().to_owned())),
        }
    }
}

/// Mounts the volumes that are due, each for itself; of many that have failed one after the other. What no container uses is not
/// mounted, as upstream (`processPodVolumes`), until a debug container does.
fn mount_volumes(plan: &mut PodActions, pod: &Pod, parts: &[ContainerRef<'_>], volumes: &PodVolumes, now: Timestamp) {
    let mut free = MOUNTS.saturating_sub(volumes.mounting());
    let mut again: Vec<(Timestamp, &str)> = Vec::new();
    for volume in used_volumes(pod, parts) {
        match volumes.get(&volume.name) {
            VolumeState::Pending if free > 0 => {
                free -= 1;
                plan.act(Action::MountVolume(volume.name.clone()));
            }
            failed @ VolumeState::Failed { retry_at, .. } if plan.due(failed.waits(now), now) => {
                again.push((*retry_at, &volume.name));
            }
            _ => {}
        }
    }
    if !again.is_empty() && volumes.is_paced() {
        free = if plan.due(volumes.rests(now), now) { free.min(1) } else { 0 };
    }
    // The longest overdue comes first, so that each is tried.
    again.sort_by_key(|(since, _)| *since);
    again.iter().take(free).for_each(|(_, name)| plan.act(Action::MountVolume((*name).to_owned())));
}

/// Whether all volumes used by the Pod's containers are mounted: upstream's `WaitForAttachAndMount`.
fn has_volumes(pod: &Pod, parts: &[ContainerRef<'_>], volumes: &PodVolumes) -> bool {
    used_volumes(pod, parts).all(|volume| volumes.is_mounted(&volume.name))
}

/// The volumes that any container of the Pod uses, in the manifest's order.
fn used_volumes<'a>(pod: &'a Pod, parts: &'a [ContainerRef<'_>]) -> impl Iterator<Item = &'a Volume> {
    let used: BTreeSet<&str> = parts.iter().flat_map(|part| part.volumes()).collect();
    pod.spec().volumes.iter().flatten().filter(move |volume| used.contains(&*volume.name))
}

/// The containers that should run and do not; `None` if the Pod has completed or cannot go on.
fn wanted<'a>(pod: &Pod, parts: &'a [ContainerRef<'a>], known: Inputs<'_>) -> Option<Vec<&'a ContainerRef<'a>>> {
    let mut wanted = Vec::new();
    let is_main = |p: &&ContainerRef<'_>| p.role == Role::Main;
    let begun = |p: &ContainerRef<'_>| {
        let attempt = known.container(p.name()).attempt.as_ref();
        attempt.is_some_and(|a| a.current) || known.of(p.name()).busy == Busy::Starting
    };
    let initialized = parts.iter().filter(is_main).any(begun);
    let over = |p: &ContainerRef<'_>| {
        let exit = known.container(p.name()).last_exit();
        known.is_still(p.name()) && !known.of(p.name()).renewing && exit.is_some_and(|e| !restarts(pod, p, e))
    };
    if parts.iter().filter(is_main).all(over) {
        return None;
    }

    // Ephemeral containers do not wait for whatever holds up the Pod.
    wanted.extend(parts.iter().filter(|p| p.role == Role::Ephemeral && known.container(p.name()).attempt.is_none()));
    for part in parts.iter().filter(|p| matches!(p.role, Role::Init | Role::Sidecar)) {
        let container = known.container(part.name());
        match part.role {
            Role::Sidecar => {
                if !container.is_running() {
                    wanted.push(part);
                }
                if !initialized && !(container.is_running() && container.started) {
                    return Some(wanted);
                }
            }
            _ if initialized || container.succeeded() => {}
            _ => {
                match container.exit() {
                    Some(exit) if !restarts(pod, part, exit) => return None,
                    _ if !container.is_running() => wanted.push(part),
                    _ => {}
                }
                return Some(wanted);
            }
        }
    }
    for part in parts.iter().filter(is_main) {
        let (container, renewing) = (known.container(part.name()), known.of(part.name()).renewing);
        let may_restart = || container.last_exit().is_none_or(|exit| restarts(pod, part, exit));
        if !container.is_running() && (renewing || may_restart()) {
            wanted.push(part);
        }
    }
    Some(wanted)
}

/// Whether a container is restarted after this exit.
pub fn restarts(pod: &Pod, part: &ContainerRef<'_>, exit: &Exit) -> bool {
    let failed = exit.code != 0;
    match part.role {
        Role::Sidecar => true,
        Role::Ephemeral => false,
        Role::Init | Role::Main => {
            if let Some(rule) = matching_rule(&part.container, exit.code) {
                return rule == "Restart";
            }
            match part.container.restart_policy.as_deref().unwrap_or(pod.restart_policy()) {
                // A regular init container that succeeded is not run again.
                "Always" => failed || part.role == Role::Main,
                "OnFailure" => failed,
                _ => false,
            }
        }
    }
}

/// The action of the container's first restart rule that matches the exit code.
fn matching_rule(container: &ContainerSpec, code: i32) -> Option<&str> {
    let rules = container.restart_policy_rules.iter().flatten();
    rules
        .filter(|rule| {
            rule.exit_codes.as_ref().is_some_and(|codes| {
                let listed = codes.values.iter().flatten().any(|v| *v == code);
                listed == (codes.operator == "In")
            })
        })
        .map(|rule| rule.action.as_str())
        .next()
}

/// Stops a running container that is unhealthy, whose image changed, or whose resources can only change by a restart.
fn restart_running(plan: &mut PodActions, pod: &Pod, part: &ContainerRef<'_>, known: Inputs<'_>, now: Timestamp) {
    let (container, progress) = (known.container(part.name()), known.of(part.name()));
    if !container.is_running() || progress.busy == Busy::Starting {
        return;
    }
    let Some(attempt) = &container.attempt else { return };
    let changed = part.container.image.as_deref().is_some_and(|image| image != attempt.image);
    let (what, grace) = match &container.unhealthy {
        Some(unhealthy) => (unhealthy.why.clone(), unhealthy.grace),
        None if changed && part.role != Role::Ephemeral => ("definition changed".to_owned(), None),
        None if must_restart(part, container) => {
            let why = format!("Container {} resize requires restart", part.name());
            let (name, deadline) = (part.name().to_owned(), after(now, pod.grace().max(1)));
            let order = StopContainer { container: name, deadline, why, renew: true };
            return stop(plan, container, progress, order, now);
        }
        None if progress.renewing && progress.busy == Busy::Idle => {
            return plan.act(Action::Keep(part.name().to_owned()));
        }
        None => return,
    };
    let killed = Exit { code: 137, reason: String::new(), message: None, finished_at: now };
    let again = if changed || restarts(pod, part, &killed) { ", will be restarted" } else { "" };
    let grace = grace.unwrap_or(pod.grace()).max(1);
    let why = format!("Container {} {what}{again}", part.name());
    // An init container that exits with success on its signal has completed.
    let renew = changed && matches!(part.role, Role::Main | Role::Sidecar);
    let (name, deadline) = (part.name().to_owned(), after(now, grace));
    stop(plan, container, progress, StopContainer { container: name, deadline, why, renew }, now);
}

/// Applies allocated resources, after stopping containers that get them by a restart. Returns whether starts must wait.
fn resize(plan: &mut PodActions, parts: &[ContainerRef<'_>], known: Inputs<'_>, now: Timestamp) -> bool {
    let resize = &known.progress.resize;
    let Some(progress) = &resize.progress else { return false };
    let behind = || parts.iter().filter(|p| is_behind(p, known.container(p.name())));
    let moving = |p: &ContainerRef<'_>| matches!(known.of(p.name()).busy, Busy::Starting | Busy::Stopping { .. });
    let waits = resize.busy
        || parts.iter().filter(|p| matches!(p.role, Role::Main | Role::Sidecar)).any(moving)
        || behind().any(|p| must_restart(p, known.container(p.name())));
    if waits || !known.sandbox_is(SandboxState::Ready) {
        return waits;
    }
    let due = match &progress.step {
        failed @ Step::Failed { .. } => plan.due(failed.waits(now), now),
        Step::Done => behind().next().is_some(),
        Step::Undone | Step::Doing { .. } => true,
    };
    if due {
        plan.act(Action::Resize(behind().map(|p| p.name().to_owned()).collect()));
    } else if progress.step == Step::Done && !known.progress.containers.values().any(|c| c.renewing) {
        plan.act(Action::Resized);
    }
    due
}

/// Whether a container that is not running may start: its back-off and retry delays have passed.
fn may_start(plan: &mut PodActions, pod: &Pod, part: &ContainerRef<'_>, known: Inputs<'_>, now: Timestamp) -> bool {
    let progress = known.of(part.name());
    let exit = known.container(part.name()).last_exit().filter(|_| !progress.renewing);
    if let Some(until) = exit.and_then(|exit| progress.backoff.until(exit.finished_at, now)) {
        plan.wake(until);
        let delay = super::events::duration(progress.backoff.delay());
        let (name, full) = (part.name(), pod.full_name());
        let message = format!("back-off {delay} restarting failed container={name} pod={full}");
        if progress.waiting.as_ref().is_none_or(|w| w.message != message) {
            plan.act(Action::BackOff { container: name.to_owned(), message });
        }
        return false;
    }
    plan.due(progress.waits(now), now)
}

/// A Pod that should end: regular containers first, then sidecars in reverse order, each when all before it are gone or the grace
/// period is over (KEP-753); then the sandbox, the volumes, and everything else if the Pod was deleted.
fn end(plan: &mut PodActions, pod: &Pod, known: Inputs<'_>, ends: &Stop, now: Timestamp) {
    let parts = pod.parts();
    let is_still = |p: &ContainerRef<'_>| known.is_still(p.name());
    let late = now >= ends.deadline;
    let mut before = parts.iter().filter(|p| p.role != Role::Sidecar).all(is_still);
    for part in parts.iter().rev().filter(|p| !is_still(p)) {
        let mut deadline = ends.deadline;
        if part.role == Role::Sidecar {
            if !before && !late {
                plan.wake(ends.deadline);
                continue;
            }
            before = false;
            deadline = deadline.max(after(now, LEAST_GRACE.min(ends.grace)));
            if let Busy::Stopping { deadline: promised } = known.of(part.name()).busy {
                deadline = promised.min(deadline);
            }
        }
        let why = format!("Stopping container {}", part.name());
        let order = StopContainer { container: part.name().to_owned(), deadline, why, renew: false };
        stop(plan, known.container(part.name()), known.of(part.name()), order, now);
    }
    let progress = known.progress;
    if !parts.iter().all(is_still) || progress.is_writing() {
        return;
    }
    if known.sandbox_is(SandboxState::Ready) {
        return plan.act(Action::StopSandbox);
    }
    if !has_no_sandbox(known) {
        return;
    }
    let due = |plan: &mut PodActions, step: &Step| match step {
        Step::Undone => true,
        failed @ Step::Failed { .. } => plan.due(failed.waits(now), now),
        Step::Doing { .. } | Step::Done => false,
    };
    // Whoever removes it stops it.
    if !ends.remove && progress.sandbox.stop.has_failed() && due(plan, &progress.sandbox.stop) {
        return plan.act(Action::StopSandbox);
    }
    if ends.remove {
        if due(plan, &progress.removal) {
            plan.act(Action::Remove);
        }
    } else if progress.volumes != PodVolumes::Absent || progress.release.has_failed() && due(plan, &progress.release) {
        plan.act(Action::ReleaseVolumes);
    }
}

/// Whether no sandbox runs, nor is about to or just stopping.
fn has_no_sandbox(known: Inputs<'_>) -> bool {
    known.sandbox_is(SandboxState::None) || known.sandbox_is(SandboxState::Stopped)
}

/// Whether everything of the Pod, including its containers, has ended and been released.
pub fn ended(parts: &[ContainerRef<'_>], known: Inputs<'_>) -> bool {
    !known.intent.is_run()
        && parts.iter().all(|p| known.is_still(p.name()))
        && has_no_sandbox(known)
        && !known.progress.is_changing_parts()
}

/// Stops a container, unless a stop with the same or an earlier deadline is in progress, or one has just failed.
fn stop(
    plan: &mut PodActions,
    container: &Container,
    progress: &ContainerProgress,
    order: StopContainer,
    now: Timestamp,
) {
    let promised = match progress.busy {
        Busy::Stopping { deadline } => Some(deadline),
        _ => None,
    };
    let is_new = promised.is_none_or(|promised| promised > order.deadline);
    if container.is_running() && is_new && plan.due(pause(progress.stop_at, STOP_PAUSE, now), now) {
        plan.act(Action::Stop(order));
    }
}

/// The delay after a failed stop.
pub const STOP_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

/// `seconds` after `now`.
pub fn after(now: Timestamp, seconds: i64) -> Timestamp {
    later(now, std::time::Duration::from_secs(seconds.max(0) as u64))
}

/// An attempt's restart count as upstream counts it, across sandboxes.
pub fn restart_count(attempt: Option<&Attempt>) -> i32 {
    attempt.map_or(0, |a| a.restart as i32)
}
