//! The start of a container: its parameters and its result.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{
    intent::Failure,
    observed::{Attempt, Exit, Image, Observed},
    progress::{Busy, Progress},
};
use crate::{
    backoff::later,
    executor::{ActionError, Reason, StartOrder},
    spec::PodExt,
};

/// The delay after a container could not be created.
const RETRY: Duration = Duration::from_secs(10);

/// The parameters for the next start of a container.
///
/// # Errors
///
/// The container whose processes it should see is not there yet.
pub fn order(pod: &Pod, seen: &Observed, progress: &Progress, container: &str) -> Result<StartOrder, ActionError> {
    let target = match pod.part(container).and_then(|part| part.target.map(str::to_owned)) {
        Some(target) => Some(started(seen, target)?),
        None => None,
    };
    let known = seen.container(container);
    Ok(StartOrder {
        target,
        sandbox: seen.sandbox.attempt,
        restart: known.next_restart(),
        backoff: progress.container(container).backoff,
        image_id: match &known.image {
            Image::Ready { id, .. } => id.clone(),
            Image::Unknown => String::new(),
        },
        ips: seen.sandbox.ips.clone(),
    })
}

/// A container started in the current sandbox, with its restart count.
fn started(seen: &Observed, name: String) -> Result<(String, u32), ActionError> {
    let attempt = seen.container(&name).attempt.as_ref().filter(|a| a.current && !a.id.is_empty());
    match attempt.map(|a| a.restart) {
        Some(restart) => Ok((name, restart)),
        None => Err(ActionError::new(
            Reason::CreateContainerConfigError,
            format!("unable to find target container {name:?}"),
        )),
    }
}

/// The container runs: this attempt is the newest now. The one two attempts back is to be removed.
pub fn succeeded(
    (seen, progress): (&mut Observed, &mut Progress),
    container: &str,
    restart: u32,
    id: String,
    at: Timestamp,
) -> Option<Attempt> {
    let (known, progress) = (seen.container_mut(container), progress.container_mut(container));
    progress.waiting = None;
    progress.retry_at = None;
    progress.renewing = false;
    known.unhealthy = None;
    known.started = false;
    known.ready = false;
    let new = attempt(id, restart, &known.image, Some(at));
    let before = known.attempt.replace(new);
    std::mem::replace(&mut known.last, before).filter(|old| old.current)
}

/// The container does not run. If it reached execution, that counts as an attempt.
pub fn failed(
    (seen, progress): (&mut Observed, &mut Progress),
    container: &str,
    restart: u32,
    trouble: &ActionError,
    now: Timestamp,
) {
    let (known, progress) = (seen.container_mut(container), progress.container_mut(container));
    if progress.busy == Busy::Starting {
        progress.busy = Busy::Idle;
    }
    let mut waiting = trouble.failure();
    if trouble.reason == Reason::StartError {
        waiting = Failure { reason: "RunContainerError".into(), ..waiting };
        // The restart is done: from here its exit and the back-off count.
        progress.renewing = false;
        let mut new = attempt(String::new(), restart, &known.image, None);
        let message = Some(trouble.message.clone());
        new.exit = Some(Exit { code: 128, reason: "StartError".into(), message, finished_at: now });
        known.last = known.attempt.replace(new);
    } else {
        progress.retry_at = Some(later(now, RETRY));
        if trouble.reason == Reason::CreateContainerError {
            // The image may be what is missing: the next try looks it up again, as upstream.
            known.image = Image::Unknown;
        }
    }
    progress.waiting = Some(waiting);
}

/// A new attempt without any results.
fn attempt(id: String, restart: u32, image: &Image, started_at: Option<Timestamp>) -> Attempt {
    let (image, image_id) = match image {
        Image::Ready { name, id } => (name.clone(), id.clone()),
        Image::Unknown => Default::default(),
    };
    Attempt { id, restart, image, image_id, started_at, exit: None, current: true, resources: None }
}
