//! What the node has in hand for one Pod: the work under way, what of it failed, and when it is tried again.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{intent::Failure, observed::SandboxState, step::Step, volumes::PodVolumes};
use crate::{
    backoff::{self, Backoff, pause},
    resize::progress::Resize,
};

#[derive(Clone, Debug, Default)]
pub struct Progress {
    pub sandbox: SandboxProgress,
    pub volumes: PodVolumes,
    pub containers: BTreeMap<String, ContainerProgress>,
    /// Of pulls, by image name.
    pub pulls: BTreeMap<String, Backoff>,
    /// Removal of everything the Pod had on this node.
    pub removal: Step,
    /// Release of what an ended Pod no longer needs: its volumes, its written data, its users' ids.
    pub release: Step,
    pub refresh: Refresh,
    pub resize: Resize,
}

/// Updating mounted ConfigMaps and the like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refresh {
    #[default]
    Idle,
    Underway,
    /// In progress, with further changes since it began.
    Again,
}

/// The operations on the Pod's sandbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxProgress {
    pub start: Step,
    /// Tried again after it counts as stopped: what has failed of it is what is left.
    pub stop: Step,
    /// Removing a dead one, with its containers, for the next one: what is left would be nobody's then.
    pub renewal: Step,
}

impl SandboxProgress {
    /// Whether an operation is about to take a sandbox out of this state.
    pub fn leaves(&self, state: SandboxState) -> bool {
        match state {
            SandboxState::None => self.start.is_doing(),
            SandboxState::Ready => self.stop.is_doing(),
            SandboxState::Stopped => self.renewal.is_doing(),
        }
    }
}

/// The operations on a container.
#[derive(Clone, Debug, Default)]
pub struct ContainerProgress {
    pub busy: Busy,
    /// Why it is not running, if upstream has a reason for it.
    pub waiting: Option<Failure>,
    /// When to retry after a failure.
    pub retry_at: Option<Timestamp>,
    pub backoff: Backoff,
    /// Being stopped for a restart regardless of its restart policy; recorded with it for a later agent.
    pub renewing: bool,
    /// Its stop failed: when to try again.
    pub stop_at: Option<Timestamp>,
}

/// The operation in progress on a container.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Busy {
    #[default]
    Idle,
    Pulling,
    Starting,
    /// SIGKILL is sent at `deadline` at the latest.
    Stopping {
        deadline: Timestamp,
    },
}

impl ContainerProgress {
    /// Until when a failed start waits.
    pub fn waits(&self, now: Timestamp) -> Option<Timestamp> {
        pause(self.retry_at, backoff::LONGEST, now)
    }
}

impl Progress {
    /// The operations on a container; none if it was never touched.
    pub fn container(&self, name: &str) -> &ContainerProgress {
        static NOTHING: std::sync::LazyLock<ContainerProgress> = std::sync::LazyLock::new(ContainerProgress::default);
        self.containers.get(name).unwrap_or(&NOTHING)
    }

    pub fn container_mut(&mut self, name: &str) -> &mut ContainerProgress {
        self.containers.entry(name.to_owned()).or_default()
    }

    /// Whether an operation is writing below the Pod's folder or to its cgroups: ending the Pod must wait for it.
    pub fn is_writing(&self) -> bool {
        self.release.is_doing() || self.sandbox.stop.is_doing() || self.is_changing_parts()
    }

    /// Whether volumes or resources are being changed.
    pub fn is_changing_parts(&self) -> bool {
        self.volumes.is_busy() || self.refresh != Refresh::Idle || self.resize.busy
    }
}
