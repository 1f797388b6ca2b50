//! Bounds on the number of list items in every place, and objects that exceeded them before the bounds existed.

use podwright::api::{Object, strategy};
use serde_json::{Value, json};

use super::{created, decoded, merged, report, unmet};

/// `n` volumes, in YAML flow style.
fn volumes(n: usize) -> String {
    let all: Vec<String> = (0..n).map(|i| format!("{{name: v{i}, emptyDir: {{}}}}")).collect();
    format!("[{}]", all.join(", "))
}

/// The Pod specs of all kinds that have one.
const SPECS: &[(&str, &str)] = &[
    ("pod", "spec"),
    ("podtemplate", "template.spec"),
    ("deployment", "spec.template.spec"),
    ("replicaset", "spec.template.spec"),
    ("replicationcontroller", "spec.template.spec"),
    ("statefulset", "spec.template.spec"),
    ("daemonset", "spec.template.spec"),
    ("job", "spec.template.spec"),
    ("cronjob", "spec.jobTemplate.spec.template.spec"),
];

/// `{spec: {template: ...}}`
fn below(path: &str, inner: &str) -> String {
    path.rsplit('.').fold(inner.to_owned(), |inner, field| format!("{{{field}: {inner}}}"))
}

#[test]
fn a_pod_has_so_many_volumes_and_containers_in_whichever_kind_it_is() {
    let containers = |n: usize| {
        let all: Vec<String> = (0..n).map(|i| format!("{{name: c{i}, image: 'i:1'}}")).collect();
        format!("[{}]", all.join(", "))
    };
    let secrets = |n: usize| format!("[{}]", vec!["{name: a}"; n].join(", "));
    let owners = |n: usize| format!("[{}]", vec!["{apiVersion: v1, kind: Pod, name: a, uid: b}"; n].join(", "));
    type Items<'a> = &'a dyn Fn(usize) -> String;
    let lists: [(&str, Items<'_>, usize); 4] = [
        ("volumes", &volumes, 1024),
        ("containers", &containers, 512),
        ("initContainers", &containers, 512),
        ("imagePullSecrets", &secrets, 256),
    ];
    let mut wrong = Vec::new();
    let mut bounded = |base: &str, path: &str, items: Items<'_>, most: usize| {
        let added = if (base, path) == ("pod", "spec.volumes") { 513 } else { 0 };
        let most = most + added;
        for (n, is_refused) in [(most, false), (most + 1, true)] {
            let (kind, object) = created(base, &below(path, &items(n)));
            let words = format!("Too many: {n}: must have at most {most} items");
            for outcome in [strategy::validate_size(kind, &object, None), strategy::validate_create(kind, &object)] {
                let what = format!("{base} {path} {n}");
                match (is_refused, outcome) {
                    (true, outcome) => wrong.extend(unmet(outcome, &what, path, "TooMany", &words)),
                    (false, Err(why)) if why.message.contains("Too many") => wrong.push(format!("{what}: {why}")),
                    (false, _) => {}
                }
            }
        }
    };
    for (base, spec) in SPECS {
        lists.iter().for_each(|(list, items, most)| bounded(base, &format!("{spec}.{list}"), *items, *most));
    }
    bounded("deployment", "spec.template.metadata.ownerReferences", &owners, 1000);
    bounded("configmap", "metadata.ownerReferences", &owners, 1000);
    bounded("serviceaccount", "imagePullSecrets", &secrets, 256);
    report(wrong);
}

/// A node creates or looks up each, and keeps kilobytes for it.
#[test]
fn a_pod_has_so_many_sources_items_and_variables_in_all() {
    let many = |n: usize, item: &str| vec![item; n].join(", ");
    let sources = |n: usize| format!("projected: {{sources: [{}]}}", many(n, "{secret: {name: a}}"));
    let items = |n: usize| format!("[{}]", many(n, "{key: a, path: b}"));
    let mut wrong = Vec::new();
    let mut bounded = |volumes: &[String], env: usize, is_refused: bool| {
        let volumes: Vec<String> = volumes.iter().enumerate().map(|(i, v)| format!("{{name: v{i}, {v}}}")).collect();
        let (env, from) = (many(env / 2, "{name: A}"), many(env - env / 2, "{configMapRef: {name: a}}"));
        let containers = format!("[{{name: c, image: 'i:1', env: [{env}], envFrom: [{from}]}}]");
        let inner = format!("{{volumes: [{}], containers: {containers}}}", volumes.join(", "));
        // A Pod may have what is added to its template.
        for (base, path) in SPECS.iter().filter(|(base, _)| *base != "pod") {
            let (kind, object) = created(base, &below(path, &inner));
            let words = "Too many: 4097: must have at most 4096 sources, items and variables";
            match (is_refused, strategy::validate_size(kind, &object, None)) {
                (true, outcome) => wrong.extend(unmet(outcome, base, path, "TooMany", words)),
                (false, Err(why)) => wrong.push(format!("{base}: {why}")),
                (false, Ok(())) => {}
            }
        }
    };
    let shown = [
        format!("configMap: {{name: a, items: {}}}", items(500)),
        format!("secret: {{secretName: a, items: {}}}", items(500)),
        format!("projected: {{sources: [{{configMap: {{name: a, items: {}}}}}]}}", items(95)),
    ];
    bounded(&[sources(2000), sources(2096)], 0, false);
    bounded(&[sources(2000), sources(2097)], 0, true);
    bounded(&[], 4096, false);
    bounded(&[], 4097, true);
    bounded(&shown, 3000, false);
    bounded(&shown, 3001, true);
    report(wrong);
}

/// A Pod stored earlier can still get status updates and new labels.
#[test]
fn a_pod_that_had_more_before_goes_on() {
    let sources = |n: usize| vec!["{secret: {name: a}}"; n].join(", ");
    let with = |n: usize| {
        created("pod", &format!("{{spec: {{volumes: [{{name: v, projected: {{sources: [{}]}}}}]}}}}", sources(n)))
    };
    let (kind, old) = with(5000);
    assert!(strategy::validate_create(kind, &old).is_err(), "a new one");
    assert!(
        strategy::validate_create(kind, &with(4616).1).is_ok()
            && strategy::validate_create(kind, &with(4617).1).is_err()
    );
    let mut told = old.clone();
    told.0["status"] = json!({"phase": "Running"});
    told.0["metadata"]["labels"] = json!({"a": "b"});
    strategy::validate_size(kind, &told, Some(&old)).unwrap();
    strategy::validate_update(kind, &told, &old).unwrap();
    assert!(strategy::validate_size(kind, &with(5001).1, Some(&old)).is_err(), "a larger one");
}

#[test]
fn what_is_made_or_compared_for_each_is_bounded() {
    let many = |n: usize, item: &dyn Fn(usize) -> String| (0..n).map(item).collect::<Vec<_>>().join(", ");
    let claim = |i: usize| {
        format!(
            "{{metadata: {{name: c{i}}}, spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1}}}}}}}}"
        )
    };
    let address = |i: usize| format!("192.0.{}.{}", i / 250, i % 250 + 1);
    let resource = |i: usize| format!("'example.com/r{i}': 1");
    let container = |name: &str, from: usize, n: usize| {
        let names = many(n, &|i| resource(from + i));
        format!("{{name: {name}, image: 'i:1', resources: {{limits: {{{names}}}, requests: {{{names}}}}}}}")
    };
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let keys = vec!["a"; 4097].join(", ");
    let values = many(2501, &|i| format!("v{i}"));
    let term = format!("{{matchExpressions: [{{key: a, operator: In, values: [{values}]}}]}}");
    let mut wrong = Vec::new();
    for (base, fragment, field, words) in [
        (
            "statefulset",
            format!("{{spec: {{volumeClaimTemplates: [{}]}}}}", many(513, &claim)),
            "spec.volumeClaimTemplates",
            "513: must have at most 512 items",
        ),
        (
            "service",
            format!("{{spec: {{externalIPs: [{}]}}}}", many(4097, &address)),
            "spec.externalIPs",
            "4097: must have at most 4096 items",
        ),
        (
            "pvc",
            format!("{{spec: {{accessModes: [{}]}}}}", vec!["ReadWriteOnce"; 65].join(", ")),
            "spec.accessModes",
            "65: must have at most 64 items",
        ),
        (
            "node",
            format!("{{spec: {{taints: [{}]}}}}", many(257, &|i| format!("{{key: k{i}, effect: NoExecute}}"))),
            "spec.taints",
            "257: must have at most 256 items",
        ),
        (
            "spec",
            format!("{{containers: [{}]}}", container("c", 0, 257)),
            "spec.containers[0].resources.limits",
            "257: must have at most 256 items",
        ),
        (
            "spec",
            format!("{{containers: [{}], initContainers: [{}]}}", container("c", 0, 200), container("d", 150, 107)),
            "spec.containers[*].resources",
            "257: must have at most 256 names",
        ),
        (
            "spec",
            format!("{{affinity: {{nodeAffinity: {{{required}: {{nodeSelectorTerms: [{term}, {term}]}}}}}}}}"),
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
            "5002: must have at most 5000 values in all terms",
        ),
        (
            "spec",
            format!("{{affinity: {{podAffinity: {{{required}: [{{topologyKey: a, matchLabelKeys: [{keys}]}}]}}}}}}"),
            "spec.affinity",
            "4097: must have at most 4096 requirements and values",
        ),
        (
            "spec",
            format!(
                "{{affinity: {{podAntiAffinity: {{{required}: [{{topologyKey: a, namespaces: [{}]}}]}}}}}}",
                many(4097, &|i| format!("n{i}"))
            ),
            "spec.affinity",
            "4097: must have at most 4096 requirements and values",
        ),
        (
            "spec",
            format!(
                "{{topologySpreadConstraints: [{{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, matchLabelKeys: [{keys}]}}]}}"
            ),
            "spec.topologySpreadConstraints",
            "4097: must have at most 4096 requirements and values",
        ),
    ] {
        let (kind, object) = created(base, &fragment);
        let what = format!("{base} {}", &fragment[..fragment.len().min(80)]);
        wrong.extend(unmet(strategy::validate_create(kind, &object), &what, field, "TooMany", words));
    }
    report(wrong);
}

/// Objects older than a bound can still be changed and shrunk; lists that are too long do not grow.
#[test]
fn what_had_more_before_may_stay_and_not_grow() {
    let with = |n: usize| created("deployment", &below("spec.template.spec.volumes", &volumes(n)));
    let (kind, old) = with(2000);
    assert!(strategy::validate_create(kind, &old).is_err(), "a new one");
    let mut noted = old.clone();
    noted.0["metadata"]["annotations"] = json!({"a": "b"});
    let larger = "spec.template.spec.volumes: Too many: 2001: must have at most 1024 items";
    for (what, new, expected) in [
        ("unchanged", noted, None),
        ("smaller", with(1999).1, None),
        ("as many as there may be", with(1024).1, None),
        ("larger", with(2001).1, Some(larger)),
    ] {
        for outcome in [strategy::validate_size(kind, &new, Some(&old)), strategy::validate_update(kind, &new, &old)] {
            match (outcome, expected) {
                (Ok(()), None) => {}
                (Err(why), Some(words)) => assert!(why.message.contains(words), "{what}: {why}"),
                (outcome, _) => panic!("{what}: {outcome:?}"),
            }
        }
    }
    let (_, small) = with(1024);
    assert!(strategy::validate_update(kind, &old, &small).is_err(), "back again");
    let mut status = old.clone();
    status.0["status"] = json!({"replicas": 1});
    strategy::validate_status_update(kind, &status, &old).unwrap();

    // The same for items counted over several lists.
    let container = |name: &str, numbers: std::ops::Range<usize>| {
        let names: Value = numbers.map(|i| (format!("example.com/r{i}"), json!("1"))).collect();
        json!({"name": name, "image": "i:1", "resources": {"limits": names, "requests": names}})
    };
    let named = |n: usize| {
        let mut pod = merged("pod", "{}");
        pod["spec"]["containers"] = json!([container("c", 0..200), container("d", 200..n)]);
        let (kind, mut pod) = decoded(pod);
        strategy::prepare_create(kind, &mut pod);
        pod.set_meta("uid", json!("u"));
        (kind, pod)
    };
    let ((kind, old), (_, fewer), (_, more)) = (named(300), named(299), named(301));
    assert!(strategy::validate_create(kind, &old).is_err());
    let told = |new: &Object| {
        let refused = strategy::validate_update(kind, new, &old).err();
        refused.is_some_and(|why| why.message.contains("must have at most 256 names"))
    };
    assert_eq!([told(&old), told(&fewer), told(&more)], [false, false, true]);
}
