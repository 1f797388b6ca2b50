//! Histories told by hand: objects and steps, and what they violate.

use podwright::client::Key;
use serde_json::{Value, json};

use super::{
    super::world::{Step, World},
    after,
};

/// A history as it is told.
#[derive(Default)]
pub struct Told {
    pub world: World,
    pub found: Vec<String>,
}

impl Told {
    /// An object is written; the namespace is `a`, the uid follows from the name.
    pub fn put(&mut self, resource: &str, name: &str, object: Value) {
        let mut whole =
            json!({ "metadata": { "name": name, "namespace": "a", "uid": format!("{name}-uid"), "generation": 1 } });
        merge(&mut whole, object);
        let bytes = serde_json::to_vec(&whole).expect("JSON");
        self.write(resource, name, Some(&bytes));
    }

    pub fn gone(&mut self, resource: &str, name: &str) {
        self.write(resource, name, None);
    }

    pub fn write(&mut self, resource: &str, name: &str, bytes: Option<&[u8]>) {
        let step = self.world.write(&format!("/registry/{resource}/a/{name}"), bytes);
        self.found.extend(after(&self.world, &step));
    }

    pub fn step(&mut self, step: Step) {
        self.world.remember(&step);
        self.found.extend(after(&self.world, &step));
    }

    /// A workload with so many replicas.
    pub fn workload(&mut self, resource: &str, name: &str, spec: Value) {
        let template = json!({ "spec": { "containers": [{ "name": "c", "image": "v1" }] } });
        let mut whole = json!({ "selector": { "matchLabels": { "app": name } }, "template": template });
        merge(&mut whole, spec);
        self.put(resource, name, json!({ "spec": whole }));
    }

    /// A Deployment of three and its ReplicaSets.
    pub fn deployment(&mut self, strategy: Value) {
        self.workload("deployments.apps", "web", json!({ "replicas": 3, "strategy": strategy }));
        for set in ["old", "new"] {
            let spec = json!({ "replicas": 0, "selector": {} });
            self.put("replicasets.apps", set, json!({ "metadata": owned("Deployment", "web"), "spec": spec }));
        }
    }

    /// A Pod that is ready, on n1.
    pub fn pod(&mut self, name: &str, kind: &str, owner: &str, more: Value) {
        let mut pod = json!({
            "metadata": owned(kind, owner),
            "spec": { "nodeName": "n1", "containers": [{ "name": "c", "image": "v1" }] },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        merge(&mut pod, more);
        self.put("pods", name, pod);
    }

    /// A Deployment of so many Pods of 100m, and an autoscaler that has two to seven of them use half of it.
    pub fn autoscaled(&mut self, replicas: i32, behavior: Value) {
        let resources = json!({ "requests": { "cpu": "100m" } });
        let template = json!({ "spec": { "containers": [{ "name": "c", "image": "v1", "resources": resources }] } });
        let spec = json!({ "replicas": replicas, "strategy": rolling(1, 1), "template": template });
        self.workload("deployments.apps", "web", spec);
        let goal = json!({ "type": "Utilization", "averageUtilization": 50 });
        let spec = json!({
            "scaleTargetRef": { "kind": "Deployment", "name": "web" }, "minReplicas": 2, "maxReplicas": 7,
            "metrics": [{ "resource": { "name": "cpu", "target": goal } }], "behavior": behavior,
        });
        let status = json!({ "observedGeneration": 1, "currentReplicas": replicas, "desiredReplicas": replicas });
        self.put("horizontalpodautoscalers.autoscaling", "web", json!({ "spec": spec, "status": status }));
        self.step(Step::Stirs);
    }

    pub fn cron_job(&mut self, spec: Value) {
        self.world.now = "2026-01-01T00:05:10Z".parse().expect("a time");
        let template = json!({ "spec": { "template": { "spec": { "containers": [] } } } });
        let mut whole = json!({ "schedule": "*/5 * * * *", "jobTemplate": template });
        merge(&mut whole, spec);
        let made = json!({ "creationTimestamp": "2026-01-01T00:00:30Z" });
        self.put("cronjobs.batch", "tick", json!({ "metadata": made, "spec": whole }));
    }

    pub fn cron(&mut self, name: &str, at: &str) {
        let mut metadata = owned("CronJob", "tick");
        metadata["annotations"] = json!({ "batch.kubernetes.io/cronjob-scheduled-timestamp": at });
        let spec = json!({ "template": { "spec": { "containers": [] } } });
        self.put("jobs.batch", name, json!({ "metadata": metadata, "spec": spec }));
    }
}

impl Told {
    pub fn write_namespace(&mut self) {
        let bytes = br#"{"metadata":{"name":"a","uid":"a-uid"}}"#;
        self.world.write("/registry/namespaces/a", Some(bytes));
    }

    pub fn write_range(&mut self, range: &str) {
        self.world.write(&format!("/registry/ranges/{range}"), Some(b"\"a/web\""));
    }

    pub fn put_node(&mut self, name: &str, object: Value) {
        let mut whole = json!({ "metadata": { "name": name, "uid": format!("{name}-uid") } });
        merge(&mut whole, object);
        let bytes = serde_json::to_vec(&whole).expect("JSON");
        self.world.write(&format!("/registry/nodes/{name}"), Some(&bytes));
    }
}

pub fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

pub fn owned(kind: &str, name: &str) -> Value {
    let owner =
        json!({ "apiVersion": "v1", "kind": kind, "name": name, "uid": format!("{name}-uid"), "controller": true });
    json!({ "ownerReferences": [owner] })
}

pub fn rolling(surge: i32, unavailable: i32) -> Value {
    json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } })
}

pub fn unready() -> Value {
    json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } })
}

pub fn going() -> Value {
    json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:05:00Z" } })
}

pub fn finished(end: &str) -> Value {
    json!({ "status": { "conditions": [{ "type": end, "status": "True" }] } })
}

/// A Pod without a node, and its priority.
pub fn waiting(priority: i32) -> Value {
    let told = json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }]);
    json!({ "spec": { "nodeName": null, "priority": priority }, "status": { "phase": "Pending", "conditions": told } })
}

pub fn scales(replicas: i32) -> Step {
    Step::Scales { target: Key::new("a", "web"), replicas }
}

pub fn preempts(pod: &str) -> Step {
    Step::Preempts { pod: Key::new("a", pod), uid: None }
}
