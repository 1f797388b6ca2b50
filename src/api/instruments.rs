//! The metrics of this process' components, under upstream's names, for Prometheus at `/metrics`: its work queues and the
//! scheduler. One registry per process, like upstream's (`k8s.io/component-base/metrics/legacyregistry`): components declare their
//! metrics here, and the API server exposes them with its own.

use std::fmt::{Debug, Write as _};
use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};
use prometheus_client::registry::{Registry, Unit};

/// A fractional gauge, such as seconds.
pub type Fraction = Gauge<f64, AtomicU64>;

/// Updates metrics that are not counted continuously.
type Refresh = Box<dyn Fn() + Send>;

#[derive(Default)]
struct Instruments {
    registry: Registry,
    refresh: Vec<Refresh>,
}

static INSTRUMENTS: LazyLock<Mutex<Instruments>> = LazyLock::new(Mutex::default);

fn instruments() -> MutexGuard<'static, Instruments> {
    // Consistent after a panic: a metric is declared or not.
    INSTRUMENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Declares metrics, each once per process.
pub fn declare<T>(metrics: impl FnOnce(&mut Registry) -> T) -> T {
    metrics(&mut instruments().registry)
}

/// The labels of a family.
pub trait Labels: Clone + Debug + Hash + Eq + EncodeLabelSet + Send + Sync + 'static {}
impl<L: Clone + Debug + Hash + Eq + EncodeLabelSet + Send + Sync + 'static> Labels for L {}

/// Creates and registers metrics, with their names and descriptions.
pub struct Maker<'r>(pub &'r mut Registry);

impl Maker<'_> {
    pub fn counter(&mut self, name: &str, help: &str) -> Counter {
        let made = Counter::default();
        self.0.register(name, help, made.clone());
        made
    }
    pub fn counters<L: Labels>(&mut self, name: &str, help: &str) -> Family<L, Counter> {
        let made = Family::default();
        self.0.register(name, help, made.clone());
        made
    }
    pub fn gauges<L: Labels>(&mut self, name: &str, help: &str) -> Family<L, Gauge> {
        let made = Family::default();
        self.0.register(name, help, made.clone());
        made
    }
    /// In bytes.
    pub fn gauges_of_bytes<L: Labels>(&mut self, name: &str, help: &str) -> Family<L, Gauge> {
        let made = Family::default();
        self.0.register_with_unit(name, help, Unit::Bytes, made.clone());
        made
    }
    pub fn histograms<L: Labels>(&mut self, name: &str, help: &str, make: fn() -> Histogram) -> Family<L, Histogram> {
        let made = Family::new_with_constructor(make);
        self.0.register(name, help, made.clone());
        made
    }
    /// In seconds.
    pub fn seconds<L: Labels>(&mut self, name: &str, help: &str, make: fn() -> Histogram) -> Family<L, Histogram> {
        let made = Family::new_with_constructor(make);
        self.0.register_with_unit(name, help, Unit::Seconds, made.clone());
        made
    }
    pub fn seconds_alone(&mut self, name: &str, help: &str, made: Histogram) -> Histogram {
        self.0.register_with_unit(name, help, Unit::Seconds, made.clone());
        made
    }
}

/// Runs `refresh` before each exposition. It must not declare metrics.
pub fn before_exposition(refresh: impl Fn() + Send + 'static) {
    instruments().refresh.push(Box::new(refresh));
}

/// Upstream's buckets for request and store latencies, in seconds.
pub const LATENCIES: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// Upstream's buckets for clients' request latencies, in seconds.
pub const REQUEST_SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// Upstream's buckets for request and response sizes, in bytes.
pub const REQUEST_BYTES: [f64; 11] =
    [64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0];

/// Prometheus' `ExponentialBuckets`.
pub fn exponential(start: f64, factor: f64, count: i32) -> impl Iterator<Item = f64> {
    (0..count).map(move |exponent| start * factor.powi(exponent))
}

/// The exposition format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The format for an `Accept` header; text unless it has OpenMetrics with no lower weight.
    pub fn wanted(accept: Option<&str>) -> Format {
        let weight = |of: &str| {
            let clauses = accept.unwrap_or("").split(',').map(|clause| clause.split(';').map(str::trim));
            let weights = clauses.filter_map(|mut parts| {
                let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(of));
                let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok()).unwrap_or(1.0);
                named.then_some(weight)
            });
            weights.fold(0.0, f32::max)
        };
        match weight("application/openmetrics-text") {
            open if open > 0.0 && open >= weight("text/plain") => Format::OpenMetrics,
            _ => Format::Text,
        }
    }

    pub fn media_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The metrics of a registry, already encoded ones (in OpenMetrics), and the declared ones.
pub fn expose(own: &Registry, others: &str, format: Format) -> String {
    let mut out = encoded(own);
    {
        let instruments = instruments();
        instruments.refresh.iter().for_each(|refresh| refresh());
        out.push_str(&encoded(&instruments.registry));
    }
    in_format(out, others, format)
}

/// The same without the declared ones.
pub fn expose_alone(own: &Registry, others: &str, format: Format) -> String {
    in_format(encoded(own), others, format)
}

fn encoded(registry: &Registry) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = text::encode(&mut out, registry);
    cut_end(&mut out);
    out
}

fn in_format(mut out: String, others: &str, format: Format) -> String {
    out.push_str(others);
    match format {
        Format::OpenMetrics => out + "# EOF\n",
        Format::Text => plain(&out),
    }
}

fn cut_end(out: &mut String) {
    if let Some(length) = out.strip_suffix("# EOF\n").map(str::len) {
        out.truncate(length);
    }
}

/// Converts OpenMetrics to the older text format: counters have the names of their samples, and there are no units.
pub fn plain(open: &str) -> String {
    let counters: Vec<&str> =
        open.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut out = String::with_capacity(open.len());
    for line in open.lines() {
        let mut words = line.splitn(4, ' ');
        let described = match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("UNIT"), ..) => continue,
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), Some(rest)) => Some((what, name, rest)),
            _ => None,
        };
        // Writing to a String cannot fail.
        let _ = match described {
            Some((what, name, rest)) if counters.contains(&name) => writeln!(out, "# {what} {name}_total {rest}"),
            _ => writeln!(out, "{line}"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_named_as_their_samples_in_the_older_format() {
        let open = "# HELP a_b Things.\n# TYPE a_b counter\n# UNIT a_b seconds\na_b_total{x=\"# TYPE a_b counter\"} 1\n\
            # HELP g Some a_b.\n# TYPE g gauge\ng 2\n";
        assert_eq!(
            plain(open),
            "# HELP a_b_total Things.\n# TYPE a_b_total counter\na_b_total{x=\"# TYPE a_b counter\"} 1\n\
            # HELP g Some a_b.\n# TYPE g gauge\ng 2\n"
        );
    }

    #[test]
    fn the_format_is_what_the_client_prefers() {
        let of = |accept: &str| Format::wanted(Some(accept));
        assert_eq!(Format::wanted(None), Format::Text);
        assert_eq!(of("*/*"), Format::Text);
        assert_eq!(of("application/openmetrics-text; version=1.0.0"), Format::OpenMetrics);
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(of(prometheus), Format::OpenMetrics);
        assert_eq!(of("application/openmetrics-text;q=0.4,text/plain;version=0.0.4;q=0.5"), Format::Text);
        assert_eq!(of("application/openmetrics-text;q=0"), Format::Text);
    }
}
