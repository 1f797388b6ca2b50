//! The startup durations of a Pod, for the metrics. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};

use super::pod::observed::{Observed, SandboxState};

/// Tracks a Pod started by this agent: from when it was first seen until it runs.
#[derive(Clone, Debug)]
pub struct Startup {
    /// `None`: it has run, or was started by another agent.
    seen: Option<Timestamp>,
    /// Total duration of image pulls.
    pulled: Duration,
}

/// The durations of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// Since this agent first saw the Pod.
    pub from_sight: Duration,
    /// Since the Pod was created, without what images and init containers took: upstream's service level.
    pub own: Duration,
}

impl Startup {
    /// A Pod started by an earlier agent is not timed.
    pub fn new(pod: &Pod, seen: &Observed, now: Timestamp) -> Startup {
        let fresh = seen.sandbox.state == SandboxState::None && phase(pod.status.as_ref()) == "Pending";
        Startup { seen: fresh.then_some(now), pulled: Duration::ZERO }
    }

    pub fn pulled(&mut self, took: Duration) {
        self.pulled = self.pulled.saturating_add(took);
    }

    /// The durations, once all containers have started.
    pub fn look(&mut self, pod: &Pod, status: &PodStatus, seen: &Observed, now: Timestamp) -> Option<Took> {
        let begin = self.seen?;
        if phase(Some(status)) != "Running" {
            return None;
        }
        self.seen = None;
        let since = |at: Timestamp| Duration::try_from(now.duration_since(at)).unwrap_or_default();
        let created = pod.metadata.creation_timestamp.as_ref().map_or(begin, |created| created.0);
        let inits: Duration = status.init_container_statuses.iter().flatten().filter_map(|init| ran(init, seen)).sum();
        let own = since(created).saturating_sub(self.pulled).saturating_sub(inits);
        Some(Took { from_sight: since(begin), own })
    }
}

/// How long an exited init container ran.
fn ran(init: &ContainerStatus, seen: &Observed) -> Option<Duration> {
    let attempt = seen.containers.get(&init.name)?.attempt.as_ref()?;
    let took: SignedDuration = attempt.exit.as_ref()?.finished_at.duration_since(attempt.started_at?);
    Duration::try_from(took).ok()
}

fn phase(status: Option<&PodStatus>) -> &str {
    status.and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}
