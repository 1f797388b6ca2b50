//! How fast a client reads a response, and when that counts as not reading.

use std::time::Duration;

use tokio::time::Instant;

/// The minimum bytes per second for a long-running response; slower ones count as unread.
pub(crate) const LEAST: u64 = 64 << 10;

/// Bytes read, period by period.
pub(crate) struct Pace {
    since: Instant,
    bytes: u64,
    was_slow: bool,
}

impl Pace {
    pub fn new(now: Instant) -> Pace {
        Pace { since: now, bytes: 0, was_slow: false }
    }

    pub fn take(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Whether too little was read in the last whole period. Nothing is slow before the first one ends.
    pub fn is_slow(&mut self, now: Instant, period: Duration) -> bool {
        if now >= self.due(period) {
            self.was_slow = is_slow(now - self.since, self.bytes);
            (self.since, self.bytes) = (now, 0);
        }
        self.was_slow
    }

    /// When this period ends.
    pub fn due(&self, period: Duration) -> Instant {
        self.since + period
    }
}

fn is_slow(took: Duration, bytes: u64) -> bool {
    u128::from(bytes) * 1000 < u128::from(LEAST) * took.as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(60);

    #[test]
    fn slow_is_who_has_taken_too_little_in_the_last_whole_period() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        let least = LEAST as usize * 60;
        assert!(!pace.is_slow(begun + PERIOD / 2, PERIOD), "it is not under way for long");
        // By period: bytes read in it, and whether that is slow.
        for (turn, (bytes, slow)) in
            (1..).zip([(least, false), (least - 1, true), (0, true), (9 * least, false), (0, true)])
        {
            pace.take(bytes);
            assert_eq!(pace.is_slow(begun + PERIOD * turn, PERIOD), slow, "{turn}");
            assert_eq!(
                pace.is_slow(begun + PERIOD * turn + PERIOD / 2, PERIOD),
                slow,
                "{turn}: until the next one is over"
            );
        }
    }

    #[test]
    fn a_period_that_is_looked_at_late_is_as_long_as_it_took() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        pace.take(LEAST as usize * 60);
        assert!(pace.is_slow(begun + PERIOD + Duration::from_secs(1), PERIOD));
        assert_eq!(pace.due(PERIOD), begun + PERIOD * 2 + Duration::from_secs(1));
    }
}
