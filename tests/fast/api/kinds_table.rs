//! The kinds table and its lookups.

use podwright::api::kinds::{KINDS, lookup, of};

use super::created;

#[test]
fn names_find_their_kind() {
    for (name, kind) in [
        ("po", "Pod"),
        ("pods", "Pod"),
        ("Pod", "Pod"),
        ("deployments.apps", "Deployment"),
        ("deployments.v1.apps", "Deployment"),
        ("deploy", "Deployment"),
        ("RS", "ReplicaSet"),
        ("svc", "Service"),
        ("leases.coordination.k8s.io", "Lease"),
        ("endpointslices", "EndpointSlice"),
        ("pods.v1", "Pod"),
    ] {
        assert_eq!(lookup(name).map(|k| k.kind), Some(kind), "{name}");
    }
    for name in ["", "pod.apps", "deployments.core", "deployments.v2.apps", "nonsense"] {
        assert!(lookup(name).is_none(), "{name}");
    }
    assert_eq!(of("apps/v1", "ReplicaSet").map(|k| k.plural), Some("replicasets"));
    assert!(of("v1", "ReplicaSet").is_none());
}

#[test]
fn every_selectable_field_is_in_the_schema() {
    for kind in KINDS {
        for path in kind.selectable {
            assert!(kind.schema().at(kind.field_path(path)).is_some(), "{}: {path}", kind.kind);
        }
    }
}

#[test]
fn selectable_fields_have_values() {
    let (kind, pod) =
        created("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: worker, containers: []}}");
    assert_eq!(kind.field(&pod, "spec.nodeName"), "worker");
    assert_eq!(kind.field(&pod, "status.phase"), "Pending");
    assert_eq!(kind.field(&pod, "spec.hostNetwork"), "false");
    assert_eq!(kind.field(&pod, "status.podIP"), "");
    assert!(kind.is_selectable("metadata.namespace") && !kind.is_selectable("spec.containers"));
}

/// Special treatment of a kind uses `Kind::built_in`, which has no group.
#[test]
fn a_name_is_one_kind_of_the_table() {
    for kind in KINDS {
        for other in KINDS.iter().filter(|other| other.kind == kind.kind) {
            let one = std::ptr::eq(kind.stored(), other.stored());
            assert!(one, "{} is {} and {}", kind.kind, kind.resource(), other.resource());
        }
    }
}
