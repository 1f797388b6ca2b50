//! Schedules of CronJobs: the five fields of cron(5) and its `@` descriptors, as upstream parses them.

use jiff::civil::{Date, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp, Zoned};

use super::duration;

/// A recurring schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    Fields(Fields),
    /// `@every 90s`
    Every(SignedDuration),
}

/// Bit n of each is set if the value n matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    minute: u64,
    hour: u64,
    day: u64,
    month: u64,
    weekday: u64,
    /// Whether both day and weekday are restricted: then either is enough.
    either_day: bool,
}

/// Name, minimum, maximum, and the names of values.
struct Range {
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const MINUTES: Range = Range { low: 0, high: 59, names: &[] };
const HOURS: Range = Range { low: 0, high: 23, names: &[] };
const DAYS: Range = Range { low: 1, high: 31, names: &[] };
const MONTHS: Range = Range {
    low: 1,
    high: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAYS: Range = Range { low: 0, high: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

const WORDS: &[(&str, &str)] = &[
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// Why a schedule is invalid, in the words of upstream's parser.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    #[error("empty spec string")]
    Empty,
    #[error("failed to parse duration {spec}: time: invalid duration {period:?}")]
    Duration { spec: String, period: String },
    /// An unknown `@` descriptor.
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    #[error("expected exactly 5 fields, found {}: [{}]", .0.len(), .0.join(" "))]
    FieldCount(Vec<String>),
    #[error("too many slashes: {0}")]
    Slashes(String),
    #[error("too many hyphens: {0}")]
    Hyphens(String),
    #[error("negative number ({number}) not allowed: {text}")]
    Negative { number: i64, text: String },
    #[error("failed to parse int from {0}: strconv.Atoi: parsing {0:?}: invalid syntax")]
    NotANumber(String),
    #[error("beginning of range ({low}) below minimum ({least}): {text}")]
    BelowMinimum { low: u32, least: u32, text: String },
    #[error("end of range ({high}) above maximum ({most}): {text}")]
    AboveMaximum { high: u32, most: u32, text: String },
    #[error("beginning of range ({low}) beyond end of range ({high}): {text}")]
    Reversed { low: u32, high: u32, text: String },
    #[error("step of range should be a positive number: {0}")]
    ZeroStep(String),
}

/// How far ahead the next time is searched: 29 February may be eight years away.
const YEARS_AHEAD: i16 = 9;

impl Schedule {
    /// Parses a schedule.
    ///
    /// # Errors
    ///
    /// It is empty, has an unknown `@` descriptor or period, not five fields, or one of these is out of range.
    pub fn parse(text: &str) -> Result<Schedule, CronError> {
        if text.is_empty() {
            return Err(CronError::Empty);
        }
        if let Some(period) = text.strip_prefix("@every ") {
            let every = duration::parse(period).and_then(|every| i64::try_from(every.as_secs()).ok());
            return match every {
                Some(seconds) => Ok(Schedule::Every(SignedDuration::from_secs(seconds.max(1)))),
                None => Err(CronError::Duration { spec: text.to_owned(), period: period.to_owned() }),
            };
        }
        if text.starts_with('@') {
            let fields = WORDS.iter().find(|(word, _)| *word == text);
            let (_, fields) = fields.ok_or_else(|| CronError::Descriptor(text.to_owned()))?;
            return Fields::parse(fields).map(Schedule::Fields);
        }
        Fields::parse(text).map(Schedule::Fields)
    }

    /// The first time after `after`, in the time zone. `None`: it never happens.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            // In whole seconds, as upstream.
            Schedule::Every(every) => Timestamp::from_second(after.as_second()).ok()?.checked_add(*every).ok(),
            Schedule::Fields(fields) => fields.next(&after.to_zoned(zone.clone())),
        }
    }
}

impl Fields {
    fn parse(text: &str) -> Result<Fields, CronError> {
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = parts[..] else {
            return Err(CronError::FieldCount(parts.iter().map(|part| (*part).to_owned()).collect()));
        };
        let starred = |part: &str| part.split(',').any(|p| p.starts_with(['*', '?']));
        Ok(Fields {
            minute: field(minute, &MINUTES)?,
            hour: field(hour, &HOURS)?,
            day: field(day, &DAYS)?,
            month: field(month, &MONTHS)?,
            weekday: field(weekday, &WEEKDAYS)?,
            either_day: !starred(day) && !starred(weekday),
        })
    }

    fn fits(&self, date: Date) -> bool {
        let day = has(self.day, date.day().unsigned_abs().into());
        let weekday = has(self.weekday, date.weekday().to_sunday_zero_offset().unsigned_abs().into());
        has(self.month, date.month().unsigned_abs().into())
            && if self.either_day { day || weekday } else { day && weekday }
    }

    fn next(&self, after: &Zoned) -> Option<Timestamp> {
        let zone = after.time_zone();
        let last = after.date().year().saturating_add(YEARS_AHEAD);
        let mut date = after.date();
        while date.year() <= last {
            if self.fits(date)
                && let Some(found) = self.first(date, after.timestamp(), zone)
            {
                return Some(found);
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    /// The first time after `after` on a matching day. An hour that occurs twice, because clocks go back, counts twice, as
    /// upstream: hourly schedules continue.
    fn first(&self, date: Date, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let mut best: Option<Timestamp> = None;
        for time in self.times() {
            let (first, again) = at(date, time, zone);
            let found = [first, again].into_iter().flatten().filter(|at| *at > after);
            best = found.chain(best).min();
            // Times that occur once are later than repeated ones if they are later on the clock.
            if best.is_some() && again.is_none() {
                break;
            }
        }
        best
    }

    /// The matching times of a day.
    fn times(&self) -> impl Iterator<Item = Time> + '_ {
        let hours = (0..24).filter(|h| has(self.hour, *h));
        hours.flat_map(|h| {
            (0..60).filter(|m| has(self.minute, *m)).filter_map(move |m| Time::new(h as i8, m as i8, 0, 0).ok())
        })
    }
}

/// When a wall-clock time occurs: never if daylight saving skips it, twice if clocks go back.
fn at(date: Date, time: Time, zone: &TimeZone) -> (Option<Timestamp>, Option<Timestamp>) {
    let ambiguous = zone.to_ambiguous_timestamp(date.to_datetime(time));
    match ambiguous.offset() {
        AmbiguousOffset::Gap { .. } => (None, None),
        AmbiguousOffset::Unambiguous { .. } => (ambiguous.compatible().ok(), None),
        AmbiguousOffset::Fold { .. } => (ambiguous.earlier().ok(), ambiguous.later().ok()),
    }
}

fn has(bits: u64, n: u32) -> bool {
    bits & (1 << n) != 0
}

/// Parses a comma-separated list.
fn field(text: &str, range: &Range) -> Result<u64, CronError> {
    text.split(',').filter(|part| !part.is_empty()).try_fold(0, |bits, part| Ok(bits | one(part, range)?))
}

/// `*`, `3`, `1-5`, each optionally with `/2`.
fn one(text: &str, range: &Range) -> Result<u64, CronError> {
    let whole = || text.to_owned();
    let (span, step) = text.split_once('/').map_or((text, None), |(span, step)| (span, Some(step)));
    if step.is_some_and(|s| s.contains('/')) {
        return Err(CronError::Slashes(whole()));
    }
    let (low, high) = match span.split_once('-') {
        _ if span == "*" || span == "?" => (range.low, range.high),
        Some((_, high)) if high.contains('-') => return Err(CronError::Hyphens(whole())),
        Some((low, high)) => (number(low, range.names, range)?, number(high, range.names, range)?),
        None => {
            let low = number(span, range.names, range)?;
            (low, if step.is_some() { range.high } else { low })
        }
    };
    let step = step.map_or(Ok(1), |step| number(step, &[], range))?;
    if low < range.low {
        return Err(CronError::BelowMinimum { low, least: range.low, text: whole() });
    }
    if high > range.high {
        return Err(CronError::AboveMaximum { high, most: range.high, text: whole() });
    }
    if low > high {
        return Err(CronError::Reversed { low, high, text: whole() });
    }
    if step == 0 {
        return Err(CronError::ZeroStep(whole()));
    }
    Ok((low..=high).step_by(step as usize).fold(0, |bits, n| bits | 1 << n))
}

fn number(text: &str, names: &[&str], range: &Range) -> Result<u32, CronError> {
    if let Some(at) = names.iter().position(|name| text.eq_ignore_ascii_case(name)) {
        return Ok(at as u32 + range.low);
    }
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Err(CronError::Negative { number, text: text.to_owned() }),
        Ok(n) => Ok(u32::try_from(n).unwrap_or(u32::MAX)),
        Err(_) => Err(CronError::NotANumber(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str, zone: &str) -> String {
        let zone = TimeZone::get(zone).unwrap();
        let schedule = Schedule::parse(schedule).unwrap_or_else(|e| panic!("{schedule}: {e}"));
        schedule.next(after.parse().unwrap(), &zone).map_or_else(|| "never".into(), |t| t.to_string())
    }

    #[test]
    fn the_next_time_is_found() {
        for (schedule, expected) in [
            ("* * * * *", "2026-01-01T00:01:00Z"),
            ("*/15 * * * *", "2026-01-01T00:15:00Z"),
            ("5,10-12 3 * * *", "2026-01-01T03:05:00Z"),
            ("0 0 31 * *", "2026-01-31T00:00:00Z"),
            ("0 0 29 feb *", "2028-02-29T00:00:00Z"),
            ("0 0 30 2 *", "never"),
            ("0 0 * * sun", "2026-01-04T00:00:00Z"),
            // 1 January 2026 is a Thursday; either the 13th or a Friday matches.
            ("0 0 13 * fri", "2026-01-02T00:00:00Z"),
            ("@hourly", "2026-01-01T01:00:00Z"),
            ("@weekly", "2026-01-04T00:00:00Z"),
            ("@every 1h30m", "2026-01-01T01:30:30Z"),
        ] {
            assert_eq!(next(schedule, "2026-01-01T00:00:30.5Z", "UTC"), expected, "{schedule}");
        }
        assert_eq!(next("30 9 * * *", "2026-07-01T00:00:00Z", "America/New_York"), "2026-07-01T13:30:00Z");
        // 02:30 does not exist on the day when the clocks go forward.
        assert_eq!(next("30 2 * * *", "2026-03-28T12:00:00Z", "Europe/Berlin"), "2026-03-30T00:30:00Z");
        // On 25 October the hour from 02:00 occurs twice there: from 00:00 and from 01:00 UTC.
        for (schedule, after, expected) in [
            ("30 2 * * *", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"),
            ("30 2 * * *", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"),
            ("30 2 * * *", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"),
            ("*/30 * * * *", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z"),
            ("0,45 * * * *", "2026-10-25T00:00:00Z", "2026-10-25T00:45:00Z"),
            ("@hourly", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"),
        ] {
            assert_eq!(next(schedule, after, "Europe/Berlin"), expected, "{schedule} after {after}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (schedule, expected) in [
            ("", "empty spec string"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("a * * * *", "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax"),
            ("-1-2-3 * * * *", "too many hyphens: -1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("*/-5 * * * *", "negative number (-5) not allowed: -5"),
            ("@never", "unrecognized descriptor: @never"),
            ("@every x", "failed to parse duration @every x: time: invalid duration \"x\""),
        ] {
            let wrong = Schedule::parse(schedule).unwrap_err();
            assert_eq!(wrong.to_string(), expected, "{schedule}: {wrong:?}");
        }
    }
}
