//! The clock watch, on a paused clock.

use std::time::Duration;

use jiff::SignedDuration;
use podwright::{
    api::Env,
    client::Key,
    controllers::{
        clock::{LOOK, watch},
        queue::Queue,
    },
};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

#[tokio::test(start_paused = true)]
async fn who_waits_is_woken_when_the_clock_is_set() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().expect("a time"), 1);
    let (queue, shutdown) = (Queue::new("test", 100), CancellationToken::new());
    let watch = tokio::spawn(watch(env.clone(), vec![Queue::new("test", 100), queue.clone()], shutdown.clone()));
    let key = || Key::new("a", "daily");
    // (Clocks may well be adjusted by half a second each minute.)
    for (by, waits) in [(0, true), (500, true), (3 * 24 * 3_600_000, false), (-3_600_000, false)] {
        queue.add_after(key(), DAY);
        let start = Instant::now();
        env.set_clock(SignedDuration::from_millis(by));
        assert_eq!(timeout(DAY * 2, queue.get()).await, Ok(key()), "set by {by} ms");
        queue.done(&key());
        assert_eq!(start.elapsed() >= DAY, waits, "set by {by} ms: {:?}", start.elapsed());
        assert!(waits || start.elapsed() <= LOOK, "set by {by} ms: {:?}", start.elapsed());
    }
    shutdown.cancel();
    watch.await.expect("it ends");
}
