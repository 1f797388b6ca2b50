//! Claims and their volumes: which nodes they leave a Pod, what it gets there, what it waits for, and what wakes it.

mod choice;
mod waiting;

use std::sync::Arc;

use podwright::{
    api::patch,
    client::Key,
    scheduler::{cluster::Cluster, pod::PodInfo},
};
use serde_json::{Value, json};

use super::{cluster, node, pod};

/// A free local volume of 10Gi of the class "local" on a node, with `changes` merged in.
fn pv(name: &str, on: &str, changes: Value) -> Value {
    let terms =
        json!([{ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [on] }] }]);
    let base = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": { "name": name, "resourceVersion": "1", "labels": {} },
        "spec": {
            "capacity": { "storage": "10Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
            "local": { "path": "/mnt/disk" }, "nodeAffinity": { "required": { "nodeSelectorTerms": terms } },
        },
        "status": { "phase": "Available" },
    });
    patch::merge(&base, &changes)
}

/// A claim of 5Gi of the class "local", with `changes` merged in.
fn pvc(name: &str, changes: Value) -> Value {
    let base = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "1" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "local", "resources": { "requests": { "storage": "5Gi" } },
        },
        "status": { "phase": "Pending" },
    });
    patch::merge(&base, &changes)
}

/// What a claim that is bound to a volume has more.
fn bound(volume: &str) -> Value {
    json!({
        "metadata": { "annotations": { "pv.kubernetes.io/bind-completed": "yes" } },
        "spec": { "volumeName": volume }, "status": { "phase": "Bound" },
    })
}

fn class(name: &str, provisioner: &str, mode: &str) -> Value {
    json!({ "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name },
        "provisioner": provisioner, "volumeBindingMode": mode })
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(value).expect("an object"))
}

fn put(cluster: &mut Cluster, value: Value) {
    let name = value["metadata"]["name"].as_str().expect("a name").to_owned();
    match value["kind"].as_str() {
        Some("PersistentVolume") => cluster.storage.set_volume(&name, Some(object(value))),
        Some("StorageClass") => cluster.storage.set_class(&name, Some(object(value))),
        _ => cluster.storage.set_claim(&Key::new("default", name), Some(object(value))),
    }
}

/// Three nodes, the class "local" whose claims wait for a Pod, and these objects.
fn world(objects: Vec<Value>) -> Cluster {
    let zone = |name: &str| json!({ "metadata": { "labels": { "topology.kubernetes.io/zone": name } } });
    let mut cluster = cluster([node("n1", zone("a")), node("n2", zone("b")), node("n3", json!({}))]);
    put(&mut cluster, class("local", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"));
    objects.into_iter().for_each(|object| put(&mut cluster, object));
    cluster
}

/// A Pod that uses these claims.
fn user(name: &str, claims: &[&str]) -> Arc<PodInfo> {
    let volume = |claim: &&str| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } });
    pod(name, json!({ "volumes": claims.iter().map(volume).collect::<Vec<_>>() }))
}
