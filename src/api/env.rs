//! The single source of time, time zone, uids and randomness, injected everywhere, so that a whole control plane can be simulated.
//!
//! Waits use `tokio::time` (paused in a simulation); `Env::now` follows the same clock.

use std::sync::{Arc, Mutex};

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

/// Clock, uids and randomness of one process. Cheap to clone.
#[derive(Clone)]
pub struct Env(Arc<Inner>);

struct Inner {
    simulated: Option<Simulated>,
    rng: Mutex<StdRng>,
}

/// The clock of a simulation.
struct Simulated {
    start: Timestamp,
    from: tokio::time::Instant,
    /// The total by which it was set.
    set: Mutex<SignedDuration>,
    zone: Mutex<TimeZone>,
}

impl Env {
    /// The machine's clock and entropy.
    pub fn system() -> Env {
        Env(Arc::new(Inner { simulated: None, rng: Mutex::new(StdRng::from_rng(&mut rand::rng())) }))
    }

    /// A clock that starts at `start`, in UTC, and follows tokio's (pausable) clock; randomness from `seed`.
    /// Must be called inside a tokio runtime.
    pub fn simulated(start: Timestamp, seed: u64) -> Env {
        let (set, zone) = (Mutex::default(), Mutex::new(TimeZone::UTC));
        Env(Arc::new(Inner {
            simulated: Some(Simulated { start, from: tokio::time::Instant::now(), set, zone }),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
        }))
    }

    /// The current time, in full precision.
    pub fn now(&self) -> Timestamp {
        match &self.0.simulated {
            None => Timestamp::now(),
            Some(Simulated { start, from, set, .. }) => {
                let passed = SignedDuration::try_from(from.elapsed()).unwrap_or(SignedDuration::ZERO);
                let set = *set.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                start.checked_add(passed.saturating_add(set)).unwrap_or(*start)
            }
        }
    }

    /// Sets a simulated clock, forward or back, as an administrator or NTP would: only the time of day changes, waits do not. The
    /// machine's own clock cannot be set.
    pub fn set_clock(&self, by: SignedDuration) {
        if let Some(simulated) = &self.0.simulated {
            let mut set = simulated.set.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            *set = set.saturating_add(by);
        }
    }

    /// The local time zone.
    pub fn zone(&self) -> TimeZone {
        match &self.0.simulated {
            None => TimeZone::system(),
            Some(simulated) => simulated.zone.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone(),
        }
    }

    /// Changes the time zone of a simulated machine. The machine's own cannot be set.
    pub fn set_zone(&self, zone: TimeZone) {
        if let Some(simulated) = &self.0.simulated {
            *simulated.zone.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = zone;
        }
    }

    /// A new object uid: a random (version 4) UUID.
    pub fn uid(&self) -> String {
        let mut bytes = [0u8; 16];
        self.fill(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }

    /// `n` characters of upstream's name alphabet (no vowels, no look-alikes), as `generateName` appends.
    pub fn suffix(&self, n: usize) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..n).map(|_| ALPHABET[self.below(ALPHABET.len() as u64) as usize] as char).collect()
    }

    /// A uniform number in `0..bound`. `bound` must not be 0.
    pub fn below(&self, bound: u64) -> u64 {
        self.rng().random_range(0..bound)
    }

    /// Fills `bytes` with randomness.
    pub fn fill(&self, bytes: &mut [u8]) {
        self.rng().fill_bytes(bytes)
    }

    fn rng(&self) -> std::sync::MutexGuard<'_, StdRng> {
        self.0.rng.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
