//! A number that rises, and who waits for it.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Wakes those who wait in the order in which they came. (A `tokio::sync::watch` wakes its own in an order that it draws,
/// from a generator that cannot be seeded: with one of those no simulated run could be repeated.)
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

    /// Waits until the number is `wanted` at least.
    pub async fn reached(&self, wanted: u64) {
        while self.now() < wanted {
            // Who is notified is told of all that rises from here on; what has risen before is looked at once more.
            let risen = self.risen.notified();
            if self.now() < wanted {
                risen.await;
            }
        }
    }
}
