//! Watches the clock: waiting keys are reconciled when the clock was set, or after the machine has slept.
//!
//! A key that waits for a time of day (a CronJob, a deadline) waits on a monotonic clock that stands still while the machine
//! sleeps. A machine that boots with a wrong clock and synchronizes later would start a daily Job up to a day late. (Upstream
//! resyncs twice a day, and so is hours late.)

use std::time::Duration;

use jiff::SignedDuration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::queue::Queue;
use podwright_api::Env;

/// The maximum delay after a time of day.
pub const LOOK: Duration = Duration::from_secs(30);
/// Slewing of the clock is ignored.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(1);

/// Compares wall-clock time with elapsed time until `shutdown`.
pub async fn watch(env: Env, queues: Vec<Queue>, shutdown: CancellationToken) {
    let start = Instant::now();
    // The start time according to the current wall clock.
    let begin = || {
        let passed = SignedDuration::try_from(start.elapsed()).unwrap_or(SignedDuration::MAX);
        env.now().checked_sub(passed).unwrap_or(jiff::Timestamp::MIN)
    };
    let mut known = begin();
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        let now = begin();
        if now.duration_since(known).abs() > TOLERANCE {
            tracing::info!(by = %now.duration_since(known), "the clock was set, or the machine was suspended");
            known = now;
            queues.iter().for_each(Queue::hurry);
        }
    }
}
