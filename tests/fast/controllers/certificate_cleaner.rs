//! How long certificate signing requests are kept.

use std::sync::Arc;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use podwright::controllers::certificate_cleaner::plan;
use serde_json::{Value, json};

use super::{at, lines, object};

const HOUR: i64 = 3600;

fn request(status: Value) -> Arc<CertificateSigningRequest> {
    object(json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "r", "uid": "u", "resourceVersion": "7", "creationTimestamp": at(0).to_string()},
        "spec": {"request": "", "signerName": "a.b/c", "usages": []}, "status": status,
    }))
}

fn status(of: &[&str], certificate: Option<&str>) -> Value {
    let conditions = of.iter().map(|of| json!({"type": of, "status": "True", "lastUpdateTime": at(HOUR).to_string()}));
    json!({"conditions": conditions.collect::<Vec<_>>(), "certificate": certificate})
}

/// Upstream's times: an hour for settled requests, a day for others.
#[test]
fn a_request_goes_when_its_time_has_come() {
    for (status, expected) in [
        (json!({}), 24 * HOUR),
        (status(&["Approved"], None), 25 * HOUR),
        (status(&["Approved"], Some("eA==")), 2 * HOUR),
        (status(&["Denied"], None), 2 * HOUR),
        (status(&["Approved", "Failed"], None), 2 * HOUR),
    ] {
        let request = request(status.clone());
        let early = plan(&request, at(expected - 1));
        assert_eq!((lines(&early), early.requeue_after.map(|wait| wait.as_secs())), (vec![], Some(1)), "{status}");
        let due = plan(&request, at(expected));
        assert_eq!(lines(&due), ["delete certificatesigningrequests.certificates.k8s.io/r"], "{status}");
        let preconditions = due.writes().next().unwrap().request.options.preconditions.clone().unwrap();
        let exactly = (preconditions.uid.as_deref(), preconditions.resource_version.as_deref());
        assert_eq!(exactly, (Some("u"), Some("7")), "another state of it is looked at anew");
    }
}
