//! Allowed and forbidden changes of objects and of their status.

use podwright::api::{patch, strategy};
use serde_json::Value;

use super::{created, decoded, merged, report, unmet, value};

/// Base, what the old object adds to it, what the new one changes of that.
type Change = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

#[rustfmt::skip]
const UPDATE: &[Change] = &[
    ("pod", "{}", "{metadata: {name: b}}", "metadata.name", "Invalid", "Invalid value: \"b\": field is immutable"),
    ("pod", "{}", "{metadata: {uid: x}}", "metadata.uid", "Invalid", "field is immutable"),
    ("pod", "{metadata: {deletionTimestamp: '2026-01-01T00:00:00Z'}}", "{metadata: {finalizers: [a/b]}}", "metadata.finalizers", "Forbidden", "no new finalizers can be added if the object is being deleted"),
    ("spec", "{}", "{hostname: b}", "spec", "Forbidden", "pod updates may not change fields other than"),
    ("spec", "{}", "{containers: [{name: c, image: i}, {name: d, image: i}]}", "spec.containers", "Forbidden", "pod updates may not add or remove containers"),
    ("spec", "{}", "{containers: [{name: c, image: 'i:1', command: [x]}]}", "spec", "Forbidden", "changed: containers"),
    ("spec", "{}", "{containers: [{name: c, image: ''}]}", "spec.containers[0].image", "Required", ""),
    ("spec", "{activeDeadlineSeconds: 5}", "{activeDeadlineSeconds: 6}", "spec.activeDeadlineSeconds", "Invalid", "must be less than or equal to previous value"),
    ("spec", "{activeDeadlineSeconds: 5}", "{activeDeadlineSeconds: ~}", "spec.activeDeadlineSeconds", "Invalid", "must not update from a positive integer to nil value"),
    ("spec", "{tolerations: [{key: a}]}", "{tolerations: []}", "spec.tolerations", "Forbidden", "existing toleration can not be modified except its tolerationSeconds"),
    ("spec", "{}", "{schedulingGates: [{name: a}]}", "spec.schedulingGates[0].name", "Forbidden", "only deletion is allowed, but found new scheduling gate 'a'"),
    ("deployment", "{}", "{spec: {selector: {matchLabels: {c: d}}, template: {metadata: {labels: {c: d}}}}}", "spec.selector", "Invalid", "field is immutable"),
    ("replicaset", "{}", "{spec: {selector: {matchLabels: {c: d}}, template: {metadata: {labels: {c: d}}}}}", "spec.selector", "Invalid", "field is immutable"),
    ("service", "{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1]}}", "{spec: {clusterIP: 10.0.0.2, clusterIPs: [10.0.0.2]}}", "spec.clusterIPs[0]", "Invalid", "Invalid value: [\"10.0.0.2\"]: may not change once set"),
    ("service", "{spec: {ipFamilies: [IPv4]}}", "{spec: {ipFamilies: [IPv6]}}", "spec.ipFamilies[0]", "Invalid", "may not change once set"),
    ("service", "{spec: {externalIPs: ['::ffff:203.0.113.50']}}", "{spec: {externalIPs: ['::ffff:203.0.113.50', '::ffff:203.0.113.51']}}", "spec.externalIPs[1]", "Invalid", "must not be an IPv4-mapped IPv6 address"),
    ("configmap", "{immutable: true}", "{data: {k: w}}", "data", "Forbidden", "field is immutable when `immutable` is set"),
    ("configmap", "{immutable: true}", "{immutable: false}", "immutable", "Forbidden", "field is immutable when `immutable` is set"),
    ("secret", "{immutable: true}", "{data: {k: dw==}}", "data", "Forbidden", "field is immutable when `immutable` is set"),
    ("secret", "{type: a/b}", "{type: c/d}", "type", "Invalid", "field is immutable"),
    ("slice", "{}", "{addressType: IPv6, endpoints: [{addresses: ['fd00::1']}]}", "addressType", "Invalid", "field is immutable"),
    ("node", "{spec: {podCIDR: 10.0.0.0/24, podCIDRs: [10.0.0.0/24]}}", "{spec: {podCIDR: 10.0.1.0/24, podCIDRs: [10.0.1.0/24]}}", "spec.podCIDRs", "Forbidden", "node updates may not change podCIDR except from \"\" to valid"),
    ("node", "{spec: {providerID: a}}", "{spec: {providerID: b}}", "spec.providerID", "Forbidden", "node updates may not change providerID"),
];

#[test]
fn each_rule_of_updates() {
    let mut wrong = Vec::new();
    for (base, before, change, field, reason, words) in UPDATE {
        let (_, mut old) = created(base, before);
        // A stored object may have fields that creation drops.
        let raw = merged(base, before);
        if let Some(time) = raw["metadata"].get("deletionTimestamp") {
            old.set_meta("deletionTimestamp", time.clone());
        }
        old.set_meta("uid", Value::from("u"));
        let (base_name, path) = match *base {
            "spec" => ("pod", "/spec"),
            other => (other, ""),
        };
        let mut manifest = merged(base_name, "{}");
        let target = manifest.pointer_mut(path).unwrap();
        *target = patch::merge(&patch::merge(target, &value(before)), &value(change));
        let (kind, mut new) = decoded(manifest);
        strategy::prepare_update(kind, &mut new, &old);
        let outcome = strategy::validate_update(kind, &new, &old);
        wrong.extend(unmet(outcome, &format!("{base} {before} -> {change}"), field, reason, words));
    }
    report(wrong);
}

#[rustfmt::skip]
const STATUS: &[Change] = &[
    ("pod", "{status: {qosClass: BestEffort}}", "{status: {qosClass: Guaranteed}}", "status.qosClass", "Invalid", "field is immutable"),
    ("pod", "{}", "{status: {podIPs: [{ip: x}]}}", "status.podIPs[0].ip", "Invalid", "must be a valid IP address"),
    ("pod", "{}", "{status: {nominatedNodeName: A}}", "status.nominatedNodeName", "Invalid", "RFC 1123 subdomain"),
    ("pod", "{spec: {restartPolicy: Never}, status: {containerStatuses: [{name: c, state: {terminated: {exitCode: 1}}}]}}", "{status: {containerStatuses: [{name: c, state: {running: {}}}]}}", "status.containerStatuses[0].state", "Forbidden", "may not be transitioned to non-terminated state"),
    ("deployment", "{}", "{status: {replicas: -1}}", "status.replicas", "Invalid", "must be greater than or equal to 0"),
    ("deployment", "{}", "{status: {replicas: 1, readyReplicas: 2}}", "status.readyReplicas", "Invalid", "cannot be greater than status.replicas"),
    ("deployment", "{status: {collisionCount: 2}}", "{status: {collisionCount: 1}}", "status.collisionCount", "Invalid", "cannot be decremented"),
    ("replicaset", "{}", "{status: {replicas: 2, readyReplicas: 1, availableReplicas: 2}}", "status.availableReplicas", "Invalid", "cannot be greater than readyReplicas"),
    ("namespace", "{}", "{status: {phase: Terminating}}", "status.phase", "Invalid", "may only be 'Terminating' if `deletionTimestamp` is not empty"),
    ("node", "{}", "{status: {addresses: [{type: a, address: b}, {type: a, address: b}]}}", "status.addresses[1]", "Duplicate", ""),
    ("service", "{}", "{status: {loadBalancer: {ingress: [{hostname: a}, {ip: '::ffff:203.0.113.50'}]}}}", "status.loadBalancer.ingress[1].ip", "Invalid", "must not be an IPv4-mapped IPv6 address"),
    ("service", "{}", "{status: {loadBalancer: {ingress: [{ip: x}]}}}", "status.loadBalancer.ingress[0].ip", "Invalid", "must be a valid IP address"),
    ("node", "{}", "{status: {capacity: {cpu: -1}}}", "status.capacity[cpu]", "Invalid", "must be greater than or equal to 0"),
];

#[test]
fn each_rule_of_status_updates() {
    let mut wrong = Vec::new();
    for (base, before, change, field, reason, words) in STATUS {
        let (kind, mut old) = created(base, before);
        if let Some(status) = merged(base, before).get("status") {
            old.0["status"] = status.clone();
        }
        let (_, mut new) = decoded(merged(base, change));
        strategy::prepare_status_update(kind, &mut new, &old);
        let outcome = strategy::validate_status_update(kind, &new, &old);
        wrong.extend(unmet(outcome, &format!("{base} {before} -> {change}"), field, reason, words));
    }
    report(wrong);
}

#[test]
fn what_a_pod_may_change() {
    let (kind, mut old) = created("spec", "{terminationGracePeriodSeconds: -5, schedulingGates: [{name: a}]}");
    old.set_meta("uid", Value::from("u"));
    let fragment = "{terminationGracePeriodSeconds: 1, nodeSelector: {a: b}, activeDeadlineSeconds: 5, \
                    tolerations: [{key: a}], containers: [{name: c, image: 'i:2', imagePullPolicy: IfNotPresent}]}";
    let (_, mut new) = decoded(merged("spec", fragment));
    strategy::prepare_update(kind, &mut new, &old);
    strategy::validate_update(kind, &new, &old).unwrap();
    assert_eq!(new.generation(), 2);
}

/// It was stored before this spelling was rejected.
#[test]
fn a_service_keeps_an_address_however_it_has_been_written() {
    let spec = "spec: {type: LoadBalancer, clusterIP: '::ffff:10.0.0.1', clusterIPs: ['::ffff:10.0.0.1'], externalIPs: \
                ['::ffff:cb00:7132'], loadBalancerIP: '::ffff:203.0.113.50'}";
    let status = "status: {loadBalancer: {ingress: [{ip: '::ffff:203.0.113.50'}]}}";
    let (kind, mut old) = created("service", &format!("{{{spec}}}"));
    old.0["status"] = merged("service", &format!("{{{status}}}"))["status"].clone();
    let changed = format!("{{metadata: {{labels: {{a: b}}}}, {spec}, {status}}}");
    let (_, mut new) = decoded(merged("service", &changed));
    strategy::prepare_update(kind, &mut new, &old);
    strategy::validate_update(kind, &new, &old).unwrap();
    let (_, mut new) = decoded(merged("service", &changed));
    strategy::prepare_status_update(kind, &mut new, &old);
    strategy::validate_status_update(kind, &new, &old).unwrap();
}
