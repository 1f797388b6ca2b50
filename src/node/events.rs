//! Text that events and messages share: durations as Go prints them, upstream's wording.

use std::time::Duration;

/// A duration as Go's `time.Duration` prints it: `10s`, `1m20s`, `1.234s`, `350ms`, `1.5µs`.
pub fn duration(d: Duration) -> String {
    let nanos = d.as_nanos();
    if nanos == 0 {
        return "0s".into();
    }
    let fraction = |value: f64, unit: &str| {
        let text = format!("{value:.9}");
        format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    if nanos < 1_000 {
        return format!("{nanos}ns");
    }
    if nanos < 1_000_000 {
        return fraction(nanos as f64 / 1e3, "µs");
    }
    if nanos < 1_000_000_000 {
        return fraction(nanos as f64 / 1e6, "ms");
    }
    let (hours, minutes) = (d.as_secs() / 3600, d.as_secs() / 60 % 60);
    let rest = Duration::new(d.as_secs() % 60, d.subsec_nanos());
    let seconds = fraction(rest.as_secs_f64(), "s");
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, _) => format!("{minutes}m{seconds}"),
        _ => format!("{hours}h{minutes}m{seconds}"),
    }
}

/// The same, rounded to milliseconds, as in the Pulled event.
pub fn millis(d: Duration) -> String {
    duration(Duration::from_millis(d.as_millis() as u64))
}

/// Upstream's message for image pull secrets that were skipped.
pub fn left_out(secrets: &[String]) -> String {
    let secrets = secrets.join(", ");
    format!("Unable to retrieve some image pull secrets ({secrets}); attempting to pull the image may not succeed.")
}
