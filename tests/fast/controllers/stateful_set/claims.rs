//! How the Pods' claims are handled.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use podwright::{
    api::object::length,
    controllers::stateful_set::{Revision, claims, pods},
};
use serde_json::json;

use super::{SmallWorld, World, at, with_claims};
use crate::{
    controllers::{merge, object, pod},
    work::grows_with_its_lists,
};

#[test]
fn claims_belong_to_whom_the_policy_says() {
    for (deleted, scaled, stays, goes) in [
        ("Retain", "Retain", "", ""),
        ("Delete", "Retain", "StatefulSet/web", "StatefulSet/web"),
        ("Retain", "Delete", "", "Pod/web-1"),
        ("Delete", "Delete", "StatefulSet/web", "Pod/web-1"),
    ] {
        let policy =
            json!({ "persistentVolumeClaimRetentionPolicy": { "whenDeleted": deleted, "whenScaled": scaled } });
        // The result is the same whether the policy is set before the claims exist or later.
        for late in [false, true] {
            let mut world = World::ready(with_claims(if late { json!({}) } else { policy.clone() }));
            world.change(policy.clone());
            world.reach_rest();
            assert_eq!(world.owners("data-web-1"), stays, "{deleted} {scaled}");
            world.change(json!({ "replicas": 1 }));
            world.step();
            assert_eq!(world.owners("data-web-2"), goes.replace("web-1", "web-2"), "before the Pod is deleted");
            // Scaled up again before the Pods are gone.
            world.change(json!({ "replicas": 3 }));
            assert_eq!(world.owners("data-web-1"), goes, "{deleted} {scaled}");
            world.settle();
            if goes.starts_with("Pod") {
                world.claims.retain(|claim| claim.metadata.name.as_deref() != Some("data-web-2"));
            }
            world.reach_rest();
            assert_eq!(world.owners("data-web-1"), stays, "{deleted} {scaled}");
        }
    }
}

#[test]
fn a_pod_waits_until_the_claim_of_its_namesake_is_gone() {
    let policy = json!({ "whenDeleted": "Retain", "whenScaled": "Delete" });
    let mut world = World::ready(with_claims(json!({ "replicas": 2, "persistentVolumeClaimRetentionPolicy": policy })));
    world.change(json!({ "replicas": 1 }));
    world.reach_rest();
    assert_eq!(world.owners("data-web-1"), "Pod/web-1");
    world.change(json!({ "replicas": 2 }));
    assert_eq!(world.reach_rest(), [""; 0]);
    world.claims.retain(|claim| claim.metadata.name.as_deref() != Some("data-web-1"));
    assert_eq!(world.reach_rest(), ["create claim data-web-1", "create web-1"]);
}

#[test]
fn claims_that_others_control_are_left_alone() {
    let set = with_claims(json!({ "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete" } }));
    let pod: Arc<Pod> = object(pod("web-0", "n", Some(0)));
    let owner = |kind: &str, name: &str, uid: &str| {
        let version = if kind == "Pod" { "v1" } else { "apps/v1" };
        json!({ "apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true })
    };
    for (owners, expected) in [
        (vec![owner("Deployment", "other", "x")], None),
        (vec![owner("StatefulSet", "web", "of a namesake before")], None),
        (vec![owner("Pod", "web-0", "of a namesake before")], None),
        (vec![owner("Deployment", "other", "x"), owner("StatefulSet", "web", "s")], Some("Deployment")),
        (vec![], Some("StatefulSet")),
        (vec![owner("Pod", "web-0", "uid-web-0")], Some("StatefulSet")),
    ] {
        let claim: Arc<PersistentVolumeClaim> =
            object(json!({ "metadata": { "name": "data-web-0", "ownerReferences": owners } }));
        let new = claims::owners(&set, &claim, &pod, true);
        let kinds = new.as_ref().map(|new| new.iter().map(|owner| owner.kind.as_str()).collect::<Vec<_>>().join(" "));
        assert_eq!(kinds.as_deref(), expected, "{owners:?}");
    }
}

#[test]
fn a_claim_that_is_being_deleted_is_waited_for_and_told_of() {
    let why = "create Pod web-0 in StatefulSet web failed error: pvc data-web-0 is being deleted";
    for (scaled, told) in [("Retain", vec![("FailedCreate", why.to_owned())]), ("Delete", vec![])] {
        let policy = json!({ "whenScaled": scaled });
        let mut world =
            World::new(with_claims(json!({ "replicas": 1, "persistentVolumeClaimRetentionPolicy": policy })));
        world.step();
        world.pods.clear();
        world.claims[0].metadata.deletion_timestamp = Some(at(0).into());
        let notes = world.plan().notes;
        assert_eq!(notes.into_iter().map(|note| (note.reason, note.message)).collect::<Vec<_>>(), told, "{scaled}");
        assert_eq!(world.step(), [""; 0]);
    }
}

#[test]
fn a_lost_claim_is_made_again_for_a_pod_that_waits_for_it() {
    let mut world = World::new(with_claims(json!({ "replicas": 1 })));
    assert_eq!(world.step(), ["create claim data-web-0", "create web-0"]);
    world.claims.clear();
    assert_eq!(world.step(), ["create claim data-web-0"]);
}

/// The set's author chooses the number and size of the claims of each Pod.
#[test]
fn claims_are_made_so_many_bytes_at_a_time_and_the_pod_after_all() {
    let mut set = with_claims(json!({ "replicas": 2, "podManagementPolicy": "Parallel" }));
    let spec = set.spec.as_mut().unwrap();
    spec.selector.match_labels = Some([("l".to_owned(), "x".repeat(600_000))].into());
    let of = |n: usize| serde_json::from_value(json!({ "metadata": { "name": format!("c{n}") }, "spec": {} })).unwrap();
    spec.volume_claim_templates = Some((0..20).map(of).collect());
    let mut world = World::new(set);
    world.know_revision();
    let mut made = Vec::new();
    while made.len() < 42 {
        let plan = world.plan();
        let bytes: usize = plan.writes().filter_map(|write| write.request.body.as_ref()).map(length).sum();
        assert!(bytes < 10 << 20, "{bytes} bytes at a time");
        let step = world.step();
        assert!(!step.is_empty(), "after {made:?}");
        made.extend(step);
    }
    for n in 0..2 {
        let pod = made.iter().position(|label| *label == format!("create web-{n}")).unwrap();
        let own = |label: &&String| label.starts_with("create claim") && label.ends_with(&format!("-web-{n}"));
        assert_eq!(made[..pod].iter().filter(own).count(), 20, "{made:?}");
    }
    assert_eq!(world.step(), [""; 0]);
}

#[test]
fn a_claim_is_of_a_set_by_the_name_of_a_template_and_of_a_pod() {
    let set = with_claims(json!({}));
    for (name, expected) in [
        ("data-web-0", true),
        ("data-web-12", true),
        ("data-web", false),
        ("more-web-0", false),
        ("data-other-0", false),
    ] {
        assert_eq!(claims::may_be_of(&set, name), expected, "{name}");
    }
}

/// Claims replace volumes of the same names.
#[test]
fn claims_and_volumes_are_not_compared_each_with_each() {
    let with = |n: usize| {
        let mut set = with_claims(json!({}));
        let of = |n: usize| serde_json::from_value(json!({ "metadata": { "name": format!("claim-{n}") }, "spec": {} }));
        let volume = |n: usize| json!({ "name": format!("volume-{n}"), "emptyDir": {} });
        let spec = set.spec.as_mut().unwrap();
        spec.volume_claim_templates = Some((0..n).map(|n| of(n).unwrap()).collect());
        let volumes: Vec<_> = (0..n).map(volume).collect();
        spec.template.spec.as_mut().unwrap().volumes = Some(serde_json::from_value(json!(volumes)).unwrap());
        let revision = Revision { name: "r".into(), template: spec.template.clone() };
        (set, revision)
    };
    grows_with_its_lists("a Pod", &with(500), &with(8000), |(set, revision)| pods::create(set, 0, revision));
}

#[test]
fn claims_that_another_controller_has_are_told_of() {
    let policy = json!({ "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete" } });
    let other = json!({ "apiVersion": "v1", "kind": "Backup", "name": "b", "uid": "b", "controller": true });
    let message = "PersistentVolumeClaim data-web-1 has a conflicting OwnerReference that acts as a managing controller, \
                   the retention policy is ignored for this claim";
    let told = |world: &World| {
        let plan = world.plan();
        let notes = plan.writes().flat_map(|write| write.done.clone()).chain(plan.notes.clone());
        notes.filter(|note| note.reason == "ConflictingController").map(|note| note.message).collect::<Vec<_>>()
    };
    let mut world = World::ready(with_claims(json!({})));
    let at = world.claims.iter().position(|claim| claim.metadata.name.as_deref() == Some("data-web-1")).unwrap();
    merge(&mut world.claims[at], &json!({ "metadata": { "ownerReferences": [other] } }));
    assert_eq!(told(&world), [""; 0], "claims that are kept may be anybody's");
    world.change(policy);
    assert_eq!(told(&world), [message]);
    world.reach_rest();
    assert_eq!(told(&world), [""; 0], "once for each change of the StatefulSet");
    // A claim formerly owned by the StatefulSet.
    let mut owners = world.claims[0].metadata.owner_references.clone().unwrap();
    owners.push(serde_json::from_value(other.clone()).unwrap());
    merge(&mut world.claims[at], &json!({ "metadata": { "ownerReferences": owners } }));
    assert_eq!(told(&world), [message]);
    world.reach_rest();
    assert_eq!(world.owners("data-web-1"), "Backup/b");
}
