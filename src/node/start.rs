//! The start of a container as a worker sees it: what is ordered, what is known after it, the postStart hook.

use std::{net::IpAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{
    Shared,
    backoff::later,
    executor::{ActionError, StartOrder},
    hooks,
    pod_state::{Busy, Exit, Failure, Image, PodState},
    spec::PodExt,
    worker::attempt,
};

/// How long to wait after a container could not be created.
const RETRY: Duration = Duration::from_secs(10);
/// A postStart hook has no limit of its own upstream; a container that hangs in it shall not hang forever.
const POST_START: Duration = Duration::from_secs(3600);

/// What to tell the executor for the next start of a container. It cannot be told where the container whose processes it
/// shall see is not there yet.
pub fn order(pod: &Pod, seen: &PodState, container: &str) -> Result<StartOrder, ActionError> {
    let target = match pod.part(container).and_then(|part| part.target.map(str::to_owned)) {
        Some(target) => Some(started(seen, target)?),
        None => None,
    };
    let known = seen.container(container);
    Ok(StartOrder {
        target,
        sandbox: seen.sandbox.attempt,
        restart: known.next_restart(),
        backoff: known.backoff,
        image_id: match &known.image {
            Image::Ready { id, .. } => id.clone(),
            Image::Unknown => String::new(),
        },
        ips: seen.sandbox.ips.clone(),
    })
}

/// A container that has been started in the present sandbox, with its restart count.
fn started(seen: &PodState, name: String) -> Result<(String, u32), ActionError> {
    let attempt = seen.container(&name).attempt.as_ref().filter(|a| a.current && !a.id.is_empty());
    match attempt.map(|a| a.restart) {
        Some(restart) => Ok((name, restart)),
        None => {
            Err(ActionError::new("CreateContainerConfigError", format!("unable to find target container {name:?}")))
        }
    }
}

/// The container runs: its attempt is the newest now. What lies two attempts back is forgotten.
pub fn succeeded(
    seen: &mut PodState,
    shared: &Arc<Shared>,
    pod: &Arc<Pod>,
    container: &str,
    restart: u32,
    id: String,
    at: Timestamp,
) {
    let known = seen.container_mut(container);
    known.waiting = None;
    known.retry_at = None;
    known.unhealthy = None;
    known.renewing = false;
    known.started = false;
    known.ready = false;
    let new = attempt(id, restart, &known.image, Some(at));
    let before = known.attempt.replace(new);
    if let Some(old) = std::mem::replace(&mut known.last, before).filter(|old| old.current) {
        let (shared, pod) = (shared.clone(), pod.clone());
        tokio::spawn(async move { shared.executor.forget(&pod, &old).await });
    }
}

/// The container does not run. If it got as far as to be executed, that counts as an attempt.
pub fn failed(seen: &mut PodState, container: &str, restart: u32, trouble: &ActionError, now: Timestamp) {
    let known = seen.container_mut(container);
    if known.busy == Busy::Starting {
        known.busy = Busy::Idle;
    }
    let mut waiting = trouble.failure();
    if trouble.reason == "StartError" {
        waiting = Failure { reason: "RunContainerError".into(), ..waiting };
        // The new start has been had: from here its end and the back-off count.
        known.renewing = false;
        let mut new = attempt(String::new(), restart, &known.image, None);
        let message = Some(trouble.message.clone());
        new.exit = Some(Exit { code: 128, reason: "StartError".into(), message, finished_at: now });
        known.last = known.attempt.replace(new);
    } else {
        known.retry_at = Some(later(now, RETRY));
        if trouble.reason == "CreateContainerError" {
            // The image may be what has gone: the next try looks for it again, as upstream's.
            known.image = Image::Unknown;
        }
    }
    known.waiting = Some(waiting);
}

/// Runs the container's postStart hook; the words for its event if it fails.
pub async fn post_start(
    shared: &Arc<Shared>,
    pod: &Arc<Pod>,
    container: &str,
    id: &str,
    ips: &[IpAddr],
) -> Result<(), String> {
    let Some(part) = pod.part(container) else { return Ok(()) };
    let Some(hook) = part.container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else { return Ok(()) };
    hooks::run(shared, pod, &part.container, id, ips, hook, POST_START)
        .await
        .map_err(|why| format!("PostStartHook failed: {why}"))
}
