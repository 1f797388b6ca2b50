//! The pipeline's own metrics under upstream's names: admission, the store, the audit log, credentials.

use std::collections::BTreeSet;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};

use super::admission::operation::Operation;
use podwright_api::Kind;
use podwright_api::instruments::{self, LATENCIES, Maker};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Step {
    r#type: &'static str,
    operation: &'static str,
    rejected: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Plugin {
    name: &'static str,
    r#type: &'static str,
    operation: &'static str,
    rejected: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Webhook {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    rejected: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Stored {
    operation: &'static str,
    group: &'static str,
    resource: &'static str,
}

/// One of the two phases of admission, by upstream's name.
#[derive(Clone, Copy)]
pub(super) enum Half {
    Admit,
    Validate,
}

/// A decision on one write.
#[derive(Clone, Copy)]
pub(super) struct Decided {
    pub half: Half,
    pub operation: Operation,
    pub rejected: bool,
    pub began: Instant,
}

impl Decided {
    fn labels(&self) -> (&'static str, &'static str, &'static str) {
        let half = match self.half {
            Half::Admit => "admit",
            Half::Validate => "validate",
        };
        (half, self.operation.as_str(), if self.rejected { "true" } else { "false" })
    }
    fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}

/// Webhook names are chosen by administrators: only this many get series of their own.
const NAMES: usize = 256;
const OTHERS: &str = "other";

#[derive(Default)]
struct Names(Mutex<BTreeSet<String>>);

impl Names {
    /// The name, or a placeholder once there are too many.
    fn known(&self, name: &str) -> String {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !names.contains(name) {
            if names.len() == NAMES {
                return OTHERS.to_owned();
            }
            names.insert(name.to_owned());
        }
        name.to_owned()
    }
}

pub(super) struct Metrics {
    steps: Family<Step, Histogram>,
    plugins: Family<Plugin, Histogram>,
    webhooks: Family<Webhook, Histogram>,
    names: Names,
    store: Family<Stored, Histogram>,
    requests: Family<Stored, Counter>,
    errors: Family<Stored, Counter>,
    audited: Counter,
    not_audited: Counter,
    certificates: Histogram,
}

fn admission() -> Histogram {
    Histogram::new([0.005, 0.025, 0.1, 0.5, 1.0, 2.5])
}

fn webhook() -> Histogram {
    Histogram::new([0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0])
}

fn latency() -> Histogram {
    Histogram::new(LATENCIES)
}

const MINUTE: f64 = 60.0;
const HOUR: f64 = 60.0 * MINUTE;
const DAY: f64 = 24.0 * HOUR;
/// Upstream's buckets of a certificate's remaining lifetime.
const LEFT: [f64; 14] = [
    0.0,
    30.0 * MINUTE,
    HOUR,
    2.0 * HOUR,
    6.0 * HOUR,
    12.0 * HOUR,
    DAY,
    2.0 * DAY,
    4.0 * DAY,
    7.0 * DAY,
    30.0 * DAY,
    90.0 * DAY,
    180.0 * DAY,
    360.0 * DAY,
];

/// Shared by all servers of this process.
pub(super) static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    instruments::declare(|registry| {
        let mut make = Maker(registry);
        Metrics {
            steps: make.seconds(
                "apiserver_admission_step_admission_duration",
                "Admission sub-step latency histogram in seconds, broken out for each operation and API resource and step type \
                 (validate or admit)",
                admission,
            ),
            plugins: make.seconds(
                "apiserver_admission_controller_admission_duration",
                "Admission controller latency histogram in seconds, identified by name and broken out for each operation and API \
                 resource and type (validate or admit)",
                admission,
            ),
            webhooks: make.seconds(
                "apiserver_admission_webhook_admission_duration",
                "Admission webhook latency histogram in seconds, identified by name and broken out for each operation and API \
                 resource and type (validate or admit)",
                webhook,
            ),
            names: Names::default(),
            store: make.seconds(
                "etcd_request_duration",
                "Etcd request latency in seconds for each operation and object type. (Of the store, whatever it is.)",
                latency,
            ),
            requests: make.counters(
                "etcd_requests",
                "Etcd request counts for each operation and object type. (Of the store, whatever it is.)",
            ),
            errors: make.counters(
                "etcd_request_errors",
                "Etcd failed request counts for each operation and object type. (Of the store, whatever it is.)",
            ),
            audited: make.counter(
                "apiserver_audit_event",
                "Counter of audit events generated and sent to the audit backend",
            ),
            not_audited: make.counter(
                "apiserver_audit_error",
                "Counter of audit events that the log lacks, as it could not be written in time",
            ),
            certificates: make.seconds_alone(
                "apiserver_client_certificate_expiration",
                "Distribution of the remaining lifetime on the certificate used to authenticate a request",
                Histogram::new(LEFT),
            ),
        }
    })
});

impl Metrics {
    /// One phase of admission is complete.
    pub fn step(&self, decided: Decided) {
        let (r#type, operation, rejected) = decided.labels();
        self.steps.get_or_create(&Step { r#type, operation, rejected }).observe(decided.seconds());
    }

    /// One plugin decided.
    pub fn plugin(&self, name: &'static str, decided: Decided) {
        let (r#type, operation, rejected) = decided.labels();
        self.plugins.get_or_create(&Plugin { name, r#type, operation, rejected }).observe(decided.seconds());
    }

    /// A webhook call succeeded or failed.
    pub fn webhook(&self, name: &str, decided: Decided) {
        let (r#type, operation, rejected) = decided.labels();
        let labels = Webhook { name: self.names.known(name), r#type, operation, rejected };
        self.webhooks.get_or_create(&labels).observe(decided.seconds());
    }

    /// A store operation on one or more objects of a kind completed.
    pub fn stored<T, E>(&self, operation: &'static str, kind: &Kind, began: Instant, outcome: &Result<T, E>) {
        let labels = Stored { operation, group: kind.group, resource: kind.plural };
        self.store.get_or_create(&labels).observe(began.elapsed().as_secs_f64());
        self.requests.get_or_create(&labels).inc();
        if outcome.is_err() {
            self.errors.get_or_create(&labels).inc();
        }
    }

    /// An audit event was queued or dropped.
    pub fn audited(&self, is_kept: bool) {
        if is_kept {
            self.audited.inc()
        } else {
            self.not_audited.inc()
        };
    }

    /// A client authenticated with a certificate that has this many seconds left.
    pub fn certificate(&self, left: f64) {
        self.certificates.observe(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_beyond_a_number_share_their_series() {
        let names = Names::default();
        for i in 0..NAMES {
            assert_eq!(names.known(&format!("hook-{i}")), format!("hook-{i}"));
        }
        assert_eq!(names.known("one-more"), OTHERS);
        assert_eq!(names.known("hook-0"), "hook-0", "who is known stays so");
    }
}
