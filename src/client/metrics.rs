//! What the clients of this process' own components tell of their calls, under upstream's names
//! (`k8s.io/component-base/metrics/prometheus/restclient`, `.../clientgo/leaderelection`).

use std::sync::LazyLock;
use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};
use prometheus_client::registry::Unit;

use crate::api::instruments;
use crate::api::{Response, Status, Verb, request::Body};

/// The server is in this process: there is no address to name.
const HOST: &str = "in-process";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    code: u16,
    method: &'static str,
    host: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Asked {
    verb: &'static str,
    host: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfLease {
    name: &'static str,
}

struct Metrics {
    requests: Family<Answered, Counter>,
    seconds: Family<Asked, Histogram>,
    masters: Family<OfLease, Gauge>,
}

fn seconds() -> Histogram {
    Histogram::new([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0])
}

static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    let metrics = Metrics {
        requests: Family::default(),
        seconds: Family::new_with_constructor(seconds as fn() -> Histogram),
        masters: Family::default(),
    };
    instruments::declare(|registry| {
        let help = "Number of HTTP requests, partitioned by status code, method, and host. (Components call the server \
            within its process; the method is the one that REST has for what they ask.)";
        registry.register("rest_client_requests", help, metrics.requests.clone());
        let help = "Request latency in seconds. Broken down by verb, and host";
        registry.register_with_unit("rest_client_request_duration", help, Unit::Seconds, metrics.seconds.clone());
        let help = "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates \
            master. 'name' is the string used to identify the lease. Please make sure to group by name";
        registry.register("leader_election_master_status", help, metrics.masters.clone());
    });
    metrics
});

/// The method of REST for a verb.
fn method(verb: Verb) -> &'static str {
    match verb {
        Verb::Get | Verb::List | Verb::Watch => "GET",
        Verb::Create | Verb::Connect => "POST",
        Verb::Update => "PUT",
        Verb::Patch => "PATCH",
        Verb::Delete | Verb::DeleteCollection => "DELETE",
    }
}

/// A call that began then has been answered.
pub(super) fn called(verb: Verb, began: Instant, answer: &Result<Response, Status>) {
    let code = match answer {
        Ok(Response { body: Body::Object { created: true, .. }, .. }) => 201,
        Ok(Response { body: Body::Status(status), .. }) => status.http_code(),
        Err(status) => status.http_code(),
        Ok(_) => 200,
    };
    answered(verb, began, code);
}

pub(super) fn answered(verb: Verb, began: Instant, code: u16) {
    let (method, host) = (method(verb), HOST);
    METRICS.requests.get_or_create(&Answered { code, method, host }).inc();
    METRICS.seconds.get_or_create(&Asked { verb: method, host }).observe(began.elapsed().as_secs_f64());
}

/// Whether the Lease of this name is held here.
pub(super) fn leads(name: &'static str, leads: bool) {
    METRICS.masters.get_or_create(&OfLease { name }).set(leads.into());
}
