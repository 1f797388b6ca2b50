//! The results of a Pod's operations.

use std::net::IpAddr;

use super::{Turn, event::ActionResult, observed::SandboxState, progress::Refresh, volumes::PodVolumes};
use crate::executor::{ActionError, ExecutorError};

impl Turn<'_> {
    pub(super) fn done(&mut self, result: ActionResult) {
        let now = self.now;
        let progress = &mut self.state.progress;
        match result {
            ActionResult::VolumeMounted { volume, result } => {
                progress.volumes.ended(&volume, result.is_ok(), now);
                self.failed_mounts(result.err());
            }
            ActionResult::VolumesRefreshed(failed) => self.refreshed(failed),
            ActionResult::VolumesReleased(result) => self.released(&result),
            ActionResult::Sandbox(result) => self.sandbox_started(result),
            ActionResult::SandboxStopped(result) => self.sandbox_stopped(&result),
            ActionResult::SandboxRemoved(Ok(())) => self.state.renew_sandbox(),
            ActionResult::SandboxRemoved(Err(why)) => {
                self.state.progress.sandbox.renewal.fail(now);
                self.warning(None, "FailedKillPod", format!("error killing pod: {why}"));
            }
            ActionResult::Pulling { container } => {
                let image = self.image_of(&container);
                self.normal(Some(&container), "Pulling", format!("Pulling image \"{image}\""));
            }
            ActionResult::Pulled { container, image, result } => self.pulled(&container, image, result),
            ActionResult::Started { container, restart, resources, result } => {
                self.started(&container, restart, result);
                self.started_with(&container, restart, resources);
            }
            ActionResult::Resized(resized) => self.resized(resized),
            ActionResult::PostStart { container, id, result } => self.post_started(&container, &id, result),
            ActionResult::Stopped { container, id, result } => self.stopped(&container, &id, result),
            ActionResult::Noted => {}
            ActionResult::Removed(result) => progress.removal.end(&result, now),
            ActionResult::Written(result) => {
                let next = self.state.report.written(*result, &mut self.state.wanted, now);
                next.into_iter().for_each(|work| self.begin(work));
            }
            ActionResult::Read(result) => self.state.report.read(*result, &mut self.state.wanted, now),
            ActionResult::Deleted(result) => self.state.report.deleted(&result, now),
        }
        if self.state.wanted.gone {
            self.apply_deletion();
        }
    }

    /// Each volume that failed gets an event of its own.
    fn failed_mounts(&mut self, failed: impl IntoIterator<Item = ActionError>) {
        for trouble in failed {
            self.warning(None, trouble.reason.as_str(), trouble.message);
        }
    }

    fn sandbox_started(&mut self, result: Result<Vec<IpAddr>, ActionError>) {
        self.state.progress.sandbox.start.end(&result, self.now);
        let sandbox = &mut self.state.observed.sandbox;
        match result {
            Ok(ips) => (sandbox.state, sandbox.ips) = (SandboxState::Ready, ips),
            Err(trouble) => {
                let message = format!("Failed to create pod sandbox: {}", trouble.message);
                self.warning(None, "FailedCreatePodSandBox", message);
            }
        }
    }

    /// Its containers have ended, so it counts as stopped; but what is left of it keeps what is the Pod's.
    fn sandbox_stopped(&mut self, result: &Result<(), ExecutorError>) {
        if self.state.observed.sandbox.state == SandboxState::Ready {
            self.state.lose_sandbox(self.now);
        }
        let progress = &mut self.state.progress;
        progress.sandbox.stop.end(result, self.now);
        if result.is_ok() {
            progress.release.hasten(self.now);
        }
    }

    /// Whatever came of it, the Pod has ended. What is left is asked for again, and goes with the Pod at the latest.
    fn released(&mut self, result: &Result<(), ExecutorError>) {
        self.state.progress.volumes = PodVolumes::Absent;
        self.state.progress.release.end(result, self.now);
    }

    fn refreshed(&mut self, failed: Vec<ActionError>) {
        self.failed_mounts(failed);
        if std::mem::take(&mut self.state.progress.refresh) == Refresh::Again {
            self.resync();
        }
    }
}
