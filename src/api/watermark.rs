//! An increasing number, and waiters for it.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Wakes waiters in order of arrival. (`tokio::sync::watch` wakes its waiters in a random order, from a generator that cannot be
/// seeded: simulations would not be reproducible.)
#[derive(Debug, Default)]
pub struct Watermark {
    now: AtomicU64,
    risen: Notify,
}

impl Watermark {
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Acquire)
    }

    pub fn set(&self, level: u64) {
        self.now.store(level, Ordering::Release);
        self.risen.notify_waiters();
    }

    /// Waits until the number is at least `wanted`.
    pub async fn reached(&self, wanted: u64) {
        while self.now() < wanted {
            // Registers for later increases first, then checks once more for earlier ones.
            let risen = self.risen.notified();
            if self.now() < wanted {
                risen.await;
            }
        }
    }
}
