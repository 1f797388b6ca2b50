//! How fast each source may ask by streams: who is faster waits, and TCP lets it know.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Above so many sources those that have paid are forgotten.
const REMEMBERED: usize = 1024;

/// The pace of each source.
pub struct Pace {
    /// Between two questions.
    gap: Duration,
    /// The length of the pace that a source may be ahead of.
    ahead: Duration,
    /// When all that a source has asked is paid for.
    paid: Mutex<HashMap<IpAddr, Instant>>,
}

impl Pace {
    /// So many each second, and as many at once.
    pub fn new(each_second: u32) -> Pace {
        let second = Duration::from_secs(1);
        Pace { gap: second / each_second, ahead: second, paid: Mutex::default() }
    }

    /// How long the next question of `source` waits, which comes now.
    pub fn wait(&self, source: IpAddr, now: Instant) -> Duration {
        let mut paid = self.paid();
        let at = paid_until(&mut paid, source, now);
        *at = now.max(*at) + self.gap;
        at.duration_since(now).saturating_sub(self.ahead)
    }

    /// Whether `source` may ask another question now, for which it pays then.
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
        // Each change is whole at once: what a panic left behind is sound.
        self.paid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When all that `source` has asked is paid for.
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
