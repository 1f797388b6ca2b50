//! What a worker makes of the ends of its actions.

use jiff::Timestamp;

use super::{ActionResult, Worker};
use crate::{
    backoff::{self, Backoff},
    events::millis,
    executor::{ActionError, Pulled, Started},
    pod_state::{Busy, Exit, Failure, Image, SandboxState, Step, Unhealthy},
    spec::PodExt,
    start,
};

impl Worker {
    pub(super) fn done(&mut self, done: ActionResult) {
        let now = self.now();
        match done {
            ActionResult::Volumes(result) => self.volumes_done(result, now),
            ActionResult::VolumesReleased(result) => {
                self.complain("release volumes", &result);
                self.seen.volumes = Step::Undone;
            }
            ActionResult::Sandbox(Ok(ips)) => {
                self.seen.sandbox.state = SandboxState::Ready;
                self.seen.sandbox.ips = ips;
                self.seen.sandbox.trouble = None;
            }
            ActionResult::Sandbox(Err(trouble)) => {
                let tries = self.seen.sandbox.trouble.map_or(0, |t| t.0);
                let Step::Failed { tries, retry_at } = Step::failed(tries, now) else { return };
                self.seen.sandbox.state = SandboxState::None;
                self.seen.sandbox.trouble = Some((tries, retry_at));
                let message = format!("Failed to create pod sandbox: {}", trouble.message);
                self.warning(None, "FailedCreatePodSandBox", message);
            }
            ActionResult::SandboxStopped(result) => {
                self.complain("stop the sandbox", &result);
                self.seen.lose_sandbox(now);
            }
            ActionResult::SandboxRemoved(result) => {
                self.complain("remove the sandbox", &result);
                self.seen.renew_sandbox();
            }
            ActionResult::Pulling { container } => {
                let image = self.image_of(&container);
                self.normal(Some(&container), "Pulling", format!("Pulling image \"{image}\""));
            }
            ActionResult::Pulled { container, image, result } => self.pulled(&container, image, result, now),
            ActionResult::Started { container, restart, resources, result } => {
                self.started(&container, restart, result, now);
                self.started_with(&container, restart, resources);
            }
            ActionResult::Resized(resized) => self.resized(resized, now),
            ActionResult::PostStart { container, id, result } => self.post_started(&container, &id, result),
            ActionResult::Stopped { container, id, result } => {
                self.stops.remove(&container);
                self.complain("stop a container", &result.as_ref().map(drop).map_err(Clone::clone));
                match result {
                    Ok(Some(exit)) => self.exited(&container, &id, exit),
                    Ok(None) => self.exited(&container, &id, Exit::unknown(now)),
                    // It may still run: the plan will stop it again, for as good a reason as it has then, or keep it.
                    Err(_) => {}
                }
                self.seen.container_mut(&container).busy = Busy::Idle;
            }
            ActionResult::Noted => {}
            ActionResult::Removed(Ok(())) => self.seen.removal = Step::Done,
            ActionResult::Removed(Err(why)) => {
                tracing::warn!(pod = %self.pod.full_name(), why, "failed to remove a Pod completely");
                self.seen.removal = Step::failed(self.publisher.removal_tries, now);
                self.publisher.removal_tries += 1;
            }
            ActionResult::Written(result) => {
                self.publisher.written(*result, &mut self.pod, &mut self.gone);
                self.pod = self.allocated.overlay(self.pod.clone());
            }
            ActionResult::Deleted(result) => self.publisher.deleted(result),
        }
        if self.gone {
            self.apply_deletion();
        }
    }

    fn complain(&self, what: &str, result: &Result<(), String>) {
        if let Err(why) = result {
            tracing::warn!(pod = %self.pod.full_name(), why, "failed to {what}");
        }
    }

    fn volumes_done(&mut self, result: Result<(), ActionError>, now: Timestamp) {
        if std::mem::take(&mut self.refreshing) {
            if let Err(trouble) = &result {
                self.warning(None, &trouble.reason, trouble.message.clone());
            }
            if std::mem::take(&mut self.refresh_again) {
                self.resync();
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

    pub(super) fn image_of(&self, container: &str) -> String {
        self.pod.part(container).and_then(|p| p.container.image.clone()).unwrap_or_default()
    }

    fn pulled(&mut self, container: &str, name: String, result: Result<Pulled, ActionError>, now: Timestamp) {
        self.pulls.remove(container);
        let seen = self.seen.container_mut(container);
        seen.busy = Busy::Idle;
        match result {
            Ok(pulled) => {
                // What a start failed with stays true until one succeeds.
                let of_starts = ["CrashLoopBackOff", "CreateContainerError"];
                if seen.waiting.as_ref().is_some_and(|w| !of_starts.contains(&w.reason.as_str())) {
                    seen.waiting = None;
                }
                seen.retry_at = None;
                seen.image = Image::Ready { name: name.clone(), id: pulled.id };
                self.pull_backoff.remove(&name);
                let message = match pulled.pulled {
                    None => {
                        format!("Container image \"{name}\" already present on machine and can be accessed by the pod")
                    }
                    Some((took, waited)) => {
                        self.startup.pulled(waited);
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
            Err(trouble) => self.pull_failed(container, &name, trouble, now),
        }
    }

    /// A pull has failed: told as its own reason first, as ImagePullBackOff while it waits.
    fn pull_failed(&mut self, container: &str, name: &str, trouble: ActionError, now: Timestamp) {
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

    fn started(&mut self, container: &str, restart: u32, result: Result<Started, ActionError>, now: Timestamp) {
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
                        ActionResult::PostStart { container, id, result }
                    });
                } else {
                    self.post_started(container, &id, Ok(()));
                }
            }
            Err(trouble) => {
                let label = if trouble.reason == "StartError" { "RunContainerError" } else { &trouble.reason };
                let message = format!("Error: {}", trouble.message);
                tracing::info!(pod = %self.pod.full_name(), container, label, message, "a container failed to start");
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
