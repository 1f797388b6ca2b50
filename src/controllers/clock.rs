//! The clock watch: keys that wait are looked at anew when the clock was set, or when the machine has slept.
//!
//! Who waits for a time of day (a CronJob, a deadline) waits for so much time to pass, by a clock that nobody sets and that
//! stands still while the machine sleeps. A board that boots in the past and hears the time later would start a daily Job
//! up to a day late. (Upstream looks at everything again twice a day, and so is hours late.)

use std::time::Duration;

use jiff::SignedDuration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::queue::Queue;
use podwright_api::Env;

/// How late a time of day may be found out to have come.
pub const LOOK: Duration = Duration::from_secs(30);
/// Clocks that are adjusted gently are no news.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(1);

/// Compares the time of day with the time that has passed until `shutdown`.
pub async fn watch(env: Env, queues: Vec<Queue>, shutdown: CancellationToken) {
    let start = Instant::now();
    // When it began, as the clock tells it now.
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
