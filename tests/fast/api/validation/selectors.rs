//! Bounds on the size of selectors and the like in every place, and objects that exceeded them before the bounds existed.

use podwright::api::strategy;

use super::{created, report, unmet};

/// `n` labels: the base's own, if it has one, is the first.
fn labels(n: usize) -> String {
    let others = (1..n).map(|i| format!(", k{i}: v")).collect::<String>();
    format!("{{a: b{others}}}")
}

/// `n` requirements, half of them labels.
fn selector(n: usize) -> String {
    let expressions: Vec<String> = (0..n - n / 2).map(|i| format!("{{key: e{i}, operator: Exists}}")).collect();
    format!("{{matchLabels: {}, matchExpressions: [{}]}}", labels(n / 2), expressions.join(", "))
}

fn values(n: usize) -> String {
    let all: Vec<String> = (0..n).map(|i| format!("v{i}")).collect();
    format!("{{matchExpressions: [{{key: a, operator: NotIn, values: [{}]}}]}}", all.join(", "))
}

/// Where objects have selectors: the base, what surrounds the selector, and its path.
#[rustfmt::skip]
const PLACES: &[(&str, &str, &str)] = &[
    ("pdb", "{spec: {selector: @}}", "spec.selector"),
    ("deployment", "{spec: {selector: @}}", "spec.selector"),
    ("replicaset", "{spec: {selector: @}}", "spec.selector"),
    ("statefulset", "{spec: {selector: @}}", "spec.selector"),
    ("daemonset", "{spec: {selector: @}}", "spec.selector"),
    ("job", "{spec: {manualSelector: true, selector: @}}", "spec.selector"),
    ("networkpolicy", "{spec: {podSelector: @}}", "spec.podSelector"),
    ("networkpolicy", "{spec: {ingress: [{from: [{podSelector: @}]}]}}", "spec.ingress[0].from[0].podSelector"),
    ("networkpolicy", "{spec: {egress: [{to: [{namespaceSelector: @}]}]}}", "spec.egress[0].to[0].namespaceSelector"),
    ("spec", "{affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a, labelSelector: @}]}}}", "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector"),
    ("spec", "{affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: a, namespaceSelector: @}}]}}}", "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.namespaceSelector"),
    ("spec", "{topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, labelSelector: @}]}", "spec.topologySpreadConstraints[0].labelSelector"),
    ("template", "{topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, labelSelector: @}]}", "spec.template.spec.topologySpreadConstraints[0].labelSelector"),
    ("pvc", "{spec: {selector: @}}", "spec.selector"),
    ("clusterrole", "{aggregationRule: {clusterRoleSelectors: [@]}}", "aggregationRule.clusterRoleSelectors[0]"),
    ("csistoragecapacity", "{nodeTopology: @}", "nodeTopology"),
    ("validatingwebhook", "{webhooks: [{name: a.example.com, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: 'https://a.b/x'}, objectSelector: @}]}", "webhooks[0].objectSelector"),
    ("mutatingwebhook", "{webhooks: [{name: a.example.com, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: 'https://a.b/x'}, namespaceSelector: @}]}", "webhooks[0].namespaceSelector"),
    ("vap", "{spec: {matchConstraints: {objectSelector: @}}}", "spec.matchConstraints.objectSelector"),
    ("vapb", "{spec: {matchResources: {namespaceSelector: @}}}", "spec.matchResources.namespaceSelector"),
    ("vapb", "{spec: {paramRef: {parameterNotFoundAction: Deny, selector: @}}}", "spec.paramRef.selector"),
    ("hpa", "{spec: {metrics: [{type: External, external: {metric: {name: m, selector: @}, target: {type: Value, value: 1}}}]}}", "spec.metrics[0].external.metric.selector"),
];

/// Selectors that are maps of labels.
const MAPS: &[(&str, &str, &str)] = &[
    ("service", "{spec: {selector: @}}", "spec.selector"),
    ("replicationcontroller", "{spec: {selector: @}}", "spec.selector"),
    ("spec", "{nodeSelector: @}", "spec.nodeSelector"),
    ("runtimeclass", "{scheduling: {nodeSelector: @}}", "scheduling.nodeSelector"),
];

#[test]
fn a_selector_has_so_many_requirements_and_values_wherever_it_is() {
    let mut wrong = Vec::new();
    let mut bounded = |base: &str, fragment: &str, large: &str, most: &str, field: &str, words: &str| {
        let outcome = |selector: &str| {
            let (kind, object) = created(base, &fragment.replace('@', selector));
            strategy::validate_create(kind, &object)
        };
        wrong.extend(unmet(outcome(large), &format!("{base} {fragment}"), field, "TooMany", words));
        if let Err(status) = outcome(most)
            && status.message.contains("Too many")
        {
            wrong.push(format!("{base} {fragment}: as many as there may be are refused: {status}"));
        }
    };
    for (base, fragment, field) in PLACES {
        // A Deployment's leaves room for what its ReplicaSets' have as well.
        let most = if *base == "deployment" { 255 } else { 256 };
        bounded(base, fragment, &selector(257), &selector(most), field, "257: must have at most 256 items");
        let field = format!("{field}.matchExpressions");
        bounded(base, fragment, &values(1001), &values(1000), &field, "1001: must have at most 1000 values");
    }
    for (base, fragment, field) in MAPS {
        bounded(base, fragment, &labels(257), &labels(256), field, "257: must have at most 256 items");
    }
    let scopes = |n: usize| vec!["{scopeName: PriorityClass, operator: Exists}"; n].join(", ");
    let fragment = "{spec: {scopeSelector: {matchExpressions: [@]}}}";
    bounded("quota", fragment, &scopes(257), &scopes(256), "spec.scopeSelector", "257: must have at most 256 items");
    report(wrong);
}

#[test]
fn what_one_list_asks_of_another_is_bounded() {
    let terms = |n: usize| {
        let one = format!("{{topologyKey: a, labelSelector: {}}}", selector(250));
        vec![one; n].join(", ")
    };
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let ports = |n: usize| {
        let each = (0..n).map(|i| format!("{{name: p{i}, containerPort: {}, protocol: TCP}}", i + 1));
        format!("[{}]", each.collect::<Vec<_>>().join(", "))
    };
    let named = |n: usize| {
        let each = (0..n).map(|i| format!("{{name: p{i}, port: {}, protocol: TCP, targetPort: p{i}}}", i + 1));
        each.collect::<Vec<_>>().join(", ")
    };
    let metrics =
        vec!["{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 1}}}"; 101];
    let requirements = vec!["{key: a, operator: Exists}"; 501].join(", ");
    let mut wrong = Vec::new();
    for (base, fragment, field, words) in [
        (
            "spec",
            format!("{{affinity: {{podAffinity: {{{required}: [{}]}}}}}}", terms(17)),
            "spec.affinity",
            "4250: must have at most 4096 requirements and values",
        ),
        (
            "spec",
            format!(
                "{{affinity: {{nodeAffinity: {{{required}: {{nodeSelectorTerms: [{{matchExpressions: [{requirements}]}}, {{matchExpressions: [{requirements}]}}]}}}}}}}}"
            ),
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
            "1002: must have at most 1000 requirements in all terms",
        ),
        (
            "spec",
            format!(
                "{{containers: [{{name: c, image: i, ports: {}}}], initContainers: [{{name: d, image: i, ports: {}}}]}}",
                ports(1000),
                ports(25)
            ),
            "spec.containers[*].ports",
            "1025: must have at most 1024 items",
        ),
        (
            "service",
            format!("{{spec: {{ports: [{}]}}}}", named(257)),
            "spec.ports",
            "257: must have at most 256 ports with a named targetPort",
        ),
        (
            "hpa",
            format!("{{spec: {{metrics: [{}]}}}}", metrics.join(", ")),
            "spec.metrics",
            "101: must have at most 100 items",
        ),
    ] {
        let (kind, object) = created(base, &fragment);
        let what = format!("{base} {}", &fragment[..80]);
        wrong.extend(unmet(strategy::validate_create(kind, &object), &what, field, "TooMany", words));
    }
    report(wrong);
}

/// Objects older than a bound can still be changed; what is too large in them does not grow.
#[test]
fn what_was_too_large_before_may_stay_and_not_grow() {
    for (base, fragment, old, new) in [
        ("pdb", "{spec: {selector: @}}", selector(300), selector(301)),
        ("networkpolicy", "{spec: {podSelector: @}}", values(2000), values(2001)),
        ("service", "{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], selector: @}}", labels(300), labels(301)),
    ] {
        let (kind, old) = created(base, &fragment.replace('@', &old));
        assert!(strategy::validate_create(kind, &old).is_err(), "{base}: a new one");
        let mut same = old.clone();
        same.0["metadata"]["annotations"] = serde_json::json!({"a": "b"});
        let unchanged = strategy::validate_update(kind, &same, &old);
        assert!(unchanged.is_ok(), "{base}: {unchanged:?}");
        let (_, larger) = created(base, &fragment.replace('@', &new));
        let refused = strategy::validate_update(kind, &larger, &old).expect_err(base);
        assert!(refused.message.contains("Too many: "), "{base}: {refused}");
        // It may shrink, and is then subject to the bound.
        let (_, small) = created(base, "{}");
        let shrunk = strategy::validate_update(kind, &small, &old);
        assert!(shrunk.is_ok() || base == "service", "{base}: {shrunk:?}");
        assert!(strategy::validate_update(kind, &old, &small).is_err(), "{base}: back again");
    }
}
