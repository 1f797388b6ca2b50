//! The progress of a Pod's resize.

use super::allocation::Pending;
use crate::pod::step::Step;

/// How a Pod gets its allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resize {
    pub pending: Option<Pending>,
    /// `None`: it has its whole allocation.
    pub progress: Option<ResizeProgress>,
    /// Its cgroups are being written.
    pub busy: bool,
}

/// A resize in progress.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResizeProgress {
    /// `metadata.generation` of the Pod whose request was granted.
    pub generation: Option<i64>,
    /// Writing the cgroups.
    pub step: Step,
    /// Why that last failed.
    pub error: Option<String>,
}
