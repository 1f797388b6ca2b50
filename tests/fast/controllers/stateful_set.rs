//! StatefulSets: order, identity, claims, rolling updates, history.

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet},
    core::v1::{PersistentVolumeClaim, Pod},
};
use podwright::controllers::{
    Plan, history,
    stateful_set::{Scene, claims, max_unavailable, plan},
};
use serde_json::{Value, json};

use super::{at, line, merge, object};

/// A StatefulSet `web` with a claim template `data`, changed by a merge patch.
fn set(patch: Value) -> StatefulSet {
    let mut set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": { "name": "web", "namespace": "a", "uid": "s", "generation": 1, "resourceVersion": "1" },
        "spec": {
            "replicas": 3, "serviceName": "nginx", "podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10,
            "selector": { "matchLabels": { "app": "web" } },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": 0 } },
            "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Retain", "whenScaled": "Retain" },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "c", "image": "v1" }] },
            },
        },
    });
    merge(&mut set, &json!({ "spec": patch }));
    serde_json::from_value(set).expect("a StatefulSet")
}

fn with_claims(patch: Value) -> StatefulSet {
    let mut set = set(patch);
    let template = json!({ "metadata": { "name": "data", "labels": { "tier": "db" } }, "spec": {} });
    set.spec.as_mut().unwrap().volume_claim_templates = Some(vec![serde_json::from_value(template).unwrap()]);
    set
}

/// A StatefulSet and all that is its own: a world small enough to be a value.
struct World {
    set: StatefulSet,
    revisions: Vec<ControllerRevision>,
    pods: Vec<Pod>,
    claims: Vec<PersistentVolumeClaim>,
    now: i64,
    made: u32,
}

impl World {
    fn new(set: StatefulSet) -> World {
        World { set, revisions: vec![], pods: vec![], claims: vec![], now: 0, made: 0 }
    }

    /// One in which everything is ready.
    fn ready(set: StatefulSet) -> World {
        let mut world = World::new(set);
        world.reach_rest();
        world
    }

    fn plan(&self) -> Plan {
        let revisions: Vec<_> = self.revisions.iter().cloned().map(Arc::new).collect();
        let pods: Vec<_> = self.pods.iter().cloned().map(Arc::new).collect();
        plan(&Scene {
            set: &self.set,
            revisions: &revisions,
            taken: &|name| self.revisions.iter().any(|known| known.metadata.name.as_deref() == Some(name)),
            pods: &pods,
            claim: &|name| {
                let found = self.claims.iter().find(|claim| claim.metadata.name.as_deref() == Some(name));
                found.cloned().map(Arc::new)
            },
            now: at(self.now),
        })
    }

    /// Plans and does it; returns what was done to Pods and claims.
    fn step(&mut self) -> Vec<String> {
        let plan = self.plan();
        for write in plan.writes() {
            let request = &write.request;
            let body = request.body.clone().unwrap_or_default();
            let name = request.name.clone();
            match (format!("{:?}", request.verb).as_str(), request.resource.as_str()) {
                ("Create", "pods") => {
                    let mut pod: Pod = serde_json::from_value(body).expect("a Pod");
                    assert!(self.pods.iter().all(|p| p.metadata.name != name), "{name:?} is there already");
                    self.made += 1;
                    pod.metadata.uid = Some(format!("{}", self.made));
                    pod.status.get_or_insert_default().phase = Some("Pending".into());
                    self.pods.push(pod);
                }
                ("Delete", "pods") => {
                    let pod = self.pods.iter_mut().find(|pod| pod.metadata.name == name).expect("a Pod to delete");
                    assert!(pod.metadata.deletion_timestamp.is_none(), "{name:?} is deleted twice");
                    pod.metadata.deletion_timestamp = Some(at(self.now).into());
                }
                ("Patch", "pods") => {
                    merge(self.pods.iter_mut().find(|p| p.metadata.name == name).expect("it is there"), &body)
                }
                ("Create", "persistentvolumeclaims") => self.claims.push(serde_json::from_value(body).unwrap()),
                ("Patch", "persistentvolumeclaims") => {
                    merge(
                        self.claims.iter_mut().find(|claim| claim.metadata.name == name).expect("it is there"),
                        &body,
                    );
                }
                ("Create", "controllerrevisions.apps") => self.revisions.push(serde_json::from_value(body).unwrap()),
                ("Patch", "controllerrevisions.apps") => {
                    merge(
                        self.revisions.iter_mut().find(|known| known.metadata.name == name).expect("it is there"),
                        &body,
                    );
                }
                ("Delete", "controllerrevisions.apps") => self.revisions.retain(|known| known.metadata.name != name),
                ("Patch", "statefulsets.apps") => merge(&mut self.set, &body),
                other => panic!("unexpected write {other:?}"),
            }
        }
        self.now += 1;
        let about = |line: &String| line.contains(" pods/") || line.contains(" persistentvolumeclaims/");
        let short =
            |line: String| line.split(':').next().unwrap_or_default().replace(" persistentvolumeclaims/", " claim ");
        plan.writes().map(line).filter(about).map(short).map(|line| line.replace(" pods/", " ")).collect()
    }

    fn pod(&mut self, name: &str) -> &mut Pod {
        self.pods.iter_mut().find(|pod| pod.metadata.name.as_deref() == Some(name)).expect("the Pod")
    }

    fn set_ready(&mut self, name: &str, ready: bool) {
        let condition = json!({
            "type": "Ready", "status": if ready { "True" } else { "False" }, "lastTransitionTime": at(self.now).to_string(),
        });
        let status = json!({ "phase": "Running", "conditions": [condition] });
        self.pod(name).status = Some(serde_json::from_value(status).unwrap());
    }

    fn set_phase(&mut self, name: &str, phase: &str) {
        self.pod(name).status = Some(serde_json::from_value(json!({ "phase": phase })).unwrap());
    }

    /// Lets the nodes do their work: who is to go is gone, everybody else runs; those of the image "broken" are not ready.
    fn settle(&mut self) {
        self.pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        let names: Vec<(String, bool)> = { self.pods.iter() }
            .map(|pod| {
                let broken = pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("broken");
                (pod.metadata.name.clone().unwrap(), !broken)
            })
            .collect();
        for (name, ready) in names {
            if self.pod(&name).status.as_ref().unwrap().phase.as_deref() == Some("Pending") {
                self.set_ready(&name, ready);
            }
        }
    }

    /// The steps until nothing is left to do.
    fn reach_rest(&mut self) -> Vec<String> {
        let mut steps = Vec::new();
        for _ in 0..100 {
            if self.plan().is_empty() && self.pods.iter().all(|pod| pod.metadata.deletion_timestamp.is_none()) {
                return steps;
            }
            steps.extend(self.step());
            self.settle();
        }
        panic!("no rest: {steps:?}");
    }

    fn change(&mut self, spec: Value) {
        merge(&mut self.set, &json!({ "spec": spec }));
        *self.set.metadata.generation.as_mut().unwrap() += 1;
    }

    fn set_image(&mut self, image: &str) {
        self.change(json!({ "template": { "spec": { "containers": [{ "name": "c", "image": image }] } } }));
    }

    /// `web-0=v1 web-1=v2`, by name.
    fn images(&self) -> String {
        let mut all: Vec<String> = { self.pods.iter() }
            .map(|pod| {
                let image = pod.spec.as_ref().unwrap().containers[0].image.clone();
                format!("{}={}", pod.metadata.name.as_ref().unwrap(), image.unwrap())
            })
            .collect();
        all.sort();
        all.join(" ")
    }

    fn owners(&self, claim: &str) -> String {
        let claim = self.claims.iter().find(|known| known.metadata.name.as_deref() == Some(claim)).expect("the claim");
        let owners = claim.metadata.owner_references.iter().flatten();
        owners.map(|owner| format!("{}/{}", owner.kind, owner.name)).collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn pods_come_one_after_the_other_and_go_the_other_way_round() {
    let mut world = World::new(set(json!({})));
    assert_eq!(world.step(), ["create web-0"]);
    assert_eq!(world.step(), [""; 0], "web-0 is not ready");
    world.set_ready("web-0", false);
    assert_eq!(world.step(), [""; 0]);
    world.set_ready("web-0", true);
    assert_eq!(world.step(), ["create web-1"]);
    world.set_ready("web-1", true);
    // Upstream's documentation: if web-0 fails before web-2 is launched, web-2 waits for it.
    world.set_ready("web-0", false);
    assert_eq!(world.step(), [""; 0]);
    world.set_ready("web-0", true);
    assert_eq!(world.step(), ["create web-2"]);
    world.settle();
    assert_eq!(world.reach_rest(), [""; 0]);

    world.change(json!({ "replicas": 1 }));
    assert_eq!(world.step(), ["delete web-2"]);
    assert_eq!(world.step(), [""; 0], "web-2 is still there");
    world.pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    // And if web-0 fails before web-1 is terminated, web-1 waits for it.
    world.set_ready("web-0", false);
    assert_eq!(world.step(), [""; 0]);
    world.set_ready("web-0", true);
    assert_eq!(world.step(), ["delete web-1"]);
}

#[test]
fn one_that_is_not_well_may_go_before_its_turn_if_it_is_the_first() {
    let mut world = World::ready(set(json!({ "replicas": 4 })));
    world.change(json!({ "replicas": 1 }));
    for (unready, expected) in [
        (&["web-3"][..], &["delete web-3"][..]),
        (&["web-3", "web-1"], &[]),
        (&["web-1"], &["delete web-3"]),
        (&["web-0"], &[]),
    ] {
        for name in ["web-0", "web-1", "web-2", "web-3"] {
            world.set_ready(name, !unready.contains(&name));
        }
        let plan = world.plan();
        let done: Vec<String> = plan.writes().map(line).filter(|line| line.contains(" pods/")).collect();
        let done: Vec<String> =
            done.iter().map(|line| line.split(':').next().unwrap().replace(" pods/", " ")).collect();
        assert_eq!(done, expected, "{unready:?}");
    }
}

#[test]
fn in_parallel_nobody_waits() {
    let mut world = World::new(set(json!({ "podManagementPolicy": "Parallel" })));
    assert_eq!(world.step(), ["create web-0", "create web-1", "create web-2"]);
    world.set_ready("web-1", true);
    world.change(json!({ "replicas": 1 }));
    assert_eq!(world.step(), ["delete web-2", "delete web-1"]);
}

#[test]
fn at_most_five_hundred_are_created_at_a_time() {
    let mut world = World::new(set(json!({ "podManagementPolicy": "Parallel", "replicas": i32::MAX })));
    assert_eq!(world.step().len(), 500);
    let batch = World::new(world.set).plan().batches.pop().expect("a batch");
    assert!(batch.slow_start, "a quota is met by few requests");
}

#[test]
fn a_pod_has_the_identity_of_its_ordinal() {
    let mut world = World::new(with_claims(json!({ "ordinals": { "start": 5 }, "replicas": 1 })));
    let plan = world.plan();
    let told: Vec<String> =
        plan.writes().filter_map(|write| write.done.as_ref()).map(|note| note.message.clone()).collect();
    assert_eq!(
        told,
        [
            "create Claim data-web-5 Pod web-5 in StatefulSet web success",
            "create Pod web-5 in StatefulSet web successful"
        ]
    );
    assert_eq!(plan.batches.len(), 3, "the revision, then the claim, then the Pod");
    let create = plan.writes().last().unwrap();
    assert_eq!(create.done.as_ref().unwrap().reason, "SuccessfulCreate");
    let failed = create.failed.as_ref().unwrap();
    assert_eq!((failed.reason, failed.warning), ("FailedCreate", true));
    assert_eq!(failed.message, "create Pod web-5 in StatefulSet web failed error: {}");
    world.step();
    let pod = serde_json::to_value(&world.pods[0]).unwrap();
    let revision = world.revisions[0].metadata.name.clone().unwrap();
    assert_eq!(
        pod["metadata"]["labels"],
        json!({
            "app": "web", "apps.kubernetes.io/pod-index": "5", "controller-revision-hash": revision,
            "statefulset.kubernetes.io/pod-name": "web-5",
        })
    );
    assert_eq!((&pod["spec"]["hostname"], &pod["spec"]["subdomain"]), (&json!("web-5"), &json!("nginx")));
    let volume = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data-web-5" } }]);
    assert_eq!(pod["spec"]["volumes"], volume);
    assert_eq!(pod["metadata"]["ownerReferences"][0]["kind"], "StatefulSet");
    let claim = serde_json::to_value(&world.claims[0]).unwrap();
    assert_eq!(claim["metadata"]["labels"], json!({ "app": "web", "tier": "db" }));
    assert_eq!(claim["metadata"].get("ownerReferences"), None, "claims are kept");
}

#[test]
fn a_lost_label_is_given_again() {
    let mut world = World::ready(set(json!({ "replicas": 1 })));
    world.pod("web-0").metadata.labels.as_mut().unwrap().remove("statefulset.kubernetes.io/pod-name");
    assert_eq!(world.step(), ["patch web-0"]);
    assert_eq!(world.step(), [""; 0]);
}

#[test]
fn pods_that_have_ended_are_made_anew() {
    for phase in ["Failed", "Succeeded"] {
        let mut world = World::ready(set(json!({})));
        world.set_phase("web-1", phase);
        assert_eq!(world.step(), ["delete web-1"], "{phase}");
        assert_eq!(world.step(), [""; 0]);
        world.settle();
        assert_eq!(world.step(), ["create web-1"]);
    }
}

#[test]
fn the_first_ordinal_may_change() {
    let mut world = World::ready(set(json!({ "replicas": 2 })));
    world.change(json!({ "ordinals": { "start": 1 } }));
    assert_eq!(world.reach_rest(), ["create web-2", "delete web-0"]);
}

#[test]
fn ready_pods_count_after_min_ready_seconds() {
    let mut world = World::new(set(json!({ "replicas": 2, "minReadySeconds": 30 })));
    world.step();
    world.set_ready("web-0", true);
    world.now += 10;
    assert_eq!(world.step(), [""; 0]);
    assert_eq!(world.plan().requeue_after.map(|wait| wait.as_secs()), Some(19));
    let status = world.set.status.clone().unwrap();
    assert_eq!((status.ready_replicas, status.available_replicas), (Some(1), Some(0)));
    world.now += 20;
    assert_eq!(world.step(), ["create web-1"]);
    assert_eq!(world.set.status.clone().unwrap().available_replicas, Some(1));
}

#[test]
fn a_rolling_update_takes_these_steps() {
    let rolling = |settings: Value| json!({ "type": "RollingUpdate", "rollingUpdate": settings });
    for (policy, settings, expected) in [
        ("OrderedReady", json!({ "partition": 0 }), "-2 +2 -1 +1 -0 +0"),
        ("OrderedReady", json!({ "partition": 2 }), "-2 +2"),
        ("OrderedReady", json!({ "partition": 7 }), ""),
        ("Parallel", json!({ "partition": 0 }), "-2 +2 -1 +1 -0 +0"),
        ("OrderedReady", json!({ "partition": 0, "maxUnavailable": 2 }), "-2 -1 +1 +2 -0 +0"),
        ("Parallel", json!({ "partition": 0, "maxUnavailable": 2 }), "-2 -1 +1 +2 -0 +0"),
        ("Parallel", json!({ "partition": 1, "maxUnavailable": "100%" }), "-2 -1 +1 +2"),
    ] {
        let mut world =
            World::ready(set(json!({ "podManagementPolicy": policy, "updateStrategy": rolling(settings.clone()) })));
        world.set_image("v2");
        let steps: Vec<String> = { world.reach_rest().into_iter() }
            .map(|step| step.replace("delete web-", "-").replace("create web-", "+"))
            .collect();
        assert_eq!(steps.join(" "), expected, "{policy} {settings}");
    }
}

#[test]
fn at_most_max_unavailable_are_down_at_any_time() {
    for (value, replicas, expected) in
        [(json!(null), 10, 1), (json!(3), 10, 3), (json!("25%"), 10, 2), (json!("5%"), 10, 1), (json!("100%"), 4, 4)]
    {
        for policy in ["OrderedReady", "Parallel"] {
            let strategy = json!({ "rollingUpdate": { "maxUnavailable": value } });
            let patch = json!({ "replicas": replicas, "podManagementPolicy": policy, "updateStrategy": strategy });
            let mut world = World::ready(set(patch));
            assert_eq!(max_unavailable(&world.set), expected, "{value} of {replicas}");
            world.set_image("v2");
            let mut most = 0;
            for turn in 0..400 {
                world.step();
                let up = |pod: &&Pod| {
                    pod.metadata.deletion_timestamp.is_none() && podwright::controllers::meta::is_ready(pod)
                };
                most = most.max(replicas - world.pods.iter().filter(up).count() as i32);
                if turn % 3 == 0 {
                    world.settle();
                }
            }
            assert_eq!(most, expected, "{policy}: {value} of {replicas}");
            assert!(!world.images().contains("v1"));
        }
    }
}

#[test]
fn a_partition_keeps_the_lower_ordinals_as_they_are() {
    let mut world = World::ready(set(json!({ "updateStrategy": { "rollingUpdate": { "partition": 2 } } })));
    let first = world.set.status.clone().unwrap().current_revision.unwrap();
    world.set_image("v2");
    world.reach_rest();
    assert_eq!(world.images(), "web-0=v1 web-1=v1 web-2=v2");
    let status = world.set.status.clone().unwrap();
    assert_eq!((status.current_replicas, status.updated_replicas), (Some(2), Some(1)));
    assert_eq!(status.current_revision, Some(first.clone()));
    assert_ne!(status.update_revision, Some(first));
    // Upstream's documentation: below the partition a deleted Pod comes back at the version before.
    world.pods.retain(|pod| pod.metadata.name.as_deref() == Some("web-1"));
    world.reach_rest();
    assert_eq!(world.images(), "web-0=v1 web-1=v1 web-2=v2");
    world.change(json!({ "updateStrategy": { "rollingUpdate": { "partition": 0 } } }));
    assert_eq!(world.reach_rest(), ["delete web-1", "create web-1", "delete web-0", "create web-0"]);
    let status = world.set.status.clone().unwrap();
    assert_eq!(status.current_revision, status.update_revision);
    assert_eq!((status.current_replicas, status.updated_replicas), (Some(3), Some(3)));
    assert_eq!(status.observed_generation, world.set.metadata.generation);
}

#[test]
fn on_delete_leaves_it_to_the_user() {
    let mut world = World::ready(set(json!({ "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } })));
    world.set_image("v2");
    assert_eq!(world.reach_rest(), [""; 0]);
    world.pods.retain(|pod| pod.metadata.name.as_deref() != Some("web-1"));
    assert_eq!(world.reach_rest(), ["create web-1"]);
    assert_eq!(world.images(), "web-0=v1 web-1=v2 web-2=v1");
}

#[test]
fn in_order_a_broken_pod_stays_broken_until_it_is_deleted_by_hand() {
    let mut world = World::ready(set(json!({})));
    world.set_image("broken");
    for _ in 0..9 {
        world.step();
        world.settle();
    }
    assert_eq!(world.images(), "web-0=v1 web-1=v1 web-2=broken");
    // Upstream's documentation, "Forced rollback": it is not enough to go back to a good template.
    world.set_image("v1");
    assert_eq!(world.reach_rest(), [""; 0]);
    world.pod("web-2").metadata.deletion_timestamp = Some(at(0).into());
    assert_eq!(world.reach_rest(), ["create web-2"]);
    assert_eq!(world.images(), "web-0=v1 web-1=v1 web-2=v1");
}

#[test]
fn in_parallel_broken_old_pods_do_not_count_against_an_update() {
    let mut world = World::new(set(json!({ "podManagementPolicy": "Parallel" })));
    world.set_image("broken");
    world.reach_rest();
    world.set_image("v2");
    world.reach_rest();
    assert_eq!(world.images(), "web-0=v2 web-1=v2 web-2=v2");
}

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
    let pod: Arc<Pod> = object(super::pod("web-0", "n", Some(0)));
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

#[test]
fn going_back_makes_the_old_revision_the_newest() {
    let mut world = World::ready(set(json!({})));
    world.set_image("v2");
    world.reach_rest();
    assert_eq!(world.revisions.iter().map(|known| known.revision).collect::<Vec<_>>(), [1, 2]);
    let data = &world.revisions[0].data.as_ref().unwrap().0;
    assert_eq!(data["spec"]["template"]["$patch"], "replace");
    assert_eq!(data["spec"]["template"]["spec"]["containers"][0]["image"], "v1");
    let labels = world.revisions[0].metadata.labels.clone().unwrap();
    let hash = world.revisions[0].metadata.name.clone().unwrap().replace("web-", "");
    assert_eq!((labels["app"].as_str(), &labels["controller.kubernetes.io/hash"]), ("web", &hash));
    world.set_image("v1");
    world.reach_rest();
    assert_eq!(world.revisions.iter().map(|known| known.revision).collect::<Vec<_>>(), [3, 2]);
    assert_eq!(world.images(), "web-0=v1 web-1=v1 web-2=v1");
}

#[test]
fn the_oldest_revisions_beyond_the_limit_are_forgotten_unless_a_pod_is_of_them() {
    let mut world = World::ready(set(json!({ "revisionHistoryLimit": 2, "replicas": 1 })));
    for image in ["v2", "v3", "v4", "v5"] {
        world.set_image(image);
        world.reach_rest();
    }
    assert_eq!(world.revisions.iter().map(|known| known.revision).collect::<Vec<_>>(), [3, 4, 5]);
    world.change(json!({ "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } }));
    for image in ["v6", "v7", "v8", "v9"] {
        world.set_image(image);
        world.reach_rest();
    }
    assert_eq!(world.revisions.iter().map(|known| known.revision).collect::<Vec<_>>(), [5, 7, 8, 9]);
}

#[test]
fn a_taken_name_is_a_collision() {
    let mut world = World::new(set(json!({})));
    world.step();
    let taken = world.revisions[0].metadata.name.clone();
    let mut world = World::new(set(json!({})));
    let scene = |world: &World| {
        let taken = |name: &str| Some(name) == taken.as_deref();
        let scene = Scene { set: &world.set, revisions: &[], taken: &taken, pods: &[], claim: &|_| None, now: at(0) };
        plan(&scene)
    };
    let first = scene(&world);
    assert_eq!(super::lines(&first), ["patch statefulsets.apps/web/status"]);
    merge(&mut world.set, first.writes().next().unwrap().request.body.as_ref().unwrap());
    assert_eq!(world.set.status.as_ref().unwrap().collision_count, Some(1));
    let second = scene(&world);
    let create = second.writes().next().unwrap();
    assert_eq!(create.request.resource, "controllerrevisions.apps");
    assert_ne!(create.request.name, taken);
}

#[test]
fn a_deleted_stateful_set_makes_no_pods() {
    let mut world = World::ready(set(json!({})));
    world.set.metadata.deletion_timestamp = Some(at(0).into());
    world.pods.clear();
    assert_eq!(super::lines(&world.plan()), ["patch statefulsets.apps/web/status"]);
    let mut world = World::new(world.set);
    assert_eq!(world.step(), [""; 0]);
    assert!(world.revisions.is_empty());
}

#[test]
fn revisions_are_equal_by_what_they_say() {
    let set = set(json!({}));
    let revision = |template: Value| -> Arc<ControllerRevision> {
        object(json!({ "metadata": { "name": "r" }, "revision": 1, "data": { "spec": { "template": template } } }))
    };
    let container = json!({ "image": "v1", "name": "c" });
    let wanted = &set.spec.as_ref().unwrap().template;
    for (template, same) in [
        (
            json!({ "$patch": "replace", "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [container] } }),
            true,
        ),
        (
            json!({ "metadata": { "creationTimestamp": null, "labels": { "app": "web" } }, "spec": { "containers": [container] } }),
            true,
        ),
        (json!({ "metadata": { "labels": { "app": "db" } }, "spec": { "containers": [container] } }), false),
        (json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [] } }), false),
        (json!("nonsense"), false),
    ] {
        assert_eq!(history::has(&revision(template.clone()), wanted), same, "{template}");
    }
}
