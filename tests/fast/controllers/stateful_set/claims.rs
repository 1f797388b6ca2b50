//! What happens to the Pods' claims.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use podwright::controllers::stateful_set::claims;
use serde_json::json;

use super::{SmallWorld, World, with_claims};
use crate::controllers::{object, pod};

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
fn a_lost_claim_is_made_again_for_a_pod_that_waits_for_it() {
    let mut world = World::new(with_claims(json!({ "replicas": 1 })));
    assert_eq!(world.step(), ["create claim data-web-0", "create web-0"]);
    world.claims.clear();
    assert_eq!(world.step(), ["create claim data-web-0"]);
}
