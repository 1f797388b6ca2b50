//! No request makes the API panic: valid manifests, mutated at random.

use podwright::api::patch::{apply, strategic};
use podwright::api::{FieldValidation, Kind, Object, kinds, strategy};
use proptest::prelude::*;
use serde_json::{Value, json};

/// One object of each kind with many fields set.
fn seeds() -> Vec<Value> {
    let spec = json!({"nodeName": "n", "hostNetwork": true, "restartPolicy": "Always", "nodeSelector": {"a": "b"},
        "containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 1, "name": "a"}],
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}}],
            "envFrom": [{"configMapRef": {"name": "a"}}], "resources": {"limits": {"cpu": "1", "a.b/c": 2}},
            "livenessProbe": {"httpGet": {"port": "a", "httpHeaders": [{"name": "X"}]}}, "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
            "volumeMounts": [{"name": "v", "mountPath": "/a"}], "securityContext": {"capabilities": {"add": ["X"]}}}],
        "initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always"}],
        "volumes": [{"name": "v", "projected": {"sources": [{"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}},
            {"name": "w", "secret": {"secretName": "s", "items": [{"key": "a", "path": "b", "mode": 420}]}}],
        "tolerations": [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 1}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}]}},
            "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {"topologyKey": "a"}}]}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}],
        "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["a"], "options": [{"name": "x"}]}, "hostAliases": [{"ip": "1.1.1.1", "hostnames": ["a"]}],
        "securityContext": {"sysctls": [{"name": "a.b", "value": "1"}], "seccompProfile": {"type": "RuntimeDefault"}}});
    let meta = json!({"name": "a", "namespace": "d", "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["a/b"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "b", "uid": "u", "controller": true}]});
    let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "c", "restartCount": 1, "state": {"terminated": {"exitCode": 1}}}]});
    let workload = json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}});
    vec![
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": workload, "status": {"replicas": 1}}),
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta, "spec": workload}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
            "ports": [{"port": 1, "nodePort": 30000}], "sessionAffinity": "ClientIP", "externalIPs": ["1.1.1.1"]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta, "addressType": "IPv4",
            "endpoints": [{"addresses": ["1.1.1.1"], "conditions": {"ready": true}}], "ports": [{"port": 1}]}),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}], "podCIDRs": ["10.0.0.0/24"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "1.1.1.1"}], "capacity": {"cpu": "1"}}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "kubernetes.io/tls", "data": {"a": "eA=="}, "stringData": {"b": "c"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "b"}, "binaryData": {"c": "eA=="}, "immutable": true}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": meta, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}),
        json!({"apiVersion": "v1", "kind": "Event", "metadata": meta, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "d"}, "count": 1,
            "firstTimestamp": "2026-01-01T00:00:00Z", "eventTime": "2026-01-01T00:00:00.000000Z"}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": {"leaseDurationSeconds": 5, "renewTime": "2026-01-01T00:00:00Z"}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta, "imagePullSecrets": [{"name": "a"}]}),
    ]
}

fn odd_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec![
            "",
            "..",
            "a",
            "-1",
            "5%",
            "None",
            "::1",
            "10.0.0.0/8",
            "é",
            "a['",
            "/",
            "\u{0}",
            "1Gi",
            "Always"
        ])
        .prop_map(Value::from),
        "\\PC{0,300}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("(name|key|spec|\\$patch|[a-z]{0,3})", inner), 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// Replaces (or doubles, or removes) the value that a walk guided by `turns` ends at.
fn mutate(value: &mut Value, turns: &[usize], odd: &Value) {
    let Some((turn, rest)) = turns.split_first() else {
        *value = odd.clone();
        return;
    };
    match value {
        Value::Object(map) if !map.is_empty() => {
            let key = map.keys().nth(turn % map.len()).cloned().unwrap_or_default();
            match turn % 17 {
                0 => drop(map.shift_remove(&key)),
                1 => drop(map.insert(format!("{key}x"), odd.clone())),
                _ => mutate(&mut map[&key], rest, odd),
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let at = turn % items.len();
            match turn % 17 {
                0 => drop(items.remove(at)),
                1 => items.push(items[at].clone()),
                _ => mutate(&mut items[at], rest, odd),
            }
        }
        other => *other = odd.clone(),
    }
}

/// Applying a manifest twice changes nothing the second time.
fn applies_again_to_the_same(kind: &'static Kind, manifest: &Object) -> Result<(), TestCaseError> {
    let applied = apply::merge(kind, &manifest.0, None).unwrap();
    let (mut live, _) = kind.decode(applied.0, FieldValidation::Strict).unwrap();
    strategy::prepare_create(kind, &mut live);
    let merged = apply::merge(kind, &manifest.0, Some(&live)).unwrap();
    let (mut again, _) = kind.decode(merged.0, FieldValidation::Strict).unwrap();
    strategy::prepare_update(kind, &mut again, &live);
    prop_assert!(strategy::is_unchanged(&again, &live), "{}\n{}", again.0, live.0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn no_manifest_makes_it_panic(
        seed in 0usize..12,
        changes in prop::collection::vec((prop::collection::vec(0usize..1000, 1..9), odd_value()), 0..4),
    ) {
        let original = seeds().swap_remove(seed);
        let mut value = original.clone();
        for (turns, odd) in &changes {
            mutate(&mut value, turns, odd);
        }
        let kind = kinds::of(original["apiVersion"].as_str().unwrap(), original["kind"].as_str().unwrap()).unwrap();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let (old, _) = kind.decode(original, FieldValidation::Strict).unwrap();

        // Raw trees, as a damaged or foreign store may hold them.
        let raw = Object(value.clone());
        kind.columns().iter().for_each(|c| drop(c.text(&raw, now)));
        drop(kind.fields(&raw));
        drop(apply::merge(kind, &value, Some(&old)));
        drop(strategic::merge(&kind.schema(), &old.0, &value));
        for validation in [FieldValidation::Strict, FieldValidation::Ignore] {
            let Ok((object, _)) = kind.decode(value.clone(), validation) else { continue };
            let mut created = object.clone();
            strategy::prepare_create(kind, &mut created);
            let valid = strategy::validate_create(kind, &created).is_ok();
            if valid {
                applies_again_to_the_same(kind, &object)?;
            }
            let mut updated = object.clone();
            strategy::prepare_update(kind, &mut updated, &old);
            drop(strategy::validate_update(kind, &updated, &old));
            let mut back = old.clone();
            strategy::prepare_update(kind, &mut back, &created);
            drop(strategy::validate_update(kind, &back, &created));
            let mut status = object.clone();
            strategy::prepare_status_update(kind, &mut status, &old);
            drop(strategy::validate_status_update(kind, &status, &old));
            let _ = (kind.strategy.default_grace)(&created);
            // A decoded object decodes again to itself.
            let (again, _) = kind.decode(object.0.clone(), FieldValidation::Strict).unwrap();
            prop_assert_eq!(again.0, object.0);
        }
    }
}
