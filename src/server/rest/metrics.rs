//! `/metrics`: what the REST face counts, under upstream's names where these exist.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// What tells one series of requests from another.
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Asked {
    pub verb: String,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Kindly {
    verb: String,
}

/// Upstream's buckets, in seconds.
const BUCKETS: [f64; 16] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0];

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

pub struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    seconds: Family<Asked, Histogram>,
    running: Family<Kindly, Gauge<i64, AtomicI64>>,
    /// How long the exposition was the last time.
    size: AtomicUsize,
}

/// Counts one request as running for as long as it lives.
pub struct Running(Gauge<i64, AtomicI64>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub fn new() -> Metrics {
        let mut registry = Registry::default();
        let requests = Family::<Answered, Counter>::default();
        let seconds: Family<Asked, Histogram> = Family::new_with_constructor(histogram as fn() -> Histogram);
        let running = Family::<Kindly, Gauge<i64, AtomicI64>>::default();
        registry.register("apiserver_request", "REST requests by what was asked and answered", requests.clone());
        registry.register_with_unit(
            "apiserver_request_duration",
            "How long REST requests took, watches and streams left out",
            Unit::Seconds,
            seconds.clone(),
        );
        registry.register("apiserver_current_inflight_requests", "REST requests that run now", running.clone());
        Metrics { registry, requests, seconds, running, size: AtomicUsize::new(0) }
    }

    pub fn begin(&self, verb: &str) -> Running {
        let mutating = !matches!(verb, "get" | "list" | "watch" | "connect" | "");
        let verb = if mutating { "mutating" } else { "readOnly" }.to_owned();
        let gauge = self.running.get_or_create(&Kindly { verb }).clone();
        gauge.inc();
        Running(gauge)
    }

    pub fn end(&self, asked: Asked, code: u16, took: Duration) {
        if !matches!(asked.verb.as_str(), "watch" | "connect") {
            self.seconds.get_or_create(&asked).observe(took.as_secs_f64());
        }
        let Asked { verb, group, version, resource, subresource } = asked;
        self.requests.get_or_create(&Answered { verb, group, version, resource, subresource, code }).inc();
    }

    /// The exposition in OpenMetrics text.
    pub fn expose(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut out, &self.registry);
        self.size.store(out.len(), Ordering::Relaxed);
        out
    }

    /// How many bytes the exposition has, more or less.
    pub fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }
}
