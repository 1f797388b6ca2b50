//! How work grows with the lists of one object, whose length is up to who writes it.

use std::time::Duration;

use podwright_runtime::sys::own::thread_time;

/// What 16 times as much of something takes is about 16 times as much work; each with each would be 256 times as much.
pub fn grows_with_its_lists<T, U>(what: &str, few: &T, many: &T, done: impl Fn(&T) -> U) {
    /// The least CPU time of a few tries: what else the machine does only adds to it.
    fn least<U>(done: impl Fn() -> U) -> Duration {
        let once = || {
            let before = thread_time();
            let made = done();
            let took = thread_time() - before;
            drop(made);
            took
        };
        (0..5).map(|_| once()).min().unwrap_or_default()
    }
    let took = [few, many].map(|of| least(|| done(of)));
    assert!(took[1] < took[0] * 64, "{what}: {took:?}");
}
