//! The Linux version.

use std::fs;

/// As `uname -r` prints it; empty if procfs cannot be read.
pub fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Major and minor version: 6 and 1 for `6.1.0-13-amd64`; zero if unreadable, so that no feature is assumed.
pub fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
