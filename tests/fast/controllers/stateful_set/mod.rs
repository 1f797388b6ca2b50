//! StatefulSets: a small model world, their order and identity; claims, rolling updates and history in submodules.

mod claims;
mod history;
mod rolling;

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet},
    core::v1::{PersistentVolumeClaim, Pod},
};
use podwright::controllers::{
    Plan,
    stateful_set::{Inputs, plan},
    write::Write,
};
use serde_json::{Value, json};

use super::{
    at, line, lines, merge,
    sets::{SmallWorld, revise},
    starved, tries,
};

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

pub fn with_claims(patch: Value) -> StatefulSet {
    let mut set = set(patch);
    let template = json!({ "metadata": { "name": "data", "labels": { "tier": "db" } }, "spec": {} });
    set.spec.as_mut().unwrap().volume_claim_templates = Some(vec![serde_json::from_value(template).unwrap()]);
    set
}

/// A StatefulSet and all its objects: a world small enough to be a value.
pub struct World {
    set: StatefulSet,
    revisions: Vec<ControllerRevision>,
    pods: Vec<Pod>,
    claims: Vec<PersistentVolumeClaim>,
    now: i64,
    made: u32,
}

impl World {
    pub fn new(set: StatefulSet) -> World {
        World { set, revisions: vec![], pods: vec![], claims: vec![], now: 0, made: 0 }
    }

    /// A world in which everything is ready.
    pub fn ready(set: StatefulSet) -> World {
        let mut world = World::new(set);
        world.reach_rest();
        world
    }

    /// Creates the revision of the template, and nothing else.
    pub fn know_revision(&mut self) {
        self.step_refusing(&|label| !label.contains("controllerrevisions"));
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

    pub fn set_phase(&mut self, name: &str, phase: &str) {
        self.pod(name).status = Some(serde_json::from_value(json!({ "phase": phase })).unwrap());
    }

    /// `web-0=v1 web-1=v2`, by name.
    pub fn images(&self) -> String {
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

impl SmallWorld for World {
    type Set = StatefulSet;

    fn set(&mut self) -> &mut StatefulSet {
        &mut self.set
    }

    fn pods(&self) -> &[Pod] {
        &self.pods
    }

    fn plan(&self) -> Plan {
        let revisions: Vec<_> = self.revisions.iter().cloned().map(Arc::new).collect();
        let pods: Vec<_> = self.pods.iter().cloned().map(Arc::new).collect();
        plan(&Inputs {
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

    fn label(&self, write: &Write) -> String {
        let line = line(write);
        let short = line.split(':').next().unwrap_or_default();
        short.replace(" persistentvolumeclaims/", " claim ").replace(" pods/", " ")
    }

    fn act(&mut self, write: &Write) {
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
                merge(self.claims.iter_mut().find(|claim| claim.metadata.name == name).expect("it is there"), &body);
            }
            (_, "controllerrevisions.apps") => revise(&mut self.revisions, request),
            ("Patch", "statefulsets.apps") => merge(&mut self.set, &body),
            other => panic!("unexpected write {other:?}"),
        }
    }

    fn tick(&mut self) {
        self.now += 1;
    }

    /// Lets the nodes do their work: Pods being deleted are gone, all others run; those of the image "broken" are not ready.
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
    let creates = World { revisions: world.revisions, ..World::new(world.set) }.plan();
    assert_eq!((creates.writes().count(), tries(&creates)), (500, 2), "a quota is met by few requests");
}

#[test]
fn a_pod_has_the_identity_of_its_ordinal() {
    let mut world = World::new(with_claims(json!({ "ordinals": { "start": 5 }, "replicas": 1 })));
    let plan = world.plan();
    let told: Vec<String> = plan.writes().flat_map(|write| &write.done).map(|note| note.message.clone()).collect();
    assert_eq!(
        told,
        [
            "create Claim data-web-5 Pod web-5 in StatefulSet web success",
            "create Pod web-5 in StatefulSet web successful"
        ]
    );
    let [revision, claim, pod] = [1, 2, 3].map(|n| lines(&plan)[n].clone());
    assert_eq!(starved(&plan, &revision), [claim.clone(), pod.clone()]);
    assert_eq!(starved(&plan, &claim), [pod]);
    let create = plan.writes().last().unwrap();
    assert_eq!(create.done[0].reason, "SuccessfulCreate");
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
    assert_eq!((&pod["metadata"]["name"], &pod["metadata"]["generateName"]), (&json!("web-5"), &json!("web-")));
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
fn healthy_pods_cost_less_than_to_be_written_down() {
    let mut world = World::ready(set(json!({ "podManagementPolicy": "Parallel", "replicas": 300 })));
    for pod in &mut world.pods {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.extend((0..100).map(|n| (format!("a{n}"), "x".repeat(50))));
    }
    let pods: Vec<Arc<Pod>> = world.pods.iter().cloned().map(Arc::new).collect();
    let revisions: Vec<_> = world.revisions.iter().cloned().map(Arc::new).collect();
    let scene =
        Inputs { set: &world.set, revisions: &revisions, taken: &|_| true, pods: &pods, claim: &|_| None, now: at(9) };
    // The fastest of several runs, independent of other load.
    let fastest = |work: &dyn Fn()| {
        let time = |_| {
            let start = std::time::Instant::now();
            work();
            start.elapsed()
        };
        (0..5).map(time).min().unwrap()
    };
    let planned = fastest(&|| assert!(plan(&scene).is_empty()));
    let written = fastest(&|| pods.iter().for_each(|pod| drop(serde_json::to_value(pod).unwrap())));
    assert!(planned < written, "{planned:?} to plan, {written:?} to turn the Pods into JSON");
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
fn a_deleted_stateful_set_makes_no_pods() {
    let mut world = World::ready(set(json!({})));
    world.set.metadata.deletion_timestamp = Some(at(0).into());
    world.pods.clear();
    assert_eq!(lines(&world.plan()), ["patch statefulsets.apps/web/status"]);
    let mut world = World::new(world.set);
    assert_eq!(world.step(), [""; 0]);
    assert!(world.revisions.is_empty());
}
