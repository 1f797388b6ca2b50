//! Detects when the machine's clock is set, by an administrator or NTP.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Smaller differences are normal: NTP adjusts the rate, and the clocks are not read at the same instant.
const STEP: SignedDuration = SignedDuration::from_secs(1);

/// The wall clock and the monotonic clock when they last agreed.
pub struct Clock {
    wall: Timestamp,
    steady: Instant,
}

impl Clock {
    /// `now` is the wall clock time.
    pub fn new(now: Timestamp) -> Clock {
        Clock { wall: now, steady: Instant::now() }
    }

    /// By how much the clock has been set, forward or back, since that was last reported; `None`: it was not.
    pub fn set_by(&mut self, now: Timestamp) -> Option<SignedDuration> {
        let passed = SignedDuration::try_from(self.steady.elapsed()).unwrap_or(SignedDuration::MAX);
        let by = now.duration_since(self.wall).saturating_sub(passed);
        (by.abs() >= STEP).then(|| {
            *self = Clock::new(now);
            by
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_step_is_told_once_and_a_drift_when_it_is_as_large() {
        let at = |milliseconds: i64| Timestamp::from_millisecond(1_000_000_000_000 + milliseconds).unwrap();
        let mut clock = Clock::new(at(0));
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(clock.set_by(at(3_600_400)), None, "it runs a little faster");
        assert_eq!(clock.set_by(at(7_200_000)), Some(SignedDuration::from_hours(1)));
        assert_eq!(clock.set_by(at(7_200_000)), None);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(clock.set_by(at(60_000)), Some(SignedDuration::from_hours(-2)));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(clock.set_by(at(120_900)), None);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(clock.set_by(at(181_000)), Some(STEP), "what was little before counts too");
    }
}
