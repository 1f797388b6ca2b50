//! Rate limits for each source's questions by TCP: faster sources wait, with TCP backpressure.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Above this many sources, those without debt are dropped.
const REMEMBERED: usize = 1024;

/// The rate limit of each source.
pub struct Pace {
    /// The interval between two questions.
    gap: Duration,
    /// The burst, as a duration.
    ahead: Duration,
    /// When each source's questions will be within the rate.
    paid: Mutex<HashMap<IpAddr, Instant>>,
}

impl Pace {
    /// This many per second, and as many in a burst.
    pub fn new(each_second: u32) -> Pace {
        let second = Duration::from_secs(1);
        Pace { gap: second / each_second, ahead: second, paid: Mutex::default() }
    }

    /// How long the next question of `source`, arriving now, must wait.
    pub fn wait(&self, source: IpAddr, now: Instant) -> Duration {
        let mut paid = self.paid();
        let at = paid_until(&mut paid, source, now);
        *at = now.max(*at) + self.gap;
        at.duration_since(now).saturating_sub(self.ahead)
    }

    /// Whether `source` may ask another question now; if so, it is charged.
    pub fn may(&self, source: IpAddr, now: Instant) -> bool {
        let mut paid = self.paid();
        let at = paid_until(&mut paid, source, now);
        let next = now.max(*at) + self.gap;
        let may = next.duration_since(now) <= self.ahead;
        if may {
            *at = next;
        }
        may
    }

    fn paid(&self) -> MutexGuard<'_, HashMap<IpAddr, Instant>> {
        // The state is consistent even after a panic: each change is atomic.
        self.paid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When the questions of `source` will be within the rate.
fn paid_until(paid: &mut HashMap<IpAddr, Instant>, source: IpAddr, now: Instant) -> &mut Instant {
    if paid.len() >= REMEMBERED {
        paid.retain(|_, at| *at > now);
    }
    paid.entry(source.to_canonical()).or_insert(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0x0af4_0000 + n).into()
    }

    #[test]
    fn who_asks_faster_than_the_pace_waits_and_nobody_else() {
        let (pace, start) = (Pace::new(100), Instant::now());
        assert!((0..100).all(|_| pace.wait(source(1), start).is_zero()), "a second's questions at once");
        assert_eq!(pace.wait(source(1), start), Duration::from_millis(10));
        let mapped = std::net::Ipv4Addr::new(10, 244, 0, 1).to_ipv6_mapped().into();
        assert_eq!(
            pace.wait(mapped, start),
            Duration::from_millis(20),
            "an address is one source however it is written"
        );
        assert!(pace.wait(source(2), start).is_zero());
        let later = start + Duration::from_millis(520);
        assert!((0..50).all(|_| pace.wait(source(1), later).is_zero()), "what has been waited for is paid");
        assert!(!pace.wait(source(1), later).is_zero());
    }

    #[test]
    fn who_does_not_wait_owes_nothing() {
        let (pace, start) = (Pace::new(100), Instant::now());
        assert_eq!((0..500).filter(|_| pace.may(source(1), start)).count(), 100);
        let later = start + Duration::from_millis(500);
        assert_eq!((0..500).filter(|_| pace.may(source(1), later)).count(), 50);
    }

    #[test]
    fn who_has_paid_is_forgotten() {
        let (pace, start) = (Pace::new(100), Instant::now());
        for n in 0..5000 {
            pace.wait(source(n), start + Duration::from_secs(n.into()));
        }
        assert!(pace.paid().len() <= REMEMBERED, "{}", pace.paid().len());
    }
}
