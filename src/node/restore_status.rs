//! Restores what the server knows of a Pod and the machine does not. Pure.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

use super::{
    plan,
    pod::{
        observed::{Attempt, Container, Exit, Observed},
        progress::{ContainerProgress, Progress},
    },
    spec::{ContainerRef, PodExt, Role},
    status::{CONTAINER_ID, container_id},
};

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    status
        .flat_map(|s| [&s.init_container_statuses, &s.container_statuses, &s.ephemeral_container_statuses])
        .flatten()
        .flatten()
}

/// For a Pod found on the machine: which containers had started and were ready, and when the Pod began.
pub fn carry_over(pod: &Pod, seen: &mut Observed) {
    for known in statuses(pod) {
        let container = seen.container_mut(&known.name);
        let same = container.attempt.as_ref().is_some_and(|a| known.container_id == Some(container_id(&a.id)));
        if same && container.is_running() {
            container.started = known.started == Some(true);
            container.ready = known.ready;
        }
    }
    if let Some(start) = pod.status.as_ref().and_then(|s| s.start_time.as_ref()) {
        seen.start_time = Some(start.0);
    }
}

/// For a Pod that was not found: how its containers exited, and how often they were started. One that was running has exited since,
/// with unknown result. So a container that must not run twice does not, even after a backup is restored.
pub fn recall(pod: &Pod, now: Timestamp) -> (Observed, Progress) {
    let (mut seen, mut progress) = (Observed::default(), Progress::default());
    if pod.is_terminal() {
        return (seen, progress);
    }
    let parts = pod.parts();
    let by_name: HashMap<&str, &ContainerRef<'_>> = parts.iter().map(|part| (part.name(), part)).collect();
    for known in statuses(pod) {
        if let Some(attempt) = last_attempt(known, now) {
            let renewing = by_name.get(&*known.name).is_some_and(|part| was_renewing(pod, part, known, &attempt));
            let container = Container { attempt: Some(attempt), ..Container::default() };
            seen.containers.insert(known.name.clone(), container);
            progress.containers.insert(known.name.clone(), ContainerProgress { renewing, ..Default::default() });
        }
    }
    (seen, progress)
}

/// Whether a container was to be restarted although its restart policy would not.
fn was_renewing(pod: &Pod, part: &ContainerRef<'_>, known: &ContainerStatus, attempt: &Attempt) -> bool {
    let waits = known.state.as_ref().is_some_and(|state| state.waiting.is_some());
    let may_renew = matches!(part.role, Role::Main | Role::Sidecar);
    waits && may_renew && attempt.exit.as_ref().is_some_and(|exit| !plan::restarts(pod, part, exit))
}

fn last_attempt(known: &ContainerStatus, now: Timestamp) -> Option<Attempt> {
    let (state, last) = (known.state.as_ref(), known.last_state.as_ref());
    let ran = state.and_then(|s| s.running.as_ref());
    let ended = state.and_then(|s| s.terminated.as_ref()).or_else(|| last.and_then(|s| s.terminated.as_ref()));
    let (id, started_at, exit) = match (ran, ended) {
        (Some(ran), _) => (known.container_id.as_ref(), ran.started_at.as_ref(), Exit::unknown(now)),
        (None, Some(ended)) => (ended.container_id.as_ref(), ended.started_at.as_ref(), exit(ended)),
        (None, None) => return None,
    };
    let id = id.map(|id| id.strip_prefix(CONTAINER_ID).unwrap_or(id).to_owned());
    Some(Attempt {
        id: id.unwrap_or_default(),
        restart: u32::try_from(known.restart_count).unwrap_or(0),
        image: known.image.clone(),
        image_id: known.image_id.clone(),
        started_at: started_at.map(|at| at.0),
        exit: Some(exit),
        current: false,
        resources: None,
    })
}

fn exit(ended: &ContainerStateTerminated) -> Exit {
    Exit {
        code: ended.exit_code,
        reason: ended.reason.clone().unwrap_or_default(),
        message: ended.message.clone(),
        finished_at: ended.finished_at.as_ref().map_or(Timestamp::UNIX_EPOCH, |at| at.0),
    }
}
