//! Metrics of the clients of this process' own components, under upstream's names
//! (`k8s.io/component-base/metrics/prometheus/restclient`, `.../clientgo/leaderelection`).

use std::sync::LazyLock;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};
use prometheus_client::registry::Unit;

use super::{Measured, Told};
use podwright_api::instruments;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    code: String,
    method: &'static str,
    host: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Asked {
    verb: &'static str,
    host: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfLease {
    name: &'static str,
}

struct Metrics {
    requests: Family<Answered, Counter>,
    seconds: Family<Asked, Histogram>,
    sent: Family<Asked, Histogram>,
    received: Family<Asked, Histogram>,
    masters: Family<OfLease, Gauge>,
}

fn seconds() -> Histogram {
    Histogram::new(instruments::REQUEST_SECONDS)
}

fn bytes() -> Histogram {
    Histogram::new(instruments::REQUEST_BYTES)
}

static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    let metrics = Metrics {
        requests: Family::default(),
        seconds: Family::new_with_constructor(seconds as fn() -> Histogram),
        sent: Family::new_with_constructor(bytes as fn() -> Histogram),
        received: Family::new_with_constructor(bytes as fn() -> Histogram),
        masters: Family::default(),
    };
    instruments::declare(|registry| {
        let help = "Number of HTTP requests, partitioned by status code, method, and host. (Components call the server \
            within its process; the method is the one that REST has for what they ask.)";
        registry.register("rest_client_requests", help, metrics.requests.clone());
        let help = "Request latency in seconds. Broken down by verb, and host";
        registry.register_with_unit("rest_client_request_duration", help, Unit::Seconds, metrics.seconds.clone());
        let help = "Request size in bytes. Broken down by verb and host";
        registry.register_with_unit("rest_client_request_size", help, Unit::Bytes, metrics.sent.clone());
        let help = "Response size in bytes. Broken down by verb and host";
        registry.register_with_unit("rest_client_response_size", help, Unit::Bytes, metrics.received.clone());
        let help = "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates \
            master. 'name' is the string used to identify the lease. Please make sure to group by name";
        registry.register("leader_election_master_status", help, metrics.masters.clone());
    });
    metrics
});

/// A request has completed.
pub(super) fn requested(told: &Told<'_>) {
    let (host, verb) = (told.host.to_owned(), told.method);
    let answered = Answered { code: told.code.to_owned(), method: verb, host: host.clone() };
    METRICS.requests.get_or_create(&answered).inc();
    let Some(Measured { took, sent, received }) = &told.measured else { return };
    let asked = Asked { verb, host };
    METRICS.seconds.get_or_create(&asked).observe(took.as_secs_f64());
    if let Some(sent) = sent {
        METRICS.sent.get_or_create(&asked).observe(*sent as f64);
    }
    if let Some(received) = received {
        METRICS.received.get_or_create(&asked).observe(*received as f64);
    }
}

/// Whether the Lease of this name is held here.
pub(super) fn leads(name: &'static str, leads: bool) {
    METRICS.masters.get_or_create(&OfLease { name }).set(leads.into());
}
