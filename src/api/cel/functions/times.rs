//! Timestamps and durations.

use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp, Zoned};

use super::Param::{Int, Span, Text, Time};
use super::{Function, Out, global, int, member, text};
use crate::cel::times::{parse, span};
use crate::cel::{Error, Value};

/// A component of a date or time.
type Part = fn(&Zoned) -> i64;

const PARTS: &[(&str, Part)] = &[
    ("getFullYear", |t| t.year().into()),
    ("getMonth", |t| i64::from(t.month()) - 1),
    ("getDate", |t| t.day().into()),
    ("getDayOfMonth", |t| i64::from(t.day()) - 1),
    ("getDayOfWeek", |t| t.weekday().to_sunday_zero_offset().into()),
    ("getDayOfYear", |t| i64::from(t.day_of_year()) - 1),
    ("getHours", |t| t.hour().into()),
    ("getMinutes", |t| t.minute().into()),
    ("getSeconds", |t| t.second().into()),
    ("getMilliseconds", |t| t.millisecond().into()),
];

pub fn rows() -> Vec<Function> {
    let mut rows = vec![
        global("timestamp", &[Text], Out::Time, |v, _| {
            let invalid = || Error::new(format!("invalid timestamp {:?}", text(v, 0)));
            parse(text(v, 0)).map(Value::Timestamp).ok_or_else(invalid)
        }),
        global("timestamp", &[Time], Out::Time, |v, _| Ok(v[0].clone())),
        global("timestamp", &[Int], Out::Time, |v, _| {
            Timestamp::from_second(int(v, 0)).map(Value::Timestamp).map_err(|_| Error::new("timestamp overflow"))
        }),
        global("duration", &[Text], Out::Span, |v, _| {
            let invalid = || Error::new(format!("time: invalid duration {:?}", text(v, 0)));
            span(text(v, 0)).map(Value::Duration).ok_or_else(invalid)
        }),
        global("duration", &[Span], Out::Span, |v, _| Ok(v[0].clone())),
        member("getHours", &[Span], Out::Int, |v, _| Ok(Value::Int(of(v).as_hours()))),
        member("getMinutes", &[Span], Out::Int, |v, _| Ok(Value::Int(of(v).as_mins()))),
        member("getSeconds", &[Span], Out::Int, |v, _| Ok(Value::Int(of(v).as_secs()))),
        member("getMilliseconds", &[Span], Out::Int, |v, _| Ok(Value::Int(of(v).as_millis() as i64))),
    ];
    macro_rules! parts {
        ($($at:literal)*) => {$(
            rows.push(member(PARTS[$at].0, &[Time], Out::Int, |v, _| part(v, PARTS[$at].1)));
            rows.push(member(PARTS[$at].0, &[Time, Text], Out::Int, |v, _| part(v, PARTS[$at].1)));
        )*};
    }
    parts!(0 1 2 3 4 5 6 7 8 9);
    rows
}

fn of(values: &[Value]) -> SignedDuration {
    match &values[0] {
        Value::Duration(d) => *d,
        _ => SignedDuration::ZERO,
    }
}

fn part(values: &[Value], part: Part) -> Result<Value, Error> {
    let Value::Timestamp(time) = &values[0] else { return Err(Error::no_such_overload()) };
    let zone = match values.get(1) {
        None => TimeZone::UTC,
        Some(_) => zone(text(values, 1)).ok_or_else(|| Error::new(format!("unknown time zone {}", text(values, 1))))?,
    };
    Ok(Value::Int(part(&time.to_zoned(zone))))
}

/// `Europe/Berlin`, `-02:00`
fn zone(name: &str) -> Option<TimeZone> {
    let Some((hours, minutes)) = name.split_once(':') else { return TimeZone::get(name).ok() };
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    let minutes = if name.starts_with('-') { -minutes } else { minutes };
    Offset::from_seconds(hours.checked_mul(3600)?.checked_add(minutes.checked_mul(60)?)?).ok().map(TimeZone::fixed)
}
