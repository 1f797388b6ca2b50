//! What whole-node tests share: nodes of their own, the command line, waiting for conditions, and looking for leftovers.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod api;
pub mod devices;
pub mod etcd;
pub mod leftovers;
pub mod netns;
pub mod node;
pub mod readiness;
pub mod registry;
pub mod sweep;
pub mod sysctls;
pub mod talk;
pub mod tls;

use std::time::{Duration, Instant};

#[allow(unused_imports)] // Not every test binary looks at answers.
pub use node::Answer;
pub use node::TestNode;
#[allow(unused_imports)] // Only some talk with a command that goes on.
pub use talk::Talk;

/// Waits until `check` gives a value; panics with its last word when `patience` is over. In a guest without hardware
/// virtualisation everything takes about ten times as long, so the patience is multiplied there.
#[track_caller]
pub fn eventually<T>(what: &str, patience: Duration, mut check: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + patience * slowness();
    loop {
        let begin = Instant::now();
        match check() {
            Ok(value) => return value,
            Err(last) if Instant::now() > deadline => panic!("{what}: not within {patience:?}; last seen:\n{last}"),
            // Looking must not take the time of what is looked at.
            Err(_) => std::thread::sleep(begin.elapsed().max(Duration::from_millis(20))),
        }
    }
}

/// How many times slower than usual this machine is: `PODWRIGHT_TEST_SLOWNESS`, set in guests.
pub fn slowness() -> u32 {
    std::env::var("PODWRIGHT_TEST_SLOWNESS").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

/// Says that a test is left out, because a client is not here. On machines for which `./dev test` gets it that is a failure.
#[track_caller]
pub fn left_out(why: &str) {
    assert!(std::env::var_os("PODWRIGHT_TEST_CLIENTS").is_none(), "not skipped: {why}");
    eprintln!("skipped: {why}");
}

/// Succeeds if `text` contains `part`; else says what there is.
pub fn contains(text: &str, part: &str) -> Result<(), String> {
    if text.contains(part) { Ok(()) } else { Err(format!("{part:?} is not in:\n{text}")) }
}
