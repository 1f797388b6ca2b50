//! Upstream's back-off: doubling from a first delay to a longest one, forgotten after twice the longest without trouble.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Crash loops and image pulls: 10 s, 20 s, 40 s ... 5 min.
pub const FIRST: Duration = Duration::from_secs(10);
pub const LONGEST: Duration = Duration::from_secs(300);

/// The longest wait after a failure of one of a Pod's steps.
pub const LONGEST_STEP: Duration = Duration::from_secs(122);

/// When to try a step again that has failed so often before: after 0.5 s, 1 s, 2 s ... 2 min, as upstream's volume operations.
pub fn retry_step(failures: u32, now: Timestamp) -> Timestamp {
    later(now, Duration::from_millis(500 << failures.min(8)).min(LONGEST_STEP))
}

/// The back-off of one thing that keeps failing. Small enough to travel in a container's labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    /// The delay that the next trouble costs; zero before the first.
    delay: Duration,
    /// When `delay` was last raised.
    raised: Option<Timestamp>,
}

impl Backoff {
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// When the thing may be tried again after its trouble at `event`; `None`: now.
    pub fn until(&self, event: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let raised = self.raised?;
        if expired(event, raised) {
            return None;
        }
        pause(Some(later(event, self.delay)), LONGEST, now)
    }

    /// Counts one more trouble, which was at `event`.
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

    /// The inverse of [`Backoff::to_label`]; anything else is no back-off.
    pub fn from_label(label: &str) -> Backoff {
        let parse = || {
            let (delay, raised) = label.split_once('.')?;
            let raised = Timestamp::from_second(raised.parse().ok()?).ok()?;
            Some(Backoff { delay: Duration::from_secs(delay.parse().ok()?).min(LONGEST), raised: Some(raised) })
        };
        parse().unwrap_or_default()
    }
}

/// Whether trouble at `event` is so late after the last raise that it counts as the first again. What is as far before it came later
/// too, after the clock was set back.
fn expired(event: Timestamp, raised: Timestamp) -> bool {
    event.duration_since(raised).unsigned_abs() > LONGEST * 2
}

/// When a pause ends that lasts at most so long; `None` where it has. An end that lies farther ahead was set before the clock was set
/// back.
pub fn pause(until: Option<Timestamp>, most: Duration, now: Timestamp) -> Option<Timestamp> {
    until.filter(|until| now < *until && *until <= later(now, most))
}

/// `at + by`, within what a timestamp can hold.
pub fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}
