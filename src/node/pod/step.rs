//! A step that may fail and be retried.

use jiff::Timestamp;

use crate::backoff::{LONGEST_STEP, pause, retry_step};

/// Something done once, with retries. `tries`: how often it has failed in a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Step {
    #[default]
    Undone,
    Doing {
        tries: u32,
    },
    Done,
    /// Failed; retried at `retry_at`.
    Failed {
        tries: u32,
        retry_at: Timestamp,
    },
}

impl Step {
    pub fn begin(&mut self) {
        *self = Step::Doing { tries: self.tries() };
    }

    pub fn end<T, E>(&mut self, result: &Result<T, E>, now: Timestamp) {
        match result {
            Ok(_) => *self = Step::Done,
            Err(_) => self.fail(now),
        }
    }

    /// One more failure.
    pub fn fail(&mut self, now: Timestamp) {
        let tries = self.tries();
        *self = Step::Failed { tries: tries.saturating_add(1), retry_at: retry_step(tries, now) };
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

    pub fn is_doing(&self) -> bool {
        matches!(self, Step::Doing { .. })
    }

    pub fn has_failed(&self) -> bool {
        matches!(self, Step::Failed { .. })
    }

    fn tries(&self) -> u32 {
        match self {
            Step::Doing { tries } | Step::Failed { tries, .. } => *tries,
            Step::Undone | Step::Done => 0,
        }
    }
}
