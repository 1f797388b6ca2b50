//! How far a Pod's resize has come.

use super::allocation::Pending;
use crate::pod::step::Step;

/// How a Pod comes to what is allocated to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resize {
    pub pending: Option<Pending>,
    /// `None`: it has all that is allocated.
    pub progress: Option<ResizeProgress>,
    /// Something is being written to its cgroups just now.
    pub busy: bool,
}

/// A resize under way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResizeProgress {
    /// `metadata.generation` of the Pod whose wish was granted.
    pub generation: Option<i64>,
    /// Bringing it to the cgroups.
    pub step: Step,
    /// Why that failed last.
    pub error: Option<String>,
}
