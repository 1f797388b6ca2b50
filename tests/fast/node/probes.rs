//! The counting of probes, and the addresses that they refer to.

use k8s_openapi::{
    api::core::v1::{Container, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use podwright::node::{
    events::duration,
    probes::{Counter, Finding, ProbeError, Verdict, address},
};
use serde_json::json;

#[test]
fn thresholds_count_in_a_row() {
    let probe = Probe { success_threshold: Some(2), failure_threshold: Some(3), ..Probe::default() };
    let mut counter = Counter::new(&probe);
    let bad = || Finding::Failure("x".into());
    let good = || Finding::Success;
    let findings = [bad(), bad(), good(), bad(), bad(), bad(), bad(), good(), good(), Finding::Warning("w".into())];
    let verdicts: Vec<Option<Verdict>> = findings.iter().map(|f| counter.count(f)).collect();
    let (n, b, g) = (None, Some(Verdict::Bad), Some(Verdict::Good));
    assert_eq!(verdicts, [n, n, n, n, n, b, b, n, g, g]);
    let mut plain = Counter::new(&Probe::default());
    assert_eq!(plain.count(&good()), g);
}

#[test]
fn addresses_of_probes() {
    let container: Container =
        serde_json::from_value(json!({ "name": "a", "ports": [{ "name": "http", "containerPort": 8080 }] })).unwrap();
    let ips = ["10.0.0.7".parse().unwrap()];
    let of = |host: Option<&str>, port: IntOrString| {
        let address = address(host, &port, &container, &ips);
        address.map(|a| a.to_string()).map_err(|e| e.to_string())
    };
    assert_eq!(of(None, IntOrString::Int(80)), Ok("10.0.0.7:80".into()));
    assert_eq!(of(None, IntOrString::String("http".into())), Ok("10.0.0.7:8080".into()));
    assert_eq!(of(Some("127.0.0.1"), IntOrString::String("81".into())), Ok("127.0.0.1:81".into()));
    assert_eq!(of(None, IntOrString::String("nope".into())), Err("couldn't find port: nope".into()));
    assert_eq!(of(None, IntOrString::Int(70_000)), Err("invalid port number: 70000".into()));
    assert_eq!(of(Some("there"), IntOrString::Int(80)), Err("host \"there\" is not an address".into()));
    assert!(matches!(address(None, &IntOrString::Int(80), &container, &[]), Err(ProbeError::NoAddress)));
}

#[test]
fn durations_read_as_gos() {
    use std::time::Duration;
    for (millis, expected) in [
        (0, "0s"),
        (350, "350ms"),
        (1234, "1.234s"),
        (10_000, "10s"),
        (80_000, "1m20s"),
        (300_000, "5m0s"),
        (3_600_000, "1h0m0s"),
    ] {
        assert_eq!(duration(Duration::from_millis(millis)), expected);
    }
    assert_eq!(duration(Duration::from_micros(1500)), "1.5ms");
}
