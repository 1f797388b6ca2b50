//! What happens to the Pods' claims.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use podwright::controllers::stateful_set::claims;
use serde_json::json;

use super::{SmallWorld, World, at, with_claims};
use crate::controllers::{merge, object, pod};

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
        // Whether the claims are made under the policy, or it comes later, is the same in the end.
        for late in [false, true] {
            let mut world = World::ready(with_claims(if late { json!({}) } else { policy.clone() }));
            world.change(policy.clone());
            world.reach_rest();
            assert_eq!(world.owners("data-web-1"), stays, "{deleted} {scaled}");
            world.change(json!({ "replicas": 1 }));
            world.step();
            assert_eq!(world.owners("data-web-2"), goes.replace("web-1", "web-2"), "before the Pod is deleted");
            // Scaled up again before the Pods have gone.
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
    // One that had been the StatefulSet's.
    let mut owners = world.claims[0].metadata.owner_references.clone().unwrap();
    owners.push(serde_json::from_value(other.clone()).unwrap());
    merge(&mut world.claims[at], &json!({ "metadata": { "ownerReferences": owners } }));
    assert_eq!(told(&world), [message]);
    world.reach_rest();
    assert_eq!(world.owners("data-web-1"), "Backup/b");
}
