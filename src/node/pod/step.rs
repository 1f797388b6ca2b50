//! A step that may fail and be retried.

use jiff::Timestamp;

use crate::backoff::{LONGEST_STEP, pause, retry_step};

/// Something done once, with retries.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Step {
    #[default]
    Undone,
    Doing,
    Done,
    /// Failed; retried at `retry_at`.
    Failed {
        tries: u32,
        retry_at: Timestamp,
    },
}

impl Step {
    pub fn failures(&self) -> u32 {
        match self {
            Step::Failed { tries, .. } => *tries,
            _ => 0,
        }
    }
    /// The next state after one more failure.
    pub fn failed(tries: u32, now: Timestamp) -> Step {
        Step::Failed { tries: tries + 1, retry_at: retry_step(tries, now) }
    }
    /// Until when the retry waits; `None`: it is due, or has not failed.
    pub fn waits(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Step::Failed { retry_at, .. } => pause(Some(*retry_at), LONGEST_STEP, now),
            _ => None,
        }
    }
    /// What it failed for has gone: it waits no longer.
    pub fn hasten(&mut self, now: Timestamp) {
        if let Step::Failed { retry_at, .. } = self {
            *retry_at = now;
        }
    }
    pub fn has_failed(&self) -> bool {
        matches!(self, Step::Failed { .. })
    }
}
