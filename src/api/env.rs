//! The one source of time, uids and randomness, injected everywhere, so that a whole control plane can be simulated.
//!
//! Waiting is done with `tokio::time` (paused in a simulation); `Env::now` follows the same clock.

use std::sync::{Arc, Mutex};

use jiff::{SignedDuration, Timestamp};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

/// Clock, uids and randomness of one process. Cheap to clone.
#[derive(Clone)]
pub struct Env(Arc<Inner>);

struct Inner {
    simulated: Option<(Timestamp, tokio::time::Instant)>,
    rng: Mutex<StdRng>,
}

impl Env {
    /// The machine's clock and entropy.
    pub fn system() -> Env {
        Env(Arc::new(Inner { simulated: None, rng: Mutex::new(StdRng::from_rng(&mut rand::rng())) }))
    }

    /// A clock that starts at `start` and follows tokio's (pausable) clock; randomness from `seed`.
    /// Must be called inside a tokio runtime.
    pub fn simulated(start: Timestamp, seed: u64) -> Env {
        Env(Arc::new(Inner {
            simulated: Some((start, tokio::time::Instant::now())),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
        }))
    }

    /// The time of day, in full precision.
    pub fn now(&self) -> Timestamp {
        match self.0.simulated {
            None => Timestamp::now(),
            Some((start, from)) => {
                let passed = SignedDuration::try_from(from.elapsed()).unwrap_or(SignedDuration::ZERO);
                start.checked_add(passed).unwrap_or(start)
            }
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
