//! Tracks whether there may be layers and blobs without an image, and serializes their deletion.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Mutex, MutexGuard};

/// Whether there may be something to delete once no container uses it.
///
/// Only one task deletes at a time, and reads what is in use during its turn. So the last one, after its container is gone, finds
/// what earlier ones had to leave because of that container.
pub struct ImageGc {
    left: AtomicBool,
    turn: Mutex<()>,
}

/// Held from before reading what is in use until the result is recorded.
pub struct Turn<'a> {
    left: &'a AtomicBool,
    _turn: MutexGuard<'a, ()>,
}

impl ImageGc {
    pub fn new(left: bool) -> ImageGc {
        ImageGc { left: left.into(), turn: Mutex::default() }
    }

    /// Records that something may have been left.
    pub fn may_be(&self, left: bool) {
        self.left.fetch_or(left, Ordering::Relaxed);
    }

    /// For a task that adds something: unless it [succeeds](Attempt::succeeded), something may be left, also if it is aborted.
    pub fn attempt(&self) -> Attempt<'_> {
        Attempt { image_gc: self, succeeded: false }
    }

    pub async fn turn(&self) -> Turn<'_> {
        Turn { _turn: self.turn.lock().await, left: &self.left }
    }
}

/// A pull in progress.
pub struct Attempt<'a> {
    image_gc: &'a ImageGc,
    succeeded: bool,
}

impl Attempt<'_> {
    pub fn succeeded(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.image_gc.may_be(!self.succeeded);
    }
}

impl Turn<'_> {
    /// Whether there may be something to delete; resets the flag.
    pub fn take(&self) -> bool {
        self.left.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::{FutureExt, poll};

    use super::*;

    #[tokio::test]
    async fn an_attempt_that_is_dropped_leaves_something() {
        let image_gc = ImageGc::new(false);
        image_gc.attempt().succeeded();
        assert!(!image_gc.turn().await.take());
        let aborted = async {
            let attempt = image_gc.attempt();
            std::future::pending::<()>().await;
            attempt.succeeded();
        };
        assert!(pin!(aborted).now_or_never().is_none());
        assert!(image_gc.turn().await.take());
    }

    /// Two Pods with a shared layer end at once: the first still sees the second's container and leaves the layer.
    #[tokio::test]
    async fn who_comes_last_finds_what_was_left_for_his_sake() {
        let image_gc = ImageGc::new(true);
        let first = image_gc.turn().await;
        assert!(first.take());
        let mut second = pin!(async { image_gc.turn().await.take() });
        assert!(poll!(second.as_mut()).is_pending());
        image_gc.may_be(true);
        drop(first);
        assert!(second.await);
        assert!(!image_gc.turn().await.take());
    }
}
