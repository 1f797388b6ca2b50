//! The results of a Pod's operations.

use super::{
    Turn,
    event::ActionResult,
    observed::{Refresh, SandboxState},
    step::Step,
    volumes::PodVolumes,
};
use crate::executor::{ActionError, ExecutorError};

impl Turn<'_> {
    pub(super) fn done(&mut self, result: ActionResult) {
        let now = self.now;
        match result {
            ActionResult::VolumeMounted { volume, result } => {
                self.state.observed.volumes.ended(&volume, result.is_ok(), now);
                self.failed_mounts(result.err());
            }
            ActionResult::VolumesRefreshed(failed) => self.refreshed(failed),
            ActionResult::VolumesReleased(result) => self.released(&result),
            ActionResult::Sandbox(Ok(ips)) => {
                let sandbox = &mut self.state.observed.sandbox;
                (sandbox.state, sandbox.ips, sandbox.trouble) = (SandboxState::Ready, ips, None);
            }
            ActionResult::Sandbox(Err(trouble)) => {
                let sandbox = &mut self.state.observed.sandbox;
                sandbox.state = SandboxState::None;
                let tries = sandbox.trouble.map_or(0, |(tries, _)| tries);
                if let Step::Failed { tries, retry_at } = Step::failed(tries, now) {
                    sandbox.trouble = Some((tries, retry_at));
                }
                let message = format!("Failed to create pod sandbox: {}", trouble.message);
                self.warning(None, "FailedCreatePodSandBox", message);
            }
            ActionResult::SandboxStopped(result) => self.sandbox_stopped(&result),
            ActionResult::SandboxRemoved(Ok(())) => self.state.observed.renew_sandbox(),
            ActionResult::SandboxRemoved(Err(why)) => {
                let sandbox = &mut self.state.observed.sandbox;
                sandbox.state = SandboxState::Stopped;
                sandbox.renewal = Step::failed(sandbox.renewal.failures(), now);
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
            ActionResult::Removed(Ok(())) => self.state.observed.removal = Step::Done,
            ActionResult::Removed(Err(_)) => {
                self.state.observed.removal = Step::failed(self.state.retries.removal, now);
                self.state.retries.removal = self.state.retries.removal.saturating_add(1);
            }
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

    /// Its containers have ended, so it counts as stopped; but what is left of it keeps what is the Pod's.
    fn sandbox_stopped(&mut self, result: &Result<(), ExecutorError>) {
        let (seen, failures) = (&mut self.state.observed, &mut self.state.retries.stop);
        if seen.sandbox.state == SandboxState::Stopping {
            seen.lose_sandbox(self.now);
        }
        seen.sandbox.stop = match result {
            Ok(()) => {
                *failures = 0;
                seen.release.hasten(self.now);
                Step::Done
            }
            Err(_) => {
                *failures = failures.saturating_add(1);
                Step::failed(*failures - 1, self.now)
            }
        };
    }

    /// Whatever came of it, the Pod has ended. What is left is asked for again, and goes with the Pod at the latest.
    fn released(&mut self, result: &Result<(), ExecutorError>) {
        let (seen, failures) = (&mut self.state.observed, &mut self.state.retries.release);
        seen.volumes = PodVolumes::Absent;
        seen.release = match result {
            Ok(()) => Step::Done,
            Err(_) => {
                *failures = failures.saturating_add(1);
                Step::failed(*failures - 1, self.now)
            }
        };
    }

    fn refreshed(&mut self, failed: Vec<ActionError>) {
        self.failed_mounts(failed);
        if std::mem::take(&mut self.state.observed.refresh) == Refresh::Again {
            self.resync();
        }
    }
}
