//! The counted metrics: those of upstream's `pkg/kubelet/metrics` and `pkg/kubelet/prober` that apply here.

use super::Row;
use podwright_api::instruments::{REQUEST_BYTES, REQUEST_SECONDS};

/// Prometheus' default buckets.
const PLAIN: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Buckets for Pod startup.
const STARTS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
/// From 5 ms, each 2.5 times the previous.
const OPERATIONS: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.0232238769531,
    745.0580596923828,
];

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Row {
    Row { name, help, labels, buckets: &[] }
}

const fn spread(
    name: &'static str,
    labels: &'static [&'static str],
    buckets: &'static [f64],
    help: &'static str,
) -> Row {
    Row { name, help, labels, buckets }
}

pub static STARTED_PODS: Row =
    counter("kubelet_started_pods_total", &[], "Cumulative number of Pods whose sandbox was asked for");
pub static STARTED_PODS_ERRORS: Row =
    counter("kubelet_started_pods_errors_total", &[], "Cumulative number of sandboxes that were not started");
pub static STARTED_CONTAINERS: Row = counter(
    "kubelet_started_containers_total",
    &["container_type"],
    "Cumulative number of containers that were asked to start",
);
pub static STARTED_CONTAINERS_ERRORS: Row = counter(
    "kubelet_started_containers_errors_total",
    &["container_type", "code"],
    "Cumulative number of containers that did not start, by the reason",
);
pub static POD_START: Row = spread(
    "kubelet_pod_start_duration_seconds",
    &[],
    STARTS,
    "Seconds from when the agent first saw a Pod until it was running",
);
pub static POD_START_SLI: Row = spread(
    "kubelet_pod_start_sli_duration_seconds",
    &[],
    STARTS,
    "Seconds from a Pod's creation until it was running, without those that images were pulled and init containers ran",
);
pub static POD_WORKER: Row = spread(
    "kubelet_pod_worker_duration_seconds",
    &["operation_type"],
    PLAIN,
    "Seconds that one turn of a Pod's worker took, by whether it was the first",
);
pub static OPERATIONS_TOTAL: Row = counter(
    "kubelet_runtime_operations_total",
    &["operation_type"],
    "Cumulative number of operations of the runtime, by their type",
);
pub static OPERATIONS_ERRORS: Row = counter(
    "kubelet_runtime_operations_errors_total",
    &["operation_type"],
    "Cumulative number of operations of the runtime that failed, by their type",
);
pub static OPERATIONS_DURATION: Row = spread(
    "kubelet_runtime_operations_duration_seconds",
    &["operation_type"],
    OPERATIONS,
    "Seconds that operations of the runtime took, by their type",
);
pub static EVICTIONS: Row = counter(
    "kubelet_evictions",
    &["eviction_signal"],
    "Cumulative number of Pods that were evicted for the node's sake, by what it was short of",
);
pub static HTTP_REQUESTS: Row = counter(
    "kubelet_http_requests_total",
    &["method", "path", "server_type", "long_running"],
    "Cumulative number of requests for the node's endpoints",
);
pub static HTTP_DURATION: Row = spread(
    "kubelet_http_requests_duration_seconds",
    &["method", "path", "server_type", "long_running"],
    PLAIN,
    "Seconds until requests for the node's endpoints were answered",
);
pub static CLIENT_REQUESTS: Row = counter(
    "rest_client_requests_total",
    &["code", "host", "method"],
    "Number of requests to the API server, by the code of the answer, method and host",
);
pub static CLIENT_DURATION: Row = spread(
    "rest_client_request_duration_seconds",
    &["verb", "host"],
    &REQUEST_SECONDS,
    "Seconds that requests to the API server took, by method and host",
);
pub static CLIENT_SENT: Row = spread(
    "rest_client_request_size_bytes",
    &["verb", "host"],
    &REQUEST_BYTES,
    "Size of requests to the API server in bytes, by method and host",
);
pub static CLIENT_RECEIVED: Row = spread(
    "rest_client_response_size_bytes",
    &["verb", "host"],
    &REQUEST_BYTES,
    "Size of the API server's answers in bytes, by method and host",
);

/// Metrics of `/metrics`.
pub static ROWS: [&Row; 17] = [
    &STARTED_PODS,
    &STARTED_PODS_ERRORS,
    &STARTED_CONTAINERS,
    &STARTED_CONTAINERS_ERRORS,
    &POD_START,
    &POD_START_SLI,
    &POD_WORKER,
    &OPERATIONS_TOTAL,
    &OPERATIONS_ERRORS,
    &OPERATIONS_DURATION,
    &EVICTIONS,
    &HTTP_REQUESTS,
    &HTTP_DURATION,
    &CLIENT_REQUESTS,
    &CLIENT_DURATION,
    &CLIENT_SENT,
    &CLIENT_RECEIVED,
];

pub static PROBES_TOTAL: Row = counter(
    "prober_probe_total",
    &["probe_type", "result", "container", "pod", "namespace", "pod_uid"],
    "Cumulative number of probes of a container, by their result",
);
pub static PROBES_DURATION: Row = spread(
    "prober_probe_duration_seconds",
    &["probe_type", "container", "pod", "namespace"],
    PLAIN,
    "Seconds that successful and failed probes of a container took",
);

/// Upstream runs all due probes at once.
pub static PROBES_WAIT: Row = spread(
    "podwright_prober_wait_duration_seconds",
    &["probe_type", "container", "pod", "namespace"],
    OPERATIONS,
    "Seconds that probes of a container waited until the node ran their command",
);

/// Metrics of `/metrics/probes`.
pub static PROBES: [&Row; 3] = [&PROBES_TOTAL, &PROBES_DURATION, &PROBES_WAIT];
