//! The built-in provisioner: which volume it creates for a claim, what it rejects, how claims grow, what is deleted, and by whom.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use podwright::{
    api::{patch, persistent_volume::local as volumes},
    controllers::{
        Plan,
        persistent_volume::local::{deletion, growth, provision},
    },
};
use serde_json::{Value, json};

use super::{lines, object};

const UID: &str = "3a6c1f0e-3b0e-4a6e-9d6e-0123456789ab";
const VOLUME: &str = "pvc-3a6c1f0e-3b0e-4a6e-9d6e-0123456789ab";

/// A claim that the binder has assigned to the provisioner, whose Pod is to run on `n1`.
fn claim(changes: Value) -> Arc<PersistentVolumeClaim> {
    let base = json!({
        "metadata": { "name": "c", "namespace": "a", "uid": UID, "resourceVersion": "6", "annotations": {
            "volume.kubernetes.io/storage-provisioner": "podwright.dev/local",
            "volume.kubernetes.io/selected-node": "n1",
        } },
        "spec": { "storageClassName": "local", "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
            "resources": { "requests": { "storage": "5Gi" } } },
        "status": { "phase": "Pending" },
    });
    object(patch::merge(&base, &changes))
}

fn class(changes: Value) -> Arc<StorageClass> {
    let base = json!({ "metadata": { "name": "local" }, "provisioner": "podwright.dev/local", "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true });
    object(patch::merge(&base, &changes))
}

fn node(folder: Value) -> Arc<Node> {
    let annotations = if folder.is_null() { json!({}) } else { json!({ "podwright.dev/local-volumes": folder }) };
    object(json!({ "metadata": { "name": "n1", "annotations": annotations } }))
}

fn told(plan: &Plan) -> Vec<String> {
    plan.notes.iter().map(|note| format!("{}: {}", note.reason, note.message)).collect()
}

/// The volume created for the claim.
fn made(claim: &PersistentVolumeClaim, class: &StorageClass) -> Value {
    let plan = provision(claim, class, Some(&node(json!("/var/lib/podwright/local-volumes"))));
    plan.writes().next().unwrap().request.body.clone().unwrap()
}

#[test]
fn a_claim_gets_a_folder_of_the_node_that_was_chosen() {
    let plan = provision(&claim(json!({})), &class(json!({})), Some(&node(json!("/var/lib/podwright/local-volumes"))));
    assert_eq!(told(&plan), ["Provisioning: External provisioner is provisioning volume for claim \"a/c\""]);
    let create = format!("create persistentvolumes/{VOLUME}: Successfully provisioned volume {VOLUME}");
    assert_eq!(lines(&plan), [create.as_str()]);
    assert_eq!(plan.writes().next().unwrap().guards.len(), 1, "no volume for a claim that has gone");
    let volume = made(&claim(json!({})), &class(json!({})));
    let spec = &volume["spec"];
    assert_eq!(volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"], "podwright.dev/local");
    assert_eq!(volume["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection", "podwright.dev/local-volume"]));
    assert_eq!(spec["local"]["path"], format!("/var/lib/podwright/local-volumes/{VOLUME}/data"));
    assert_eq!(
        spec["nodeAffinity"]["required"]["nodeSelectorTerms"],
        json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] }])
    );
    let to = &spec["claimRef"];
    assert_eq!((&to["namespace"], &to["name"], &to["uid"]), (&json!("a"), &json!("c"), &json!(UID)));
    assert_eq!(
        (&spec["capacity"], &spec["accessModes"], &spec["persistentVolumeReclaimPolicy"], &spec["storageClassName"]),
        (&json!({ "storage": "5Gi" }), &json!(["ReadWriteOnce"]), &json!("Delete"), &json!("local"))
    );
    let typed: PersistentVolume = serde_json::from_value(volume).unwrap();
    assert!(volumes::is_ours(&typed));
    assert_eq!(volumes::node(&typed), Some("n1"));
    let once = json!({ "spec": { "accessModes": ["ReadWriteOncePod"] } });
    let kept = made(&claim(once), &class(json!({ "reclaimPolicy": "Retain" })));
    assert_eq!(kept["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(kept["spec"]["accessModes"], json!(["ReadWriteOncePod"]));
}

#[test]
fn a_claim_for_others_or_not_yet_asked_for_gets_none() {
    let asked =
        |name: Value| json!({ "metadata": { "annotations": { "volume.kubernetes.io/storage-provisioner": name } } });
    for (claim, class) in [
        (claim(asked(Value::Null)), class(json!({}))),
        (claim(asked(json!("x.io/other"))), class(json!({}))),
        // A user who writes the annotation does not change the class's provisioner.
        (claim(json!({})), class(json!({ "provisioner": "x.io/other" }))),
        (claim(json!({ "metadata": { "deletionTimestamp": "2026-11-23T10:00:00Z" } })), class(json!({}))),
        (
            claim(json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": null } } })),
            class(json!({})),
        ),
    ] {
        assert!(provision(&claim, &class, Some(&node(json!("/x")))).is_empty(), "{claim:?}");
    }
}

#[test]
fn what_a_folder_cannot_give_is_refused_with_the_reason() {
    let spec = |spec: Value| json!({ "spec": spec });
    let unselected = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": null } } });
    for (claim, class, why) in [
        (
            claim(spec(json!({ "accessModes": ["ReadWriteMany"] }))),
            class(json!({})),
            "access mode ReadWriteMany is not supported: a folder of one node is ReadWriteOnce or ReadWriteOncePod",
        ),
        (
            claim(spec(json!({ "accessModes": ["ReadWriteOnce", "ReadOnlyMany"] }))),
            class(json!({})),
            "access mode ReadOnlyMany is not supported: a folder of one node is ReadWriteOnce or ReadWriteOncePod",
        ),
        (
            claim(spec(json!({ "volumeMode": "Block" }))),
            class(json!({})),
            "podwright.dev/local does not support block volume provisioning",
        ),
        (
            claim(spec(json!({ "selector": { "matchLabels": { "a": "b" } } }))),
            class(json!({})),
            "claim.Spec.Selector is not supported",
        ),
        (
            claim(spec(json!({ "dataSource": { "kind": "PersistentVolumeClaim", "name": "other" } }))),
            class(json!({})),
            "claim.Spec.DataSource is not supported: the volume would be empty",
        ),
        (
            claim(spec(json!({ "volumeAttributesClassName": "fast" }))),
            class(json!({})),
            "claim.Spec.VolumeAttributesClassName is not supported",
        ),
        (
            claim(json!({})),
            class(json!({ "parameters": { "path": "/etc" } })),
            "invalid option \"path\" of StorageClass \"local\": there are no parameters",
        ),
        (
            claim(json!({})),
            class(json!({ "mountOptions": ["noatime"] })),
            "Mount options are not supported by the provisioner but StorageClass \"local\" has mount options [\"noatime\"]",
        ),
        (
            claim(unselected),
            class(json!({ "volumeBindingMode": "Immediate" })),
            "a volume is on one node, and nothing says on which: the volumeBindingMode of StorageClass \"local\" has to be \
             WaitForFirstConsumer",
        ),
    ] {
        let plan = provision(&claim, &class, Some(&node(json!("/x"))));
        let said = format!("ProvisioningFailed: failed to provision volume with StorageClass \"local\": {why}");
        assert_eq!((told(&plan), lines(&plan)), (vec![said], vec![]));
        assert!(plan.notes[0].warning);
    }
}

#[test]
fn a_node_that_cannot_keep_the_volume_is_not_insisted_on() {
    for (node, why) in [
        (None, "node \"n1\" not found"),
        (Some(node(Value::Null)), "node \"n1\" keeps no volumes"),
        // A node's report is validated before it becomes part of a path that people read.
        (Some(node(json!("/a/../../etc"))), "node \"n1\" keeps no volumes"),
        (Some(node(json!("relative"))), "node \"n1\" keeps no volumes"),
    ] {
        let plan = provision(&claim(json!({})), &class(json!({})), node.as_deref());
        let said = format!("ProvisioningFailed: failed to provision volume with StorageClass \"local\": {why}");
        assert_eq!(told(&plan), [said]);
        assert_eq!(lines(&plan), ["patch persistentvolumeclaims/c"]);
        let body = plan.writes().next().unwrap().request.body.clone().unwrap();
        assert_eq!(body["metadata"]["annotations"], json!({ "volume.kubernetes.io/selected-node": null }));
    }
}

/// The claim's volume, as stored.
fn volume(changes: Value) -> Arc<PersistentVolume> {
    let mut base = made(&claim(json!({})), &class(json!({})));
    base["metadata"]["uid"] = json!("v1");
    base["metadata"]["resourceVersion"] = json!("9");
    base["status"] = json!({ "phase": "Bound" });
    object(patch::merge(&base, &changes))
}

#[test]
fn a_claim_grows_with_its_volume() {
    let bound = |asked: &str, has: &str| {
        claim(json!({ "spec": { "volumeName": VOLUME, "resources": { "requests": { "storage": asked } } },
            "status": { "phase": "Bound", "capacity": { "storage": has } } }))
    };
    assert!(growth(&bound("5Gi", "5Gi"), &volume(json!({}))).is_empty());
    let plan = growth(&bound("8Gi", "5Gi"), &volume(json!({})));
    let done = "patch persistentvolumeclaims/c/status: Resize volume succeeded";
    assert_eq!(lines(&plan), [format!("patch persistentvolumes/{VOLUME}").as_str(), done]);
    let bodies: Vec<_> = plan.writes().map(|write| write.request.body.clone().unwrap()).collect();
    assert_eq!(bodies[0]["spec"]["capacity"]["storage"], "8Gi");
    assert_eq!(bodies[1]["status"]["capacity"]["storage"], "8Gi");
    // A crash between the two writes left the claim's status unwritten.
    let half = volume(json!({ "spec": { "capacity": { "storage": "8Gi" } } }));
    assert_eq!(lines(&growth(&bound("8Gi", "5Gi"), &half)), [done]);
    for other in [
        volume(json!({ "spec": { "claimRef": { "uid": "another" } } })),
        volume(json!({ "metadata": { "annotations": { "pv.kubernetes.io/provisioned-by": "x.io/other" } } })),
        volume(json!({ "metadata": { "deletionTimestamp": "2026-11-23T10:00:00Z" } })),
    ] {
        assert!(growth(&bound("8Gi", "5Gi"), &other).is_empty(), "{other:?}");
    }
}

#[test]
fn a_volume_goes_when_its_data_has_gone() {
    let released = json!({ "status": { "phase": "Released" } });
    let ending = json!({ "metadata": { "deletionTimestamp": "2026-11-23T10:00:00Z" } });
    let retained = json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } });
    let held = json!({ "metadata": { "finalizers": ["podwright.dev/local-volume"] } });
    let of = |changes: &[&Value]| volume(changes.iter().fold(json!({}), |all, one| patch::merge(&all, one)));
    let here = |name: &str| name == "n1";
    let [delete, patch] = ["delete", "patch"].map(|verb| format!("{verb} persistentvolumes/{VOLUME}"));
    assert!(deletion(&of(&[]), here).is_empty(), "it is bound");
    assert_eq!(lines(&deletion(&of(&[&released]), here)), [delete.as_str()]);
    let plan = deletion(&of(&[&released]), here);
    let exactly = plan.writes().next().unwrap().request.options.preconditions.clone().unwrap();
    assert_eq!((exactly.uid.as_deref(), exactly.resource_version.as_deref()), (Some("v1"), Some("9")));
    assert!(deletion(&of(&[&released, &retained]), here).is_empty(), "what is to be retained");
    // From then on it is up to its node.
    assert!(deletion(&of(&[&released, &ending, &held]), here).is_empty());
    let gone = deletion(&of(&[&released, &ending, &held]), |_| false);
    assert_eq!(
        told(&gone),
        ["VolumeFailedDelete: node \"n1\", which has its data, is gone: once the data is gone, take the finalizer \
          podwright.dev/local-volume away"]
    );
    assert_eq!(lines(&gone), Vec::<String>::new());
    let kept = deletion(&of(&[&released, &ending, &held, &retained]), here);
    assert_eq!(lines(&kept), [patch.as_str()]);
    assert_eq!(kept.writes().next().unwrap().request.body.as_ref().unwrap()["metadata"]["finalizers"], Value::Null);
    // A volume that has lost its finalizer would be deleted before its data.
    let lost = json!({ "metadata": { "finalizers": ["kubernetes.io/pv-protection"] } });
    let again = deletion(&of(&[&released, &lost]), here);
    assert_eq!(lines(&again), [patch.as_str()]);
    let foreign = json!({ "metadata": { "annotations": { "pv.kubernetes.io/provisioned-by": "x.io/other" } } });
    assert!(deletion(&of(&[&released, &foreign]), here).is_empty());
}
