//! Formats of times and durations in expressions.

use jiff::{SignedDuration, Timestamp};

use crate::duration;

/// RFC 3339.
pub fn parse(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// Go's format: `1h30m`, `-1.5s`.
pub fn span(text: &str) -> Option<SignedDuration> {
    let (negative, bare) = text.strip_prefix('-').map_or((false, text), |bare| (true, bare));
    let span = SignedDuration::try_from(duration::parse(bare)?).ok()?;
    Some(if negative { -span } else { span })
}
