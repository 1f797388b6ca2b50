//! The latest scheduled time that has come.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use podwright_api::cron::Schedule;

/// Roughly how many times have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// One or none.
    None,
    Few,
    /// More than 100.
    Many,
}

/// A schedule never matches. Upstream's words for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("time difference between two schedules is less than 1 second")]
pub struct NeverComes;

/// The latest scheduled time after `from` and not after `now`, and how many have come.
pub fn most_recent(
    schedule: &Schedule,
    zone: &TimeZone,
    from: Timestamp,
    now: Timestamp,
) -> Result<(Option<Timestamp>, Missed), NeverComes> {
    let next = |after| schedule.next(after, zone);
    let Some(first) = next(from) else { return Err(NeverComes) };
    if now < first {
        return Ok((None, Missed::None));
    }
    let Some(second) = next(first).filter(|second| *second <= now) else { return Ok((Some(first), Missed::None)) };
    let gap = second.duration_since(first).as_secs().max(1);
    // Upstream's estimate: as if all intervals were like the first.
    let missed = now.duration_since(first).as_secs() / gap + 1;
    let last = match schedule {
        Schedule::Every(_) => first + SignedDuration::from_secs((missed - 1) * gap),
        Schedule::Fields(_) => last_by(now, second, next),
    };
    Ok((Some(last), if missed > 100 { Missed::Many } else { Missed::Few }))
}

/// The latest time not after `now`, of which `known` is one: a binary search.
fn last_by(now: Timestamp, known: Timestamp, next: impl Fn(Timestamp) -> Option<Timestamp>) -> Timestamp {
    // Invariant: `last` is a time not after `now`, and none is from `end` on. Times are whole seconds.
    let (mut last, mut end) = (known, now.as_second() + 1);
    while last.as_second() + 1 < end {
        let middle = last.as_second() + (end - last.as_second()) / 2;
        // A time at `middle` itself counts.
        let before = Timestamp::from_second(middle - 1).unwrap_or(last);
        match next(before).filter(|at| *at <= now) {
            Some(at) => last = at,
            None => end = middle,
        }
    }
    last
}
