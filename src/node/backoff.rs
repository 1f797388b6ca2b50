//! Upstream's back-off: doubles from an initial delay to a maximum, and resets after twice the maximum without failures.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Crash loops and image pulls: 10 s, 20 s, 40 s ... 5 min.
pub const FIRST: Duration = Duration::from_secs(10);
pub const LONGEST: Duration = Duration::from_secs(300);

/// The longest wait after one of a Pod's steps failed.
pub const LONGEST_STEP: Duration = Duration::from_secs(122);

/// When to retry a step that has failed this often: after 0.5 s, 1 s, 2 s ... 2 min, as upstream's volume operations.
pub fn retry_step(failures: u32, now: Timestamp) -> Timestamp {
    later(now, Duration::from_millis(500 << failures.min(8)).min(LONGEST_STEP))
}

/// The back-off of one thing that keeps failing. Small enough to travel in a container's labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    /// The delay after the next failure; zero before the first.
    delay: Duration,
    /// When `delay` was last raised.
    raised: Option<Timestamp>,
}

impl Backoff {
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// When to retry after the failure at `event`; `None`: now.
    pub fn until(&self, event: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let raised = self.raised?;
        if expired(event, raised) {
            return None;
        }
        pause(Some(later(event, self.delay)), LONGEST, now)
    }

    /// Counts one more failure, at `event`.
    pub fn raise(&mut self, event: Timestamp, now: Timestamp) {
        self.delay = match self.raised {
            Some(raised) if !expired(event, raised) => (self.delay * 2).clamp(FIRST, LONGEST),
            _ => FIRST,
        };
        self.raised = Some(now);
    }

    /// As a label: `<seconds>.<unix seconds>`.
    pub fn to_label(self) -> String {
        match self.raised {
            Some(at) => format!("{}.{}", self.delay.as_secs(), at.as_second()),
            None => String::new(),
        }
    }

    /// The inverse of [`Backoff::to_label`]; anything else means no back-off.
    pub fn from_label(label: &str) -> Backoff {
        let parse = || {
            let (delay, raised) = label.split_once('.')?;
            let raised = Timestamp::from_second(raised.parse().ok()?).ok()?;
            Some(Backoff { delay: Duration::from_secs(delay.parse().ok()?).min(LONGEST), raised: Some(raised) })
        };
        parse().unwrap_or_default()
    }
}

/// Whether a failure at `event` is so long after the last raise that the back-off starts over. Also true if it is that far before
/// it: the clock was set back.
fn expired(event: Timestamp, raised: Timestamp) -> bool {
    event.duration_since(raised).unsigned_abs() > LONGEST * 2
}

/// The end of a pause that lasts at most `most`; `None` if it is over. An end farther ahead was set before the clock was set back.
pub fn pause(until: Option<Timestamp>, most: Duration, now: Timestamp) -> Option<Timestamp> {
    until.filter(|until| now < *until && *until <= later(now, most))
}

/// `at + by`, clamped to the range of a timestamp.
pub fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}
