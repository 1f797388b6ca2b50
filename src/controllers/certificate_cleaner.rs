//! Deletes old CertificateSigningRequests: nobody deletes their own, and joining machines could fill the store with them.
//!
//! Upstream: `pkg/controller/certificates/cleaner`.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};

use super::{Context, Plan, Row, Writes, meta, write::Write};
use podwright_client::Key;

const HOUR: Duration = Duration::from_secs(3600);
/// How long a request is kept after it was issued, denied or failed.
const SETTLED: Duration = HOUR;
/// How long a request waits for approval or for its certificate.
const PENDING: Duration = HOUR.saturating_mul(24);

pub const ROW: Row = Row {
    name: "certificatesigningrequest-cleaner-controller",
    workers: 1,
    writes: Writes::Of(&["certificatesigningrequests.certificates.k8s.io"]),
    watch: |watches| {
        let requests = &watches.world.informers.certificate_signing_requests.clone();
        watches.on(requests, |_, queue, change| {
            if change.new.is_some() {
                queue.add(change.key.clone());
            }
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| match context.world.informers.certificate_signing_requests.get(key) {
        Some(request) => plan(&request, context.now),
        None => Plan::default(),
    },
};

/// When the request expires.
fn expiry(request: &CertificateSigningRequest) -> Timestamp {
    let status = request.status.as_ref();
    let since = |of: &str| {
        let mut conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let found = conditions.rfind(|condition: &&CertificateSigningRequestCondition| condition.type_ == of)?;
        Some(found.last_update_time.as_ref().map_or_else(|| meta::created(&request.metadata), |time| time.0))
    };
    let issued = status.is_some_and(|status| status.certificate.as_ref().is_some_and(|bytes| !bytes.0.is_empty()));
    match (since("Denied").or_else(|| since("Failed")), since("Approved")) {
        (Some(refused), _) => meta::later(refused, SETTLED),
        (None, Some(approved)) => meta::later(approved, if issued { SETTLED } else { PENDING }),
        (None, None) => meta::later(meta::created(&request.metadata), PENDING),
    }
}

/// Deletes an expired request, if it has not changed.
pub fn plan(request: &CertificateSigningRequest, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if meta::is_terminating(&request.metadata) {
        return plan;
    }
    match meta::until(now, expiry(request)) {
        Some(wait) => plan.requeue(wait),
        None => {
            let mut write = Write::delete(request);
            if let Some(preconditions) = &mut write.request.options.preconditions {
                preconditions.resource_version = request.metadata.resource_version.clone();
            }
            plan.then(vec![write]);
        }
    }
    plan
}
