//! Objects that are rejected at creation because they are too large.

use podwright::api::strategy;

use super::{created, report, unmet};

#[test]
fn what_is_too_large() {
    let long = |n: usize| "x".repeat(n);
    let many =
        |n: usize| (0..n).map(|i| format!("{{addresses: [10.0.{}.{}]}}", i / 250, i % 250 + 1)).collect::<Vec<_>>();
    let terms = |n: usize| vec!["{topologyKey: a}"; n].join(", ");
    let preferred = |n: usize| vec!["{weight: 1, podAffinityTerm: {topologyKey: a}}"; n].join(", ");
    let mut wrong = Vec::new();
    for (base, fragment, field, reason, words) in [
        (
            "pod",
            format!("{{metadata: {{annotations: {{a: {}}}}}}}", long(256 * 1024)),
            "metadata.annotations",
            "TooLong",
            "may not be more than 262144 bytes",
        ),
        (
            "pod",
            format!("{{metadata: {{labels: {{a: {}}}}}}}", long(64)),
            "metadata.labels",
            "Invalid",
            "must be no more than 63 characters",
        ),
        (
            "pod",
            format!("{{metadata: {{labels: {{{}: a}}}}}}", long(64)),
            "metadata.labels",
            "Invalid",
            "name part must be no more than 63 characters",
        ),
        (
            "pod",
            format!("{{metadata: {{name: {}}}}}", long(254)),
            "metadata.name",
            "Invalid",
            "must be no more than 253 characters",
        ),
        (
            "service",
            format!("{{metadata: {{name: {}}}}}", long(64)),
            "metadata.name",
            "Invalid",
            "must be no more than 63 characters",
        ),
        (
            "configmap",
            format!("{{data: {{a: {}}}}}", long(1024 * 1024)),
            "[]",
            "TooLong",
            "may not be more than 1048576 bytes",
        ),
        (
            "secret",
            format!("{{stringData: {{a: {}}}}}", long(1024 * 1024)),
            "data",
            "TooLong",
            "may not be more than 1048576 bytes",
        ),
        (
            "slice",
            format!("{{endpoints: [{}]}}", many(1001).join(", ")),
            "endpoints",
            "TooMany",
            "must have at most 1000 items",
        ),
        (
            "slice",
            format!("{{endpoints: [{{addresses: [{}]}}]}}", vec!["10.0.0.1"; 101].join(", ")),
            "endpoints[0].addresses",
            "TooMany",
            "must have at most 100 items",
        ),
        (
            "spec",
            format!("{{dnsConfig: {{searches: [{}]}}}}", vec!["a"; 33].join(", ")),
            "spec.dnsConfig.searches",
            "Invalid",
            "must not have more than 32 search paths",
        ),
        (
            "spec",
            format!("{{dnsConfig: {{searches: [{}]}}}}", vec![long(200); 11].join(", ")),
            "spec.dnsConfig.searches",
            "Invalid",
            "must not have more than 2048 characters",
        ),
        (
            "spec",
            format!(
                "{{affinity: {{podAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: [{}]}}, \
                 podAntiAffinity: {{preferredDuringSchedulingIgnoredDuringExecution: [{}]}}}}}}",
                terms(50),
                preferred(51)
            ),
            "spec.affinity",
            "TooMany",
            "101: must have at most 100 items",
        ),
        (
            "spec",
            format!("{{topologySpreadConstraints: [{}]}}", terms(101)),
            "spec.topologySpreadConstraints",
            "TooMany",
            "must have at most 100 items",
        ),
        (
            "spec",
            format!("{{tolerations: [{}]}}", vec!["{operator: Exists}"; 2017].join(", ")),
            "spec.tolerations",
            "TooMany",
            "must have at most 2016 items",
        ),
        (
            "deployment",
            format!(
                "{{spec: {{selector: {{matchExpressions: [{}]}}}}}}",
                vec!["{key: a, operator: Exists}"; 255].join(", ")
            ),
            "spec.selector",
            "TooMany",
            "must have at most 255 items",
        ),
        (
            "service",
            format!(
                "{{spec: {{externalIPs: [{}], ports: [{}]}}}}",
                vec!["8.8.8.8"; 64].join(", "),
                (1..=64).map(|n| format!("{{name: p{n}, port: {n}, protocol: TCP}}")).collect::<Vec<_>>().join(", ")
            ),
            "spec.ports",
            "TooMany",
            "4160: must have at most 4096 ways in",
        ),
        (
            "service",
            "{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1, 'fd::1', 10.0.0.2]}}".into(),
            "spec.clusterIPs",
            "Invalid",
            "may only hold up to 2 values",
        ),
    ] {
        let (kind, object) = created(base, &fragment);
        let outcome = strategy::validate_create(kind, &object);
        let what = format!("{base} {}", &fragment[..fragment.len().min(80)]);
        wrong.extend(unmet(outcome, &what, field, reason, words).map(|e| e.chars().take(600).collect::<String>()));
    }
    report(wrong);
}

/// Limits on an object before it is validated as a whole.
#[test]
fn what_is_too_large_before_admission() {
    let kind = podwright::api::kinds::lookup("services").unwrap();
    let refused = |meta: serde_json::Value| {
        let object = podwright::api::Object(serde_json::json!({ "metadata": meta }));
        strategy::validate_size(kind, &object, None).err().map(|status| status.message)
    };
    let owners = |n: usize| serde_json::json!({ "name": "a", "ownerReferences": vec![serde_json::json!({}); n] });
    assert_eq!(refused(owners(1000)), None);
    assert!(refused(owners(1001)).unwrap().contains("metadata.ownerReferences: Too many: 1001"));
    for field in ["name", "generateName"] {
        assert_eq!(refused(serde_json::json!({ field: "A".repeat(1024) })), None, "the rest is for validation to say");
        let why = refused(serde_json::json!({ field: "a".repeat(1025) })).unwrap();
        assert!(why.contains(&format!("metadata.{field}: Invalid value")), "{why:.200}");
        assert!(!why.contains("Required"), "{why:.200}");
    }
    let long = serde_json::json!({ "annotations": { "a": "x".repeat(256 << 10) } });
    assert!(refused(long).unwrap().contains("metadata.annotations: Too long"));
}

#[test]
fn what_a_job_lists_too_many_of_is_told_once() {
    let values = vec!["1, 0"; 100_000].join(", ");
    let rules = format!("{{action: FailJob, onExitCodes: {{operator: NotIn, values: [{values}]}}}}");
    let fragment =
        format!("{{spec: {{podFailurePolicy: {{rules: [{rules}]}}, template: {{spec: {{restartPolicy: Never}}}}}}}}");
    let (kind, object) = created("job", &fragment);
    let causes = strategy::validate_create(kind, &object).unwrap_err().details.unwrap().causes;
    assert_eq!(
        causes.iter().map(|cause| &*cause.message).collect::<Vec<_>>(),
        ["Too many: 200000: must have at most 255 items"]
    );
}
