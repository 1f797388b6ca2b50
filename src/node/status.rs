//! Computes a Pod's status: `(Pod, Inputs) -> PodStatus`. Pure; wording and reasons are upstream's.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
        HostIP, Pod, PodIP, PodStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    conditions,
    plan::{self, restart_count},
    pod::{
        inputs::Inputs,
        observed::{Attempt, Exit, SandboxState},
        progress::{Busy, ContainerProgress},
    },
    qos,
    spec::{ContainerRef, PodExt, Role},
};

/// The node's part of every status.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The node's addresses, the preferred one first; at most one per family, as for a Pod.
    pub addresses: Vec<IpAddr>,
}

impl Host {
    /// For a node with these addresses, the preferred one first.
    pub fn new(all: &[IpAddr]) -> Host {
        let first = |is_ipv4: bool| all.iter().position(|ip| ip.is_ipv4() == is_ipv4);
        let mut chosen: Vec<usize> = [first(true), first(false)].into_iter().flatten().collect();
        chosen.sort_unstable();
        Host { addresses: chosen.into_iter().map(|at| all[at]).collect() }
    }
}

/// The status of `pod` as `known`. `pod.status` is the latest known one: it supplies what others own (unknown conditions) and what
/// must never go backwards (a terminal phase, transition times).
pub fn status(pod: &Pod, known: Inputs<'_>, host: &Host, now: Timestamp) -> PodStatus {
    let Inputs { intent, seen, .. } = known;
    let old = pod.status.clone().unwrap_or_default();
    if pod.is_terminal() && known.is_untouched() {
        // Nothing of it is left here: the final status was reported when it ended.
        return old;
    }
    let parts = pod.parts();
    let course = Course::of(&parts, known);
    let statuses = |roles: &[Role]| -> Option<Vec<ContainerStatus>> {
        let of_roles = parts.iter().enumerate().filter(|(_, p)| roles.contains(&p.role));
        let all: Vec<_> = of_roles.map(|(place, p)| container_status(pod, place, p, known, &course)).collect();
        (!all.is_empty()).then_some(all)
    };
    let init = statuses(&[Role::Init, Role::Sidecar]);
    let main = statuses(&[Role::Main]);
    let ephemeral = statuses(&[Role::Ephemeral]);

    let phase = match old.phase.as_deref() {
        Some(terminal @ ("Succeeded" | "Failed")) => terminal.to_owned(),
        _ => phase(pod, &parts, known, course.ended).to_owned(),
    };
    let failure = intent.stop().and_then(|stop| stop.failure.clone());
    let ips: Vec<String> = match pod.host_network() {
        true if !known.sandbox_is(SandboxState::None) => host.addresses.iter().map(IpAddr::to_string).collect(),
        true => Vec::new(),
        false => seen.sandbox.ips.iter().map(IpAddr::to_string).collect(),
    };
    // A Pod that is ending or has ended keeps its addresses in the status, as upstream. One between two sandboxes has none: its old
    // addresses may be reassigned.
    let ends = !intent.is_run() || ["Succeeded", "Failed"].contains(&phase.as_str());
    let kept = |new: Vec<String>| if new.is_empty() && ends { old_ips(&old) } else { new };
    let ips = kept(ips);
    let mut status = PodStatus {
        host_ip: host.addresses.first().map(IpAddr::to_string),
        host_ips: Some(host.addresses.iter().map(|a| HostIP { ip: a.to_string() }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: (!ips.is_empty()).then(|| ips.into_iter().map(|ip| PodIP { ip }).collect()),
        start_time: old.start_time.clone().or(seen.start_time.map(Time)),
        qos_class: old.qos_class.clone().or_else(|| Some(qos::class(pod).as_str().to_owned())),
        reason: failure.as_ref().map(|f| f.reason.clone()).or_else(|| old.reason.clone()),
        message: failure.as_ref().map(|f| f.message.clone()).or_else(|| old.message.clone()),
        observed_generation: pod.metadata.generation,
        init_container_statuses: init,
        container_statuses: main,
        ephemeral_container_statuses: ephemeral,
        phase: Some(phase),
        conditions: None,
        ..old.clone()
    };
    if failure.is_some() {
        status.phase = Some("Failed".into());
    }
    limit_messages(&mut status);
    status.conditions = Some(conditions::conditions(pod, &parts, known, &status, old.conditions.as_deref(), now));
    status
}

/// The progress of a Pod's containers: inputs to each container's status, computed once.
struct Course {
    /// The Pod should end.
    stopping: bool,
    /// The node's admission rejected it: nothing was ever started.
    refused: bool,
    /// Everything of it has ended.
    ended: bool,
    /// The index of the last init container that was tried.
    last_tried: Option<usize>,
    /// All init containers have completed, or a later container was tried.
    initialized: bool,
}

impl Course {
    fn of(parts: &[ContainerRef<'_>], known: Inputs<'_>) -> Course {
        let tried = |p: &ContainerRef<'_>| known.container(p.name()).attempt.is_some();
        let is_init = |p: &ContainerRef<'_>| matches!(p.role, Role::Init | Role::Sidecar);
        let done = |p: &ContainerRef<'_>| {
            let last = known.container(p.name());
            last.succeeded() || last.started
        };
        let failed = known.intent.stop().is_some_and(|stop| stop.failure.is_some());
        Course {
            stopping: !known.intent.is_run(),
            refused: failed && known.sandbox_is(SandboxState::None) && known.is_untouched(),
            ended: plan::ended(parts, known),
            last_tried: parts.iter().rposition(|p| is_init(p) && tried(p)),
            initialized: parts.iter().rfind(|p| is_init(p)).is_none_or(done)
                || parts.iter().any(|p| !is_init(p) && tried(p)),
        }
    }

    /// Whether a container at this index that never ran should have: those after an init container that did not succeed were not
    /// due, as upstream computes it.
    fn was_due(&self, place: usize, part: &ContainerRef<'_>) -> bool {
        match part.role {
            Role::Init | Role::Sidecar => self.last_tried.is_some_and(|last| place < last),
            Role::Main | Role::Ephemeral => self.initialized,
        }
    }
}

fn old_ips(old: &PodStatus) -> Vec<String> {
    old.pod_ips.iter().flatten().map(|p| p.ip.clone()).collect()
}

/// Upstream's `getPhase`.
fn phase(pod: &Pod, parts: &[ContainerRef<'_>], known: Inputs<'_>, over: bool) -> &'static str {
    let (mut pending_init, mut failed_init) = (0, 0);
    let (mut waiting, mut running, mut stopped, mut succeeded) = (0, 0, 0, 0);
    let begun = parts.iter().filter(|p| p.role == Role::Main).any(|p| known.container(p.name()).attempt.is_some());
    for part in parts {
        let container = known.container(part.name());
        let last_exit = container.last_exit();
        match part.role {
            Role::Ephemeral => {}
            Role::Sidecar if begun || container.started => {}
            Role::Init | Role::Sidecar => match last_exit {
                _ if container.is_running() => pending_init += 1,
                Some(exit) if exit.code == 0 => {}
                Some(_) => failed_init += usize::from(part.role == Role::Init),
                None => pending_init += 1,
            },
            // It restarts in a moment: it has not ended.
            Role::Main if container.is_running() || (known.of(part.name()).renewing && !over) => running += 1,
            Role::Main => match last_exit {
                Some(exit) => {
                    stopped += 1;
                    succeeded += usize::from(exit.code == 0);
                }
                None => waiting += 1,
            },
        }
    }
    let total = waiting + running + stopped;
    if over {
        // Nothing will run any more: whatever did not succeed has failed.
        return if total == succeeded && failed_init == 0 { "Succeeded" } else { "Failed" };
    }
    match () {
        () if failed_init > 0 && pod.restart_policy() == "Never" => "Failed",
        () if pending_init + failed_init > 0 || waiting > 0 => "Pending",
        () if running > 0 => "Running",
        () if stopped == 0 => "Pending",
        () if pod.restart_policy() == "Always" => "Running",
        () if stopped == succeeded => "Succeeded",
        () if pod.restart_policy() == "Never" => "Failed",
        () => "Running",
    }
}

fn container_status(
    pod: &Pod,
    place: usize,
    part: &ContainerRef<'_>,
    known: Inputs<'_>,
    course: &Course,
) -> ContainerStatus {
    let container = known.container(part.name());
    let attempt = container.attempt.as_ref();
    let (state, last_state) = states(pod, place, part, known, course);
    let running = container.is_running();
    let done = part.role == Role::Init && container.succeeded();
    // A container that is not running shows the resources of its next start.
    let given = part.container.resources.clone().unwrap_or_default();
    let has = attempt.filter(|_| running).and_then(|a| a.resources.as_ref());
    ContainerStatus {
        name: part.name().to_owned(),
        image: attempt.map(|a| a.image.clone()).or(part.container.image.clone()).unwrap_or_default(),
        image_id: attempt.map(|a| a.image_id.clone()).unwrap_or_default(),
        container_id: attempt.filter(|a| !a.id.is_empty()).map(|a| container_id(&a.id)),
        restart_count: restart_count(attempt),
        ready: match part.role {
            Role::Init => done,
            // Ephemeral containers have no probes and do not count.
            Role::Ephemeral => false,
            Role::Sidecar | Role::Main => running && container.started && container.ready,
        },
        started: (part.role != Role::Ephemeral).then_some(running && container.started),
        allocated_resources: (part.role != Role::Ephemeral).then(|| given.requests.clone()).flatten(),
        resources: (part.role != Role::Ephemeral).then(|| has.cloned().unwrap_or(given)),
        state: Some(state),
        last_state: Some(last_state.unwrap_or_default()),
        ..ContainerStatus::default()
    }
}

/// The prefix of container ids in `containerID`.
pub const CONTAINER_ID: &str = "podwright://";

/// `podwright://<id>`.
pub fn container_id(id: &str) -> String {
    format!("{CONTAINER_ID}{id}")
}

/// `state` and `lastState`.
fn states(
    pod: &Pod,
    place: usize,
    part: &ContainerRef<'_>,
    known: Inputs<'_>,
    course: &Course,
) -> (ContainerState, Option<ContainerState>) {
    let (container, progress) = (known.container(part.name()), known.of(part.name()));
    let last = container.last.as_ref().and_then(|a| a.exit.as_ref().map(|exit| terminated(a, exit)));
    let default_reason = match pod.spec().init_containers.as_ref().is_some_and(|i| !i.is_empty()) {
        true if part.role != Role::Ephemeral => "PodInitializing",
        _ => "ContainerCreating",
    };
    let Some(attempt) = &container.attempt else {
        let over = course.ended && known.seen.start_time.is_some() && !course.refused;
        if over && course.was_due(place, part) {
            let exit = Exit { finished_at: Timestamp::UNIX_EPOCH, ..Exit::unknown(Timestamp::UNIX_EPOCH) };
            return (never_ran(&exit), last);
        }
        return (waiting(progress, default_reason), last);
    };
    match &attempt.exit {
        None => {
            let running = ContainerStateRunning { started_at: attempt.started_at.map(Time) };
            (ContainerState { running: Some(running), ..ContainerState::default() }, last)
        }
        // It waits to run again: this exit becomes its last state.
        Some(exit)
            if !course.stopping
                && (progress.renewing
                    || (progress.waiting.is_some() || !attempt.current) && plan::restarts(pod, part, exit)) =>
        {
            (waiting(progress, default_reason), Some(terminated(attempt, exit)))
        }
        Some(exit) => (terminated(attempt, exit), last),
    }
}

/// Maximum characters of a waiting message: whatever its source, the status of a Pod with many containers must stay acceptable to
/// the server.
const LONGEST_TROUBLE: usize = 4096;

fn waiting(progress: &ContainerProgress, default_reason: &str) -> ContainerState {
    let waiting = match &progress.waiting {
        Some(trouble) if progress.busy != Busy::Starting => ContainerStateWaiting {
            reason: Some(trouble.reason.clone()),
            message: Some(trouble.message.chars().take(LONGEST_TROUBLE).collect()).filter(|m: &String| !m.is_empty()),
        },
        _ => ContainerStateWaiting { reason: Some(default_reason.to_owned()), message: None },
    };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

fn terminated(attempt: &Attempt, exit: &Exit) -> ContainerState {
    let terminated = ContainerStateTerminated {
        container_id: Some(container_id(&attempt.id)).filter(|_| !attempt.id.is_empty()),
        exit_code: exit.code,
        reason: Some(exit.reason.clone()),
        message: exit.message.clone().filter(|m| !m.is_empty()),
        started_at: attempt.started_at.or(Some(Timestamp::UNIX_EPOCH)).map(Time),
        finished_at: Some(Time(exit.finished_at)),
        signal: None,
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

fn never_ran(exit: &Exit) -> ContainerState {
    let terminated = ContainerStateTerminated {
        exit_code: exit.code,
        reason: Some(exit.reason.clone()),
        message: exit.message.clone(),
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

/// Limits termination messages as upstream: 4096 bytes for one, 12288 for all containers together.
fn limit_messages(status: &mut PodStatus) {
    const ONE: usize = 4096;
    const ALL: usize = 12288;
    let lists = [&mut status.init_container_statuses, &mut status.container_statuses];
    let mut messages: Vec<&mut String> = lists
        .into_iter()
        .flat_map(|list| list.iter_mut().flatten())
        .flat_map(|c| [c.state.as_mut(), c.last_state.as_mut()])
        .flatten()
        .filter_map(|state| state.terminated.as_mut()?.message.as_mut())
        .collect();
    let share = (ALL / messages.len().max(1)).min(ONE);
    for message in &mut messages {
        truncate(message, share);
    }
}

/// Truncates at a character boundary.
pub fn truncate(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
    }
}
