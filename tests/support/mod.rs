//! Shared parts of whole-node tests: nodes, the command line, waiting for conditions, and detecting leftovers.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod api;
pub mod cluster;
pub mod devices;
pub mod etcd;
pub mod leftovers;
pub mod missing;
pub mod netns;
pub mod node;
pub mod readiness;
pub mod registry;
pub mod sweep;
pub mod sysctls;
pub mod talk;
pub mod tls;

use std::time::{Duration, Instant};

#[allow(unused_imports)] // Not every test binary uses answers.
pub use node::Answer;
pub use node::TestNode;
#[allow(unused_imports)] // Only some use a long-running command.
pub use talk::Talk;

/// Waits until `check` returns a value; panics with its last message after `patience`. In a guest without hardware virtualisation
/// everything takes about ten times as long, so the patience is multiplied there.
#[track_caller]
pub fn eventually<T>(what: &str, patience: Duration, mut check: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + patience * slowness();
    loop {
        let begin = Instant::now();
        match check() {
            Ok(value) => return value,
            Err(last) if Instant::now() > deadline => panic!("{what}: not within {patience:?}; last seen:\n{last}"),
            // Checking must not take CPU time from what is awaited.
            Err(_) => std::thread::sleep(begin.elapsed().max(Duration::from_millis(20))),
        }
    }
}

/// The slowdown factor here, for limits that only detect a hang: as configured, or the load per processor of the machine, including
/// other work.
pub fn slowness() -> u32 {
    told_slowness().max(load())
}

/// `PODWRIGHT_TEST_SLOWNESS`, set in guests: for limits that are guarantees, which load does not extend.
pub fn told_slowness() -> u32 {
    std::env::var("PODWRIGHT_TEST_SLOWNESS").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

/// Running or runnable tasks per processor, at most ten: in the last minute, or now if that is more (proc_loadavg(5)).
fn load() -> u32 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let words: Vec<&str> = text.split(' ').collect();
    let average: f64 = words.first().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    let now: f64 = words.get(3).and_then(|word| word.split('/').next()?.parse().ok()).unwrap_or(0.0);
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get()) as f64;
    (average.max(now) / processors).ceil().clamp(1.0, 10.0) as u32
}

/// Succeeds if `text` contains `part`; otherwise shows the text.
pub fn contains(text: &str, part: &str) -> Result<(), String> {
    if text.contains(part) { Ok(()) } else { Err(format!("{part:?} is not in:\n{text}")) }
}
