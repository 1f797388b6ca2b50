//! The progress of long operations, shown on a terminal at standard error.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use super::out;

/// The minimum interval between updates.
const OFTEN: Duration = Duration::from_millis(100);

/// A line that is updated during an operation, and removed when dropped. Without a terminal nothing is shown.
pub struct Progress {
    shown: bool,
    told: Option<Instant>,
}

impl Progress {
    pub fn begin() -> Progress {
        Progress { shown: std::io::stderr().is_terminal(), told: None }
    }

    /// `sent 1.2MB of 3.4MB`, or without the total if it is unknown.
    pub fn tell(&mut self, what: &str, done: u64, whole: Option<u64>) {
        if !self.shown || self.told.is_some_and(|told| told.elapsed() < OFTEN) {
            return;
        }
        self.told = Some(Instant::now());
        out::progress(&line(what, done, whole));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.told.is_some() {
            out::progress("");
        }
    }
}

fn line(what: &str, done: u64, whole: Option<u64>) -> String {
    match whole {
        Some(whole) => format!("{what} {} of {}", size(done), size(whole)),
        None => format!("{what} {}", size(done)),
    }
}

/// `12.3MB`, in powers of ten like image tools.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes}B") } else { format!("{value:.1}{}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let shown = [0, 999, 1000, 12_345_678, 3_000_000_000].map(size);
        assert_eq!(shown, ["0B", "999B", "1.0kB", "12.3MB", "3.0GB"]);
        assert_eq!(line("sent", 1200, Some(3400)), "sent 1.2kB of 3.4kB");
        assert_eq!(line("sent", 1200, None), "sent 1.2kB");
    }
}
