//! Durations in flags.

use std::time::Duration;

/// A duration in Go's format, as in upstream's flags.
///
/// # Errors
///
/// The text is no duration.
pub fn duration(text: &str) -> Result<Duration, String> {
    crate::api::duration::parse(text).ok_or_else(|| "expected a duration, as 40s or 1m30s".to_owned())
}
