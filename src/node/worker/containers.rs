//! What a worker has done to the containers of its Pod: pulled, started, stopped, and kept after all.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{ActionResult, PodEvent, Worker};
use crate::{
    Shared, events,
    executor::{ActionError, PullProgress},
    plan::StopContainer,
    pod_state::{Attempt, Busy, Image},
    spans::trouble,
    spec::PodExt,
    start, stop,
};

impl Worker {
    pub(super) fn pull(&mut self, container: String) {
        let (shared, pod, me) = (self.shared.clone(), self.pod.clone(), self.me.clone());
        self.seen.container_mut(&container).busy = Busy::Pulling;
        let (name, image) = (container.clone(), self.image_of(&container));
        let trace = self.trace.clone();
        let pull = self.spawn(async move {
            let progress = |progress| match progress {
                PullProgress::Pulling => {
                    drop(me.send(PodEvent::Done(ActionResult::Pulling { container: name.clone() })))
                }
                PullProgress::LeftOut(secrets) => {
                    let message = events::left_out(&secrets);
                    shared.recorder.warning(pod.about(None), "FailedToRetrieveImagePullSecret", message);
                }
            };
            let result = match pod.part(&name) {
                Some(part) => {
                    let work = shared.executor.pull(&pod, &part, &progress);
                    trace.step("Pull image", Some(&name), work, trouble).await
                }
                None => Err(ActionError::new("ErrImagePull", "the container has left the manifest")),
            };
            ActionResult::Pulled { container: name.clone(), image, result }
        });
        self.pulls.insert(container, pull);
    }

    pub(super) fn start(&mut self, container: String, now: Timestamp) {
        let seen = self.seen.container_mut(&container);
        seen.busy = Busy::Starting;
        if let Some(exit) = seen.attempt.as_ref().and_then(|a| a.exit.as_ref()).filter(|_| !seen.renewing) {
            seen.backoff.raise(exit.finished_at, now);
        }
        let order = start::order(&self.pod, &self.seen, &container);
        let restart = self.seen.container(&container).next_restart();
        let (shared, pod, trace) = (self.shared.clone(), self.pod.clone(), self.trace.clone());
        self.spawn(async move {
            let resources = pod.part(&container).and_then(|part| part.container.resources.clone());
            let result = match (pod.part(&container), order) {
                (Some(part), Ok(order)) => {
                    let work = shared.executor.start(&pod, &part, order);
                    let started = trace.step("Start container", Some(&container), work, trouble).await;
                    shared.started.tell();
                    started
                }
                (_, Err(trouble)) => Err(trouble),
                (None, _) => Err(ActionError::new("CreateContainerError", "the container has left the manifest")),
            };
            ActionResult::Started { container, restart, resources, result }
        });
    }

    pub(super) fn stop(&mut self, order: StopContainer) {
        let StopContainer { container, deadline, why, renew } = order;
        let seen = self.seen.container_mut(&container);
        let Some(attempt) = seen.attempt.clone() else { return };
        seen.busy = Busy::Stopping { deadline };
        if let Some(running) = self.stops.get(&container) {
            seen.renewing |= renew;
            running.send_replace(deadline);
            return;
        }
        let noted = std::mem::replace(&mut seen.renewing, renew);
        self.normal(Some(&container), "Killing", why);
        self.probes.stop(&container, true);
        let (deadline, shorter) = tokio::sync::watch::channel(deadline);
        self.stops.insert(container.clone(), deadline);
        let (shared, pod) = (self.shared.clone(), self.pod.clone());
        let ips = self.seen.sandbox.ips.clone();
        self.spawn(async move {
            if renew || noted {
                note(&shared, &pod, &attempt.id, renew).await;
            }
            let result = stop::stop(&shared, &pod, &container, &attempt.id, &ips, shorter).await;
            ActionResult::Stopped { container, id: attempt.id, result }
        });
    }

    /// Nothing asks for a new start of a container any more that was about to be stopped for one.
    pub(super) fn keep(&mut self, container: &str) {
        let seen = self.seen.container_mut(container);
        seen.renewing = false;
        let Some(attempt) = seen.attempt.clone() else { return };
        let (shared, pod) = (self.shared.clone(), self.pod.clone());
        self.spawn(async move {
            note(&shared, &pod, &attempt.id, false).await;
            ActionResult::Noted
        });
    }
}

/// Notes with a container whether it is stopped to be started anew.
async fn note(shared: &Shared, pod: &Pod, id: &str, renews: bool) {
    if let Err(why) = shared.executor.renews(pod, id, renews).await {
        tracing::warn!(pod = %pod.full_name(), id, renews, why, "failed to record that a container is to be restarted");
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
            resources: None,
        };
    };
    let (image, image_id) = (name.clone(), image_id.clone());
    Attempt { id, restart, image, image_id, started_at, exit: None, current: true, resources: None }
}
