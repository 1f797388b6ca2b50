//! Turns the plan's actions into effects, marking each as begun.

use super::{
    Turn,
    effect::{Effect, Work},
    history::history,
    intent::{Failure, Stop},
    step::Step,
    volumes::PodVolumes,
};
use crate::{
    plan::{self, Action},
    spec::PodExt,
    status,
};

/// Each round changes the state; a plan that has not converged by then is a bug.
const MAX_ROUNDS: usize = 100;

impl Turn<'_> {
    /// Plans and acts until nothing more can be done now.
    pub(super) fn sync(&mut self) {
        for _ in 0..MAX_ROUNDS {
            let plan = plan::plan(self.pod(), self.state.inputs(), self.now);
            if plan.actions.is_empty() {
                self.look_at_trace();
                self.report();
                let wake = plan.wake.into_iter().chain(self.state.report.held_until()).min();
                return self.effects.push(Effect::Wake(wake));
            }
            for action in plan.actions {
                tracing::debug!(pod = %self.pod().full_name(), ?action, "act");
                self.act(action);
            }
        }
        tracing::error!(pod = %self.pod().full_name(), "the plan of a Pod does not converge");
        self.effects.push(Effect::Wake(Some(plan::after(self.now, 1))));
    }

    /// The start is over when all containers have started, or the Pod should end.
    fn look_at_trace(&mut self) {
        let seen = &self.state.observed;
        let all = || self.pod().parts().iter().all(|part| seen.container(part.name()).attempt.is_some());
        if self.state.traced && (!self.state.intent.is_run() || all()) {
            self.state.traced = false;
            self.effects.push(Effect::TraceEnd);
        }
    }

    /// Sends the status to the server, if it is due.
    pub(super) fn report(&mut self) {
        let (pod, now) = (self.pod().clone(), self.now);
        let status = status::status(&pod, self.state.inputs(), &self.state.host, now);
        if let Some(took) = self.state.startup.look(&pod, &status, &self.state.observed, now) {
            self.effects.push(Effect::Started(took));
        }
        let removed = self.state.progress.removal == Step::Done;
        let standing = super::Standing { removed, gone: self.state.wanted.gone, now };
        if let Some(work) = self.state.report.next(&pod, status, standing) {
            self.begin(work);
        }
    }

    fn act(&mut self, action: Action) {
        let attempt = self.state.observed.sandbox.attempt;
        let progress = &mut self.state.progress;
        match action {
            Action::MountVolume(volume) => {
                progress.volumes.begin(&volume, self.now);
                self.begin(Work::MountVolume { volume });
            }
            Action::ReleaseVolumes => {
                // After that attempt the Pod has ended for good.
                if progress.volumes != PodVolumes::Absent {
                    progress.volumes = PodVolumes::Unmounting;
                }
                progress.release.begin();
                self.begin(Work::ReleaseVolumes);
            }
            Action::StartSandbox => {
                progress.sandbox.start.begin();
                progress.volumes.hold();
                let history = history(&self.state.observed, progress);
                self.begin(Work::StartSandbox { attempt, history });
            }
            Action::RenewSandbox => {
                let is_first = !progress.sandbox.renewal.has_failed();
                progress.sandbox.renewal.begin();
                if is_first {
                    self.normal(None, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.");
                }
                self.begin(Work::RemoveSandbox { attempt });
            }
            Action::StopSandbox => {
                progress.sandbox.stop.begin();
                self.begin(Work::StopSandbox { attempt });
            }
            Action::Resize(containers) => self.resize(&containers),
            Action::Resized => self.resize_completed(),
            Action::Pull(container) => self.pull(container),
            Action::Start(container) => self.start(container),
            Action::Stop(order) => self.stop(order),
            Action::Keep(container) => self.keep(&container),
            Action::BackOff { container, message } => {
                let full_name = self.pod().full_name();
                let words = format!("Back-off restarting failed container {container} in pod {full_name}");
                self.warning(Some(&container), "BackOff", words);
                let reason = "CrashLoopBackOff".to_owned();
                self.state.progress.container_mut(&container).waiting = Some(Failure { reason, message });
            }
            Action::Fail(failure) => {
                self.normal(None, &failure.reason, failure.message.clone());
                self.end_in_grace(Some(failure));
            }
            Action::Finish => self.end_in_grace(None),
            Action::Remove => {
                progress.removal.begin();
                self.begin(Work::Remove { attempt });
            }
        }
    }

    /// Ends the Pod with the full grace period of its manifest.
    fn end_in_grace(&mut self, failure: Option<Failure>) {
        let grace = self.pod().grace();
        let deadline = plan::after(self.now, grace);
        self.end(Stop { deadline, grace, failure, remove: false, disruption: false });
    }
}
