//! What the node intends with a Pod: run it or end it.

use jiff::Timestamp;

/// The intended state of the Pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Intent {
    #[default]
    Run,
    Stop(Stop),
}

/// How a Pod ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Stop {
    /// When the grace period is over.
    pub deadline: Timestamp,
    /// The whole grace period, seconds.
    pub grace: i64,
    /// Why the Pod as a whole failed, if it did.
    pub failure: Option<Failure>,
    /// Whether containers, sandbox and folders are removed at the end (the Pod was deleted) or kept for inspection.
    pub remove: bool,
    /// It ends because of the node, not because of its own behaviour.
    pub disruption: bool,
}

/// `status.reason` and `status.message` of a Pod that failed as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: String,
    pub message: String,
}

/// A Pod must be ended by its node.
#[derive(Clone, Debug)]
pub struct Eviction {
    pub uid: String,
    /// Seconds between SIGTERM and SIGKILL.
    pub grace: i64,
    pub failure: Failure,
    /// Because of the node, not the Pod's behaviour: condition `DisruptionTarget`.
    pub disruption: bool,
}

impl Intent {
    /// How the Pod ends, if it should.
    pub fn stop(&self) -> Option<&Stop> {
        match self {
            Intent::Run => None,
            Intent::Stop(stop) => Some(stop),
        }
    }

    pub fn is_run(&self) -> bool {
        self.stop().is_none()
    }
}
