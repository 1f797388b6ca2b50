//! DaemonSets: a small model world, which nodes get a Pod and how failed ones are handled; rolling updates and history in a
//! submodule.

mod rolling;

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet},
    core::v1::{Node, Pod},
};
use podwright::{
    api::Verb,
    controllers::{
        Plan,
        daemon_set::{
            FAILURES, Inputs,
            nodes::{self, Fit},
            plan,
        },
        meta,
        write::Write,
    },
};
use serde_json::{Value, json};

use super::{
    at, line, lines, merge,
    sets::{SmallWorld, revise},
    tries,
};

/// A DaemonSet `logs`, changed by a merge patch of its spec.
pub fn set(patch: Value) -> DaemonSet {
    let mut set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {
            "name": "logs", "namespace": "a", "uid": "d", "generation": 1, "resourceVersion": "1",
            "annotations": { "deprecated.daemonset.template.generation": "7" },
        },
        "spec": {
            "revisionHistoryLimit": 10, "selector": { "matchLabels": { "app": "logs" } },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1, "maxSurge": 0 } },
            "template": {
                "metadata": { "labels": { "app": "logs" } },
                "spec": { "containers": [{ "name": "c", "image": "v1" }] },
            },
        },
    });
    merge(&mut set, &json!({ "spec": patch }));
    serde_json::from_value(set).expect("a DaemonSet")
}

pub fn node(name: &str, spec: Value) -> Node {
    let labels = json!({ "kubernetes.io/hostname": name, "disk": if name == "n1" { "ssd" } else { "hdd" } });
    let node =
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": labels }, "spec": spec });
    serde_json::from_value(node).expect("a Node")
}

/// A DaemonSet and everything around it: a world small enough to be a value.
pub struct World {
    set: DaemonSet,
    revisions: Vec<ControllerRevision>,
    pods: Vec<Pod>,
    pub nodes: Vec<Node>,
    now: i64,
    made: u32,
}

impl World {
    /// A world with nodes n1, n2, ... that run nothing yet.
    fn new(set: DaemonSet, nodes: usize) -> World {
        let nodes = (1..=nodes).map(|n| node(&format!("n{n}"), json!({}))).collect();
        World { set, revisions: vec![], pods: vec![], nodes, now: 0, made: 0 }
    }

    /// A world in which everything is ready.
    pub fn ready(set: DaemonSet, nodes: usize) -> World {
        let mut world = World::new(set, nodes);
        world.reach_rest();
        world
    }

    fn be(pod: &mut Pod, phase: &str, ready: bool, now: i64) {
        let condition = json!({
            "type": "Ready", "status": if ready { "True" } else { "False" }, "lastTransitionTime": at(now).to_string(),
        });
        pod.status = Some(serde_json::from_value(json!({ "phase": phase, "conditions": [condition] })).unwrap());
    }

    /// The Pod of a node that is not being deleted.
    fn pod(&mut self, node: &str) -> &mut Pod {
        let on = |pod: &&mut Pod| nodes::target(pod) == Some(node) && pod.metadata.deletion_timestamp.is_none();
        self.pods.iter_mut().find(on).expect("a Pod on the node")
    }

    fn images(&self) -> String {
        let image = |pod: &Pod| pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
        let mut all: Vec<String> =
            self.pods.iter().map(|pod| format!("{}={}", nodes::target(pod).unwrap(), image(pod))).collect();
        all.sort();
        all.join(" ")
    }

    /// desired, current, ready, updated, available, unavailable, misscheduled
    fn counts(&self) -> [i32; 7] {
        let status = self.set.status.clone().unwrap_or_default();
        [
            status.desired_number_scheduled,
            status.current_number_scheduled,
            status.number_ready,
            status.updated_number_scheduled.unwrap_or(-1),
            status.number_available.unwrap_or(-1),
            status.number_unavailable.unwrap_or(-1),
            status.number_misscheduled,
        ]
    }
}

impl SmallWorld for World {
    type Set = DaemonSet;

    fn set(&mut self) -> &mut DaemonSet {
        &mut self.set
    }

    fn pods(&self) -> &[Pod] {
        &self.pods
    }

    fn plan(&self) -> Plan {
        let revisions: Vec<_> = self.revisions.iter().cloned().map(Arc::new).collect();
        let pods: Vec<_> = self.pods.iter().cloned().map(Arc::new).collect();
        let nodes: Vec<_> = self.nodes.iter().cloned().map(Arc::new).collect();
        plan(&Inputs {
            set: &self.set,
            revisions: &revisions,
            taken: &|name| self.revisions.iter().any(|known| known.metadata.name.as_deref() == Some(name)),
            pods: &pods,
            nodes: &nodes,
            now: at(self.now),
        })
    }

    /// The nodes on which Pods are created (+) and deleted (-).
    fn label(&self, write: &Write) -> String {
        let request = &write.request;
        let target = |pod: &Pod| nodes::target(pod).expect("a node").to_owned();
        match (request.verb, request.resource.as_str()) {
            (Verb::Create, "pods") => {
                let pod: Pod = serde_json::from_value(request.body.clone().unwrap()).expect("a Pod");
                format!("+{}", target(&pod))
            }
            (Verb::Delete, "pods") => {
                let pod = self.pods.iter().find(|pod| pod.metadata.name == request.name).expect("a Pod to delete");
                format!("-{}", target(pod))
            }
            _ => line(write),
        }
    }

    fn act(&mut self, write: &Write) {
        let request = &write.request;
        let body = request.body.clone().unwrap_or_default();
        let name = request.name.clone();
        match (format!("{:?}", request.verb).as_str(), request.resource.as_str()) {
            ("Create", "pods") => {
                let mut pod: Pod = serde_json::from_value(body).expect("a Pod");
                self.made += 1;
                let name = format!("{}{}", pod.metadata.generate_name.as_deref().unwrap(), self.made);
                (pod.metadata.uid, pod.metadata.name) = (Some(name.clone()), Some(name));
                pod.metadata.creation_timestamp = Some(at(self.now).into());
                pod.status.get_or_insert_default().phase = Some("Pending".into());
                self.pods.push(pod);
            }
            ("Delete", "pods") => {
                let pod = self.pods.iter_mut().find(|pod| pod.metadata.name == name).expect("a Pod to delete");
                assert!(pod.metadata.deletion_timestamp.is_none(), "{name:?} is deleted twice");
                pod.metadata.deletion_timestamp = Some(at(self.now).into());
                // The server deletes finished Pods without an agent.
                self.pods.retain(|pod| pod.metadata.deletion_timestamp.is_none() || !meta::is_finished(pod));
            }
            (_, "controllerrevisions.apps") => revise(&mut self.revisions, request),
            ("Patch", "daemonsets.apps") => merge(&mut self.set, &body),
            other => panic!("unexpected write {other:?}"),
        }
    }

    fn tick(&mut self) {
        self.now += 1;
    }

    /// Lets scheduler and nodes do their work: Pods being deleted are gone, all others run; "broken" ones are not ready.
    fn settle(&mut self) {
        self.pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        for pod in &mut self.pods {
            let node = nodes::target(pod).expect("a node").to_owned();
            let spec = pod.spec.as_mut().unwrap();
            spec.node_name = Some(node);
            let well = spec.containers[0].image.as_deref() != Some("broken");
            if meta::phase(pod) == "Pending" {
                World::be(pod, "Running", well, self.now);
            }
        }
    }
}

fn taint(key: &str, effect: &str) -> Value {
    json!({ "taints": [{ "key": key, "effect": effect }] })
}

#[test]
fn a_node_gets_a_pod_if_the_template_and_the_taints_agree() {
    const YES: Fit = Fit { run: true, stay: true };
    const STAY: Fit = Fit { run: false, stay: true };
    const NO: Fit = Fit { run: false, stay: false };
    let require = |terms: Value| json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } } });
    let label = |operator: &str, values: Value| {
        require(json!([{ "matchExpressions": [{ "key": "disk", "operator": operator, "values": values }] }]))
    };
    let name = |values: Value| {
        require(json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": values }] }]))
    };
    for (template, node_spec, expected) in [
        (json!({}), json!({}), YES),
        (json!({ "nodeSelector": { "disk": "ssd" } }), json!({}), YES),
        (json!({ "nodeSelector": { "disk": "hdd" } }), json!({}), NO),
        (json!({ "nodeName": "n1" }), json!({}), YES),
        (json!({ "nodeName": "n2" }), json!({}), NO),
        (label("In", json!(["ssd", "nvme"])), json!({}), YES),
        (label("NotIn", json!(["ssd"])), json!({}), NO),
        (label("Exists", json!([])), json!({}), YES),
        (label("DoesNotExist", json!([])), json!({}), NO),
        (name(json!(["n1", "n3"])), json!({}), YES),
        (name(json!(["n3"])), json!({}), NO),
        (require(json!([])), json!({}), NO),
        (json!({}), taint("dedicated", "NoSchedule"), STAY),
        (json!({}), taint("dedicated", "NoExecute"), NO),
        (json!({}), taint("dedicated", "PreferNoSchedule"), YES),
        (
            json!({ "tolerations": [{ "key": "dedicated", "operator": "Exists" }] }),
            taint("dedicated", "NoSchedule"),
            YES,
        ),
        (json!({}), taint("node.kubernetes.io/not-ready", "NoExecute"), YES),
        (json!({}), taint("node.kubernetes.io/not-ready", "NoSchedule"), STAY),
        (json!({}), taint("node.kubernetes.io/unreachable", "NoExecute"), YES),
        (json!({}), taint("node.kubernetes.io/unschedulable", "NoSchedule"), YES),
        (json!({}), taint("node.kubernetes.io/disk-pressure", "NoSchedule"), YES),
        (json!({}), taint("node.kubernetes.io/memory-pressure", "NoSchedule"), YES),
        (json!({}), taint("node.kubernetes.io/pid-pressure", "NoSchedule"), YES),
        (json!({}), taint("node.kubernetes.io/network-unavailable", "NoSchedule"), STAY),
        (json!({ "hostNetwork": true }), taint("node.kubernetes.io/network-unavailable", "NoSchedule"), YES),
    ] {
        let spec = nodes::spec(&set(json!({ "template": { "spec": template } })));
        assert_eq!(nodes::fit(&spec, &node("n1", node_spec.clone())), expected, "{template} {node_spec}");
    }
}

#[test]
fn a_pod_is_made_for_its_node_and_tolerates_the_nodes_troubles() {
    let affinity = json!({ "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "disk", "operator": "Exists" }] }],
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 1, "preference": {} }],
    }});
    let limited = json!([{ "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5 }]);
    let template = json!({ "spec": { "affinity": affinity, "tolerations": limited } });
    let mut world = World::new(set(json!({ "template": template })), 1);
    let plan = world.plan();
    assert_eq!(lines(&plan)[2], "create pods/logs-: Created pod: {}");
    let create = plan.writes().last().unwrap();
    assert_eq!(create.done[0].reason, "SuccessfulCreate");
    assert_eq!(create.failed.as_ref().unwrap().message, "Error creating: {}");
    world.step();
    let pod = serde_json::to_value(&world.pods[0]).unwrap();
    let hash = world.revisions[0].metadata.name.clone().unwrap().replace("logs-", "");
    let labels = json!({ "app": "logs", "controller-revision-hash": hash, "pod-template-generation": "7" });
    assert_eq!(pod["metadata"]["labels"], labels);
    assert_eq!(world.revisions[0].metadata.labels.as_ref().unwrap()["controller-revision-hash"], hash);
    assert_eq!(pod["metadata"].get("annotations"), None);
    let terms = json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] }]);
    let affinity = &pod["spec"]["affinity"]["nodeAffinity"];
    assert_eq!(affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"], terms);
    assert_eq!(affinity["preferredDuringSchedulingIgnoredDuringExecution"][0]["weight"], 1);
    let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
    assert_eq!(tolerations.len(), 6);
    assert_eq!(tolerations[0].get("tolerationSeconds"), None, "they stay for ever");
    assert_eq!(pod["spec"].get("nodeName"), None, "the scheduler places it");
}

#[test]
fn nodes_come_and_go() {
    let mut world = World::new(set(json!({})), 2);
    assert_eq!(world.step(), ["+n1", "+n2"]);
    assert_eq!(world.counts(), [2, 0, 0, 0, 0, 2, 0]);
    world.settle();
    world.reach_rest();
    assert_eq!(world.counts(), [2, 2, 2, 2, 2, 0, 0]);
    world.nodes.push(node("n3", json!({})));
    assert_eq!(world.reach_rest(), ["+n3"]);
    // A taint keeps new Pods off; existing ones stay.
    world.nodes[0] = node("n1", taint("dedicated", "NoSchedule"));
    assert_eq!(world.reach_rest(), [""; 0]);
    assert_eq!(world.counts(), [2, 2, 2, 2, 2, 0, 1]);
    world.nodes[0] = node("n1", taint("dedicated", "NoExecute"));
    assert_eq!(world.reach_rest(), ["-n1"]);
    assert_eq!(world.counts(), [2, 2, 2, 2, 2, 0, 0]);
    world.nodes[0] = node("n1", json!({}));
    assert_eq!(world.reach_rest(), ["+n1"]);
    world.change(json!({ "template": { "spec": { "nodeSelector": { "disk": "ssd" } } } }));
    assert_eq!(world.reach_rest(), ["-n2", "-n3", "-n1", "+n1"], "the wrong nodes first, then the template");
    assert_eq!(world.counts(), [1, 1, 1, 1, 1, 0, 0]);
}

#[test]
fn a_pod_that_waits_for_a_node_that_is_gone_is_deleted() {
    let mut world = World::new(set(json!({})), 2);
    world.step();
    world.nodes.pop();
    assert_eq!(world.step(), ["-n2"]);
    world.settle();
    assert_eq!(world.reach_rest(), [""; 0]);
    // An existing Pod is left to the Pod garbage collector.
    world.nodes.clear();
    assert_eq!(world.step(), [""; 0]);
}

#[test]
fn of_several_pods_on_a_node_the_oldest_stays() {
    let mut world = World::ready(set(json!({})), 1);
    let mut young = world.pods[0].clone();
    (young.metadata.name, young.metadata.uid) = (Some("logs-0".into()), Some("logs-0".into()));
    young.metadata.creation_timestamp = Some(at(50).into());
    world.pods.push(young);
    let plan = world.plan();
    assert_eq!(plan.writes().map(line).last().unwrap(), "delete pods/logs-0: Deleted pod: logs-0");
}

#[test]
fn a_deleted_pod_is_made_anew_when_it_has_gone() {
    let mut world = World::ready(set(json!({})), 2);
    world.pod("n1").metadata.deletion_timestamp = Some(at(0).into());
    assert_eq!(world.step(), [""; 0]);
    world.settle();
    assert_eq!(world.step(), ["+n1"]);
}

#[test]
fn a_failed_pod_makes_room_for_another_ever_later() {
    let mut world = World::ready(set(json!({})), 1);
    let fail = |world: &mut World| {
        let now = world.now;
        World::be(world.pod("n1"), "Failed", false, now);
    };
    world.now = 60;
    fail(&mut world);
    let notes = world.plan().writes().find(|write| write.request.verb == Verb::Delete).expect("it goes").done.clone();
    let name = world.pods[0].metadata.name.clone().unwrap();
    assert_eq!(notes[0].message, format!("Found failed daemon pod a/{name} on node n1, will try to kill it"));
    assert_eq!((notes[0].reason, notes[0].warning), ("FailedDaemonPod", true));
    assert_eq!(world.step(), ["-n1", "+n1"], "at once");
    for (failures, wait) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (12, 900), (40, 900)] {
        let made = world.now;
        let pod = world.pod("n1");
        pod.metadata.annotations.get_or_insert_default().insert(FAILURES.into(), failures.to_string());
        pod.metadata.creation_timestamp = Some(at(made).into());
        fail(&mut world);
        let plan = world.plan();
        assert_eq!(plan.requeue_after.map(|wait| wait.as_secs()), Some(wait), "after {failures}");
        assert_eq!(world.step(), [""; 0]);
        world.now = made + wait as i64;
        assert_eq!(world.step(), ["-n1", "+n1"]);
        let next = world.pod("n1").metadata.annotations.as_ref().unwrap()[FAILURES].clone();
        assert_eq!(next, (failures + 1).to_string());
    }
    // Half an hour later, or with another template, that is forgotten.
    world.now += 1800;
    fail(&mut world);
    assert_eq!(world.step(), ["-n1", "+n1"]);
    assert_eq!(world.pod("n1").metadata.annotations.as_ref().unwrap()[FAILURES], "1");
    world.pod("n1").metadata.annotations.as_mut().unwrap().insert(FAILURES.into(), "9".into());
    fail(&mut world);
    assert_eq!(world.step(), [""; 0]);
    world.set_image("v2");
    assert_eq!(world.step(), ["-n1", "+n1"]);
}

#[test]
fn a_deleted_daemon_set_does_nothing() {
    let mut world = World::ready(set(json!({})), 2);
    world.set.metadata.deletion_timestamp = Some(at(0).into());
    world.pods.clear();
    assert!(world.plan().is_empty());
}

#[test]
fn at_most_two_hundred_and_fifty_are_created_at_a_time() {
    let world = World::new(set(json!({})), 300);
    let plan = world.plan();
    assert_eq!(plan.writes().filter(|write| write.request.resource == "pods").count(), 250);
    assert_eq!(tries(&plan), 2, "the revision is made before any");
    let world = World { revisions: World::ready(set(json!({})), 1).revisions, ..world };
    assert_eq!(tries(&world.plan()), 3, "a quota is met by few requests");
}
