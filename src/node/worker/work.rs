//! Longer operations: each is done once, and reports its result.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{mpsc, watch};

use crate::{
    Shared, events,
    executor::{ActionError, ExecutorError, PullProgress, Reason, StartOrder, Started},
    hooks,
    pod::{
        effect::Work,
        event::{ActionResult, PodEvent},
    },
    publish,
    spans::{StartTrace, trouble},
    spec::PodExt,
    stop,
};

/// The inputs of an operation.
pub(super) struct Run {
    pub shared: Arc<Shared>,
    pub pod: Arc<Pod>,
    pub me: mpsc::UnboundedSender<PodEvent>,
    pub trace: StartTrace,
}

impl Run {
    /// `deadline`: of a stop; it may be moved earlier meanwhile.
    pub async fn work(self, work: Work, deadline: Option<watch::Receiver<Timestamp>>) -> ActionResult {
        let Run { shared, pod, trace, .. } = &self;
        let (executor, client) = (&shared.executor, &shared.client);
        match work {
            Work::MountVolume { volume } => {
                let work = executor.mount_volume(pod, &volume);
                let result = trace.step("Mount volume", None, work, trouble).await;
                ActionResult::VolumeMounted { volume, result }
            }
            Work::RefreshVolumes { volumes } => {
                ActionResult::VolumesRefreshed(executor.refresh_volumes(pod, &volumes).await)
            }
            Work::ReleaseVolumes => {
                let result = executor.release_volumes(pod).await;
                self.complain("release volumes", result.as_ref().err());
                ActionResult::VolumesReleased(result)
            }
            Work::StartSandbox { attempt, history } => {
                let work = executor.start_sandbox(pod, attempt, &history);
                ActionResult::Sandbox(trace.step("Start sandbox", None, work, trouble).await)
            }
            Work::StopSandbox { attempt } => {
                let result = executor.stop_sandbox(pod, attempt).await;
                self.complain("stop the sandbox", result.as_ref().err());
                ActionResult::SandboxStopped(result)
            }
            Work::RemoveSandbox { attempt } => {
                let result = executor.remove_sandbox(pod, attempt).await;
                self.complain("remove the sandbox", result.as_ref().err());
                ActionResult::SandboxRemoved(result)
            }
            Work::Pull { container, image } => self.pull(container, image).await,
            Work::Start { container, order } => self.start(container, order).await,
            Work::PostStart { container, id, ips } => {
                let result = hooks::post_start(shared, pod, &container, &id, &ips).await;
                ActionResult::PostStart { container, id, result }
            }
            Work::Stop { container, id, ips, deadline: at, note } => {
                if let Some(renew) = note {
                    self.note(&id, renew).await;
                }
                // A constant one, for a caller without a channel.
                let (_held, fixed) = watch::channel(at);
                let deadline = deadline.unwrap_or(fixed);
                let result = stop::stop(shared, pod, &container, &id, &ips, deadline).await;
                self.complain("stop a container", result.as_ref().err());
                ActionResult::Stopped { container, id, result }
            }
            Work::Note { id, renew } => {
                self.note(&id, renew).await;
                ActionResult::Noted
            }
            Work::Resize { sandbox, containers } => {
                let resized = executor.resize(pod, sandbox, containers).await;
                self.complain("resize", resized.result.as_ref().err());
                ActionResult::Resized(resized)
            }
            Work::Remove { attempt } => {
                let result = executor.remove(pod, attempt).await;
                self.complain("remove it completely", result.as_ref().err());
                ActionResult::Removed(result)
            }
            Work::WriteStatus { target, status } => {
                let result = publish::write(client, &target, status).await;
                match &result {
                    Err(status) if status.code == 422 => {
                        tracing::error!(%status, pod = %pod.full_name(), "the server rejected the Pod's status");
                    }
                    Err(status) => tracing::debug!(pod = %pod.full_name(), %status, "the Pod's status was not written"),
                    Ok(_) => {}
                }
                ActionResult::Written(Box::new(result))
            }
            Work::ReadStatus { target } => ActionResult::Read(Box::new(publish::read(client, &target).await)),
            Work::DeleteObject { target } => {
                let result = publish::delete(client, &target).await;
                if let Err(status) = &result
                    && !status.is_not_found()
                    && !status.is_conflict()
                {
                    tracing::warn!(%status, "failed to delete a terminated Pod");
                }
                ActionResult::Deleted(result)
            }
        }
    }

    async fn pull(&self, container: String, image: String) -> ActionResult {
        let Run { shared, pod, me, trace } = self;
        let progress = |progress| match progress {
            PullProgress::Pulling => {
                me.send(PodEvent::Done(ActionResult::Pulling { container: container.clone() })).ok();
            }
            PullProgress::LeftOut(secrets) => {
                let message = events::left_out(&secrets);
                shared.recorder.warning(pod.about(None), "FailedToRetrieveImagePullSecret", message);
            }
        };
        let result = match pod.part(&container) {
            Some(part) => {
                let work = shared.executor.pull(pod, &part, &progress);
                trace.step("Pull image", Some(&container), work, trouble).await
            }
            None => Err(ActionError::new(Reason::ErrImagePull, "the container has left the manifest")),
        };
        ActionResult::Pulled { container, image, result }
    }

    async fn start(&self, container: String, order: StartOrder) -> ActionResult {
        let Run { shared, pod, trace, .. } = self;
        let restart = order.restart;
        let part = pod.part(&container);
        let resources = part.as_ref().and_then(|part| part.container.resources.clone());
        let result: Result<Started, ActionError> = match &part {
            Some(part) => {
                let work = shared.executor.start(pod, part, order);
                let started = trace.step("Start container", Some(&container), work, trouble).await;
                shared.started.tell();
                started
            }
            None => Err(ActionError::new(Reason::CreateContainerError, "the container has left the manifest")),
        };
        if let Err(ActionError { reason, message }) = &result {
            tracing::info!(pod = %pod.full_name(), container, %reason, message, "a container failed to start");
        }
        ActionResult::Started { container, restart, resources, result }
    }

    /// Records with a container whether it is being stopped for a restart.
    async fn note(&self, id: &str, renews: bool) {
        let pod = &self.pod;
        if let Err(why) = self.shared.executor.renews(pod, id, renews).await {
            let message = "failed to record that a container is to be restarted";
            tracing::warn!(pod = %pod.full_name(), id, renews, %why, "{message}");
        }
    }

    fn complain(&self, what: &str, why: Option<&ExecutorError>) {
        if let Some(why) = why {
            tracing::warn!(pod = %self.pod.full_name(), %why, "failed to {what}");
        }
    }
}
