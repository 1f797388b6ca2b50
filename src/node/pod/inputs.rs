//! What a Pod's plan and status are computed from, beside its manifest.

use super::{
    intent::Intent,
    observed::{Container, Observed, SandboxState},
    progress::{Busy, ContainerProgress, Progress},
};

/// What the node intends with a Pod, what it has observed of it, and what it has in hand.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub intent: &'a Intent,
    pub seen: &'a Observed,
    pub progress: &'a Progress,
}

impl<'a> Inputs<'a> {
    /// A container as observed.
    pub fn container(&self, name: &str) -> &'a Container {
        self.seen.container(name)
    }

    /// The operations on a container.
    pub fn of(&self, name: &str) -> &'a ContainerProgress {
        self.progress.container(name)
    }

    /// Nothing of the container is running or about to.
    pub fn is_still(&self, name: &str) -> bool {
        !self.container(name).is_running() && self.of(name).busy == Busy::Idle
    }

    /// No container was ever touched.
    pub fn is_untouched(&self) -> bool {
        self.seen.containers.is_empty() && self.progress.containers.is_empty()
    }

    /// Nothing of any container, in the manifest or not.
    pub fn all_still(&self) -> bool {
        let mut names = self.seen.containers.keys().chain(self.progress.containers.keys());
        names.all(|name| self.is_still(name))
    }

    /// Whether the sandbox is in this state, and nothing is about to change that.
    pub fn sandbox_is(&self, state: SandboxState) -> bool {
        self.seen.sandbox.state == state && !self.progress.sandbox.leaves(state)
    }
}
