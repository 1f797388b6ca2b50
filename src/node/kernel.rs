//! Which Linux this is.

use std::fs;

/// As `uname -r` tells it; empty where procfs does not say.
pub fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Major and minor version, of `6.1.0-13-amd64` 6 and 1; zero what cannot be read, so that nothing is taken to be safe.
pub fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
