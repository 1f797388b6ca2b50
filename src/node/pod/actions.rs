//! Turns the plan's actions into effects, marking each as begun.

use super::{
    Turn,
    effect::{Effect, Work},
    intent::{Failure, Stop},
    observed::SandboxState,
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
            let plan = plan::plan(self.pod(), &self.state.intent, &self.state.observed, self.now);
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
        let seen = &self.state.observed;
        let status = status::status(&pod, &self.state.intent, seen, &self.state.host, now);
        if let Some(took) = self.state.startup.look(&pod, &status, seen, now) {
            self.effects.push(Effect::Started(took));
        }
        let standing = super::Standing { removed: seen.removal == Step::Done, gone: self.state.wanted.gone, now };
        if let Some(work) = self.state.report.next(&pod, status, standing) {
            self.begin(work);
        }
    }

    fn act(&mut self, action: Action) {
        let attempt = self.state.observed.sandbox.attempt;
        match action {
            Action::MountVolume(volume) => {
                self.state.observed.volumes.begin(&volume, self.now);
                self.begin(Work::MountVolume { volume });
            }
            Action::ReleaseVolumes => {
                let seen = &mut self.state.observed;
                // After that attempt the Pod has ended for good.
                if seen.volumes != PodVolumes::Absent {
                    seen.volumes = PodVolumes::Unmounting;
                }
                seen.release = Step::Doing;
                self.begin(Work::ReleaseVolumes);
            }
            Action::StartSandbox => {
                self.state.observed.sandbox.state = SandboxState::Starting;
                self.state.observed.volumes.hold();
                let seen = Box::new(self.state.observed.clone());
                self.begin(Work::StartSandbox { attempt, seen });
            }
            Action::RenewSandbox => {
                if !self.state.observed.sandbox.renewal.has_failed() {
                    self.normal(None, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.");
                }
                self.state.observed.sandbox.state = SandboxState::Stopping;
                self.begin(Work::RemoveSandbox { attempt });
            }
            Action::StopSandbox => {
                let sandbox = &mut self.state.observed.sandbox;
                match sandbox.state {
                    // Once more: it counts as stopped already.
                    SandboxState::Stopped => sandbox.stop = Step::Doing,
                    _ => sandbox.state = SandboxState::Stopping,
                }
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
                self.state.observed.container_mut(&container).waiting = Some(Failure { reason, message });
            }
            Action::Fail(failure) => {
                self.normal(None, &failure.reason, failure.message.clone());
                self.end_in_grace(Some(failure));
            }
            Action::Finish => self.end_in_grace(None),
            Action::Remove => {
                self.state.observed.removal = Step::Doing;
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
