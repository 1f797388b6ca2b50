//! Each row of the table can fail: a history that breaks it, told by hand.

use k8s_openapi::api::core::v1::Pod;
use podwright::client::Key;
use serde_json::{Value, json};

use super::{
    super::{past::LAG, world::Step},
    INVARIANTS, Invariant, at_rest,
    told::{Told, finished, going, merge, owned, preempts, rolling, scales, unready, waiting},
};

const FIVE: &str = "2026-01-01T00:05:00Z";
const HELD: &str = "batch.kubernetes.io/job-tracking";

/// How each row is broken, by its name.
const PROOFS: &[(&str, fn(&mut Told))] = &[
    ("a Deployment never has more than maxSurge Pods too many", |told| {
        told.deployment(rolling(1, 0));
        ["p1", "p2", "p3", "p4", "p5"].iter().for_each(|name| told.pod(name, "ReplicaSet", "new", json!({})));
    }),
    ("a Deployment never has more than maxUnavailable Pods too few", |told| {
        told.deployment(rolling(1, 1));
        ["p1", "p2", "p3"].iter().for_each(|name| told.pod(name, "ReplicaSet", "new", json!({})));
        told.step(Step::Rest);
        let template = json!({ "spec": { "containers": [{ "name": "c", "image": "v2" }] } });
        let spec = json!({ "replicas": 3, "selector": {}, "template": template, "strategy": rolling(1, 1) });
        told.put("deployments.apps", "web", json!({ "metadata": { "generation": 2 }, "spec": spec }));
        told.pod("p1", "ReplicaSet", "new", unready());
        assert_eq!(told.found, [""; 0], "one may be missing");
        told.pod("p2", "ReplicaSet", "new", unready());
    }),
    // Who is taken away where others are not ready by themselves.
    ("a Deployment never has more than maxUnavailable Pods too few", |told| {
        told.deployment(rolling(1, 1));
        ["p1", "p2", "p3"].iter().for_each(|name| told.pod(name, "ReplicaSet", "new", json!({})));
        told.step(Step::Rest);
        told.step(Step::Falls(Key::new("a", "p1")));
        ["p1", "p2"].iter().for_each(|name| told.pod(name, "ReplicaSet", "new", unready()));
        assert_eq!(told.found, [""; 0], "nobody has taken them");
        told.world.now += LAG * 2;
        told.pod("p3", "ReplicaSet", "new", going());
    }),
    ("Recreate has no Pods of two kinds at once", |told| {
        told.deployment(json!({ "type": "Recreate" }));
        let hash = |hash: &str| json!({ "metadata": { "labels": { "pod-template-hash": hash } } });
        told.pod("p1", "ReplicaSet", "old", hash("old"));
        told.pod("p2", "ReplicaSet", "new", hash("new"));
    }),
    ("a Deployment is as wished", |told| told.deployment(rolling(1, 0))),
    ("a Deployment tells how it is", |told| {
        told.deployment(rolling(1, 0));
        told.pod("p1", "ReplicaSet", "new", json!({}));
    }),
    ("old ReplicaSets are forgotten", |told| {
        told.deployment(rolling(1, 0));
        let spec = json!({ "replicas": 0, "revisionHistoryLimit": 1, "strategy": rolling(1, 0) });
        told.workload("deployments.apps", "web", spec);
        let spec = json!({ "replicas": 0, "selector": {} });
        told.put("replicasets.apps", "older", json!({ "metadata": owned("Deployment", "web"), "spec": spec }));
    }),
    ("a ReplicationController is as wished", |told| {
        told.put("replicationcontrollers", "old", json!({ "spec": { "replicas": 1 } }));
    }),
    ("a StatefulSet keeps its order", |told| {
        told.workload("statefulsets.apps", "db", json!({ "replicas": 2, "serviceName": "db" }));
        told.pod("db-0", "StatefulSet", "db", unready());
        told.pod("db-1", "StatefulSet", "db", json!({}));
    }),
    ("a Pod's containers run once", |told| {
        for (uid, node) in [("1", "n1"), ("2", "n2")] {
            told.step(Step::Runs { pod: Key::new("a", "db-0"), uid: uid.into(), node: node.into() });
        }
    }),
    ("a StatefulSet's Pod has its claims", |told| {
        let claims = json!([{ "metadata": { "name": "data" } }]);
        let spec = json!({ "replicas": 1, "serviceName": "db", "volumeClaimTemplates": claims });
        told.workload("statefulsets.apps", "db", spec);
        told.pod("db-0", "StatefulSet", "db", json!({}));
    }),
    ("a claim stays if it shall be kept", |told| {
        told.write_namespace();
        let claims = json!([{ "metadata": { "name": "data" } }]);
        let spec = json!({ "replicas": 0, "serviceName": "db", "volumeClaimTemplates": claims });
        told.workload("statefulsets.apps", "db", spec);
        told.put("persistentvolumeclaims", "data-db-0", json!({}));
        told.gone("persistentvolumeclaims", "data-db-0");
    }),
    ("a StatefulSet is as wished", |told| {
        told.workload("statefulsets.apps", "db", json!({ "replicas": 1, "serviceName": "db" }));
    }),
    ("claims that shall go are gone", |told| {
        let claims = json!([{ "metadata": { "name": "data" } }]);
        let policy = json!({ "whenScaled": "Delete" });
        let mut spec = json!({ "replicas": 0, "serviceName": "db", "volumeClaimTemplates": claims });
        spec["persistentVolumeClaimRetentionPolicy"] = policy;
        told.workload("statefulsets.apps", "db", spec);
        told.put("persistentvolumeclaims", "data-db-0", json!({}));
    }),
    ("a DaemonSet has one Pod a node", |told| {
        told.workload("daemonsets.apps", "logs", json!({}));
        let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] },
        ] } } });
        let spec = json!({ "spec": { "affinity": affinity } });
        ["p1", "p2"].iter().for_each(|name| told.pod(name, "DaemonSet", "logs", spec.clone()));
    }),
    ("a DaemonSet is on every node", |told| {
        told.put_node("n1", json!({}));
        told.workload("daemonsets.apps", "logs", json!({}));
    }),
    ("a Job never runs more Pods than its parallelism", |told| {
        told.workload("jobs.batch", "work", json!({ "parallelism": 1 }));
        ["p1", "p2"].iter().for_each(|name| told.pod(name, "Job", "work", json!({})));
    }),
    ("an index is worked on once at a time", |told| {
        told.workload("jobs.batch", "work", json!({ "parallelism": 2 }));
        let index = json!({ "metadata": { "annotations": { "batch.kubernetes.io/job-completion-index": "0" } } });
        ["p1", "p2"].iter().for_each(|name| told.pod(name, "Job", "work", index.clone()));
    }),
    ("a Job counts what has happened, and never less", |told| {
        told.workload("jobs.batch", "work", json!({ "parallelism": 2 }));
        let end = json!({ "metadata": { "finalizers": [HELD] }, "status": { "phase": "Succeeded" } });
        told.pod("p1", "Job", "work", end);
        let counted = |count: i32| {
            let template = json!({ "spec": { "containers": [] } });
            json!({ "spec": { "template": template }, "status": { "succeeded": count } })
        };
        told.put("jobs.batch", "work", counted(1));
        assert_eq!(told.found, [""; 0], "it has happened");
        told.put("jobs.batch", "work", counted(2));
    }),
    ("a finished Job's Pods are let go", |told| {
        told.pod("p1", "Job", "work", json!({ "metadata": { "finalizers": [HELD] } }));
    }),
    ("a CronJob starts one Job for one time", |told| {
        told.cron_job(json!({}));
        told.cron("tick-1", FIVE);
        told.cron("tick-2", FIVE);
    }),
    ("a CronJob starts when it is due", |told| {
        told.cron_job(json!({}));
        told.cron("tick-1", "2026-01-01T00:04:00Z");
    }),
    ("Forbid never has two Jobs", |told| {
        told.cron_job(json!({ "concurrencyPolicy": "Forbid" }));
        told.cron("tick-1", "2026-01-01T00:00:00Z");
        told.cron("tick-2", FIVE);
    }),
    ("Replace lets the old one go first", |told| {
        told.cron_job(json!({ "concurrencyPolicy": "Replace" }));
        told.cron("tick-1", "2026-01-01T00:00:00Z");
        told.cron("tick-2", FIVE);
    }),
    ("a suspended CronJob starts nothing", |told| {
        told.cron_job(json!({ "suspend": true }));
        told.world.now = "2026-01-01T00:10:10Z".parse().expect("a time");
        told.cron("tick-1", "2026-01-01T00:10:00Z");
    }),
    ("a CronJob keeps no more history than it shall", |told| {
        told.cron_job(json!({ "successfulJobsHistoryLimit": 0 }));
        told.cron("tick-1", FIVE);
        let mut done = finished("Complete");
        done["metadata"] = owned("CronJob", "tick");
        told.put("jobs.batch", "tick-1", done);
    }),
    ("an autoscaler keeps to its bounds", |told| {
        told.autoscaled(3, Value::Null);
        told.step(scales(7));
        assert_eq!(told.found, [""; 0], "it may");
        told.step(scales(8));
    }),
    ("an autoscaler goes no faster than it may", |told| {
        let rules = json!({ "policies": [{ "type": "Pods", "value": 2, "periodSeconds": 60 }] });
        told.autoscaled(3, json!({ "scaleUp": rules }));
        told.step(Step::Rest);
        told.step(Step::Stirs);
        told.step(scales(5));
        assert_eq!(told.found, [""; 0], "it may");
        told.workload("deployments.apps", "web", json!({ "replicas": 5, "strategy": rolling(1, 1) }));
        told.step(scales(6));
    }),
    ("an autoscaler goes no faster than it may", |told| {
        told.autoscaled(2, Value::Null);
        told.step(Step::Rest);
        told.step(Step::Stirs);
        told.step(scales(5));
    }),
    ("an autoscaler lets rest what is as it shall be", |told| {
        told.autoscaled(3, Value::Null);
        told.step(Step::Rest);
        told.step(scales(4));
    }),
    ("a load has the Pods that it needs", |told| {
        told.autoscaled(3, Value::Null);
        told.step(Step::Load(Key::new("a", "web"), 160));
        told.world.now += LAG * 3;
        assert!(!at_rest(&told.world).iter().any(|why| why.contains("a load has")), "53 % are as good as 50 %");
        told.step(Step::Load(Key::new("a", "web"), 170));
        told.world.now += LAG * 3;
        assert!(at_rest(&told.world).iter().any(|why| why.contains("4 are wanted")));
    }),
    ("an eviction never violates a budget", |told| {
        let spec = json!({ "minAvailable": 1, "selector": { "matchLabels": { "app": "x" } } });
        told.put("poddisruptionbudgets.policy", "x", json!({ "spec": spec }));
        let labels = json!({ "metadata": { "labels": { "app": "x" } } });
        told.pod("p1", "ReplicaSet", "new", labels.clone());
        let mut evicted = going();
        merge(&mut evicted, labels);
        let target = json!({ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI" });
        evicted["status"] = json!({ "conditions": [{ "type": "Ready", "status": "True" }, target] });
        told.pod("p1", "ReplicaSet", "new", evicted);
    }),
    ("a Pod stays on its node", |told| {
        told.pod("p1", "ReplicaSet", "new", json!({}));
        told.pod("p1", "ReplicaSet", "new", json!({ "spec": { "nodeName": "n2" } }));
    }),
    ("a node has room for what it is given", |told| {
        told.put_node("n1", json!({ "status": { "allocatable": { "cpu": "1", "pods": "10" } } }));
        let asks = json!([{ "name": "c", "image": "v1", "resources": { "requests": { "cpu": "600m" } } }]);
        let spec = json!({ "spec": { "containers": asks } });
        ["p1", "p2"].iter().for_each(|name| told.pod(name, "ReplicaSet", "new", spec.clone()));
    }),
    ("who waits for a node lacks room", |told| {
        told.put_node("n1", json!({ "status": { "allocatable": { "cpu": "1", "pods": "1" } } }));
        told.pod("p1", "ReplicaSet", "new", json!({}));
        told.pod("p2", "ReplicaSet", "new", waiting(0));
        assert!(!at_rest(&told.world).iter().any(|why| why.contains("lacks room")), "it is full");
        told.pod("p2", "ReplicaSet", "new", waiting(1));
    }),
    ("a Pod has to go only where a more important one waits", |told| {
        told.pod("p1", "ReplicaSet", "new", json!({ "spec": { "priority": 1 } }));
        told.pod("p2", "ReplicaSet", "new", waiting(2));
        told.step(preempts("p1"));
        assert_eq!(told.found, [""; 0], "one waits");
        told.pod("p2", "ReplicaSet", "new", waiting(1));
        told.step(preempts("p1"));
    }),
    ("a Pod has to go only for a more important one", |told| {
        told.pod("p1", "ReplicaSet", "new", json!({ "spec": { "priority": 1 } }));
        told.pod("p2", "ReplicaSet", "new", waiting(2));
        let event = |by: &str| {
            let message = format!("Preempted by pod {by}-uid on node n1");
            json!({ "message": message, "involvedObject": { "uid": "p1-uid" } })
        };
        told.put("events", "e1", event("p2"));
        assert_eq!(told.found, [""; 0], "it is");
        told.put("events", "e2", event("p1"));
    }),
    ("no room is kept free", |told| {
        told.pod("p1", "ReplicaSet", "new", json!({ "status": { "nominatedNodeName": "n1" } }));
    }),
    ("who does not lead does not write", |told| {
        told.step(Step::Writes { part: "kube-scheduler", plane: "one-1".into() });
    }),
    ("of each part one runs", |told| {
        ["one-1", "two-1"]
            .iter()
            .for_each(|plane| told.step(Step::Leads { part: "kube-scheduler", plane: (*plane).into() }));
    }),
    ("a node has what is its own", |told| {
        told.put_node("n1", json!({ "spec": { "podCIDR": "10.244.0.0/24" } }));
        told.put_node("n2", json!({ "spec": { "podCIDR": "10.244.0.0/24" } }));
    }),
    ("nobody outlives its owners", |told| told.pod("p1", "ReplicaSet", "new", json!({}))),
    ("who is deleted goes", |told| told.put("configmaps", "m", going())),
    ("a namespace goes with all that is in it", |told| told.put("configmaps", "m", json!({}))),
    ("addresses are Services'", |told| told.write_range("serviceips/10.96.0.7")),
    ("ready Pods are endpoints", |told| {
        told.put("services", "web", json!({ "spec": { "selector": { "app": "x" } } }));
        told.pod("p1", "ReplicaSet", "new", json!({ "metadata": { "labels": { "app": "x" } } }));
    }),
];

#[test]
fn each_row_can_fail() {
    let breaks = |name: &str, breaks: fn(&mut Told)| {
        let mut told = Told::default();
        breaks(&mut told);
        told.found.extend(at_rest(&told.world));
        told.found.iter().any(|found| found.starts_with(&format!("{name}: ")))
    };
    let vain: Vec<_> = PROOFS.iter().filter(|(name, it)| !breaks(name, *it)).map(|(name, _)| *name).collect();
    assert_eq!(vain, [""; 0]);
    let proven = |row: &&Invariant| PROOFS.iter().any(|(name, _)| *name == row.name);
    let unproven: Vec<_> = INVARIANTS.iter().filter(|row| !proven(row)).map(|row| row.name).collect();
    assert_eq!(unproven, [""; 0]);
}

/// The Pods that the histories tell of are well, but for what is said of them.
#[test]
fn a_history_without_a_fault_breaks_nothing() {
    let mut told = Told::default();
    told.deployment(rolling(1, 0));
    ["p1", "p2", "p3", "p4"].iter().for_each(|name| told.pod(name, "ReplicaSet", "new", json!({})));
    assert_eq!(told.found, [""; 0]);
    let ready = told
        .world
        .pods
        .all()
        .filter(|(_, pod): &(_, &std::sync::Arc<Pod>)| podwright::controllers::meta::is_ready(pod));
    assert_eq!(ready.count(), 4);
}

/// An eviction asks nobody in which order a StatefulSet lets its Pods go; one that no node has is gone at once.
#[test]
fn who_is_evicted_waits_for_nobody() {
    let mark = json!({ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI" });
    let evicts = |marked: bool| {
        let mut told = Told::default();
        told.workload("statefulsets.apps", "db", json!({ "replicas": 2, "serviceName": "db" }));
        told.pod("db-0", "StatefulSet", "db", json!({}));
        told.pod("db-1", "StatefulSet", "db", waiting(0));
        told.pod("db-0", "StatefulSet", "db", unready());
        told.world.now += LAG * 2;
        if marked {
            let mut target = waiting(0);
            target["status"]["conditions"] = json!([mark]);
            told.pod("db-1", "StatefulSet", "db", target);
        }
        told.gone("pods", "db-1");
        told.found
    };
    assert_eq!(evicts(true), [""; 0]);
    assert_eq!(evicts(false), ["a StatefulSet keeps its order: a/db-1 is deleted before [0] are well"]);
}
