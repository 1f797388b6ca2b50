//! Volumes and claims: which match, what binding writes, what is lost and released, and what is kept while in use.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use podwright::controllers::{
    Plan,
    persistent_volume::{claim, ephemeral, protection, volume},
};
use serde_json::{Value, json};

use super::{at, lines, object, pod, starved};

fn merged(mut base: Value, more: Value) -> Value {
    for (key, value) in more.as_object().into_iter().flatten() {
        base[key] = value.clone();
    }
    base
}

/// An available volume of 10Gi; `spec` overrides fields, `phase` is its phase.
fn pv(name: &str, phase: &str, spec: Value) -> Arc<PersistentVolume> {
    let base = json!({ "capacity": { "storage": "10Gi" }, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain" });
    object(json!({
        "metadata": { "name": name, "uid": name, "resourceVersion": "5", "labels": { "disk": name } },
        "spec": merged(base, spec), "status": { "phase": phase },
    }))
}

fn pvc(spec: Value, annotations: Value, phase: &str) -> PersistentVolumeClaim {
    let base = json!({ "resources": { "requests": { "storage": "5Gi" } }, "accessModes": ["ReadWriteOnce"] });
    PersistentVolumeClaim::clone(&object(json!({
        "metadata": { "name": "c", "namespace": "a", "uid": "c1", "resourceVersion": "6", "annotations": annotations },
        "spec": merged(base, spec), "status": { "phase": phase },
    })))
}

fn class(name: &str, provisioner: &str, mode: &str, default: bool) -> Arc<StorageClass> {
    object(json!({
        "metadata": { "name": name, "annotations": { "storageclass.kubernetes.io/is-default-class": default.to_string() } },
        "provisioner": provisioner, "volumeBindingMode": mode,
    }))
}

fn to(name: &str, uid: Value) -> Value {
    json!({ "claimRef": { "namespace": "a", "name": name, "uid": uid } })
}

#[test]
fn a_claim_gets_the_volume_that_suits_it_best() {
    let big = || pv("big", "Available", json!({ "capacity": { "storage": "50Gi" } }));
    let fits = || pv("fits", "Available", json!({}));
    let fast = || pv("fast", "Available", json!({ "storageClassName": "fast", "capacity": { "storage": "6Gi" } }));
    let shared = || {
        pv(
            "shared",
            "Available",
            json!({ "accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "capacity": { "storage": "5Gi" } }),
        )
    };
    let block = || pv("block", "Available", json!({ "volumeMode": "Block", "capacity": { "storage": "5Gi" } }));
    for (why, claim, volumes, expected) in [
        ("the smallest that is large enough", json!({}), vec![big(), fits()], "fits"),
        ("too small", json!({ "resources": { "requests": { "storage": "11Gi" } } }), vec![fits()], ""),
        (
            "exactly as large",
            json!({ "resources": { "requests": { "storage": "10240Mi" } } }),
            vec![big(), fits()],
            "fits",
        ),
        ("fewer modes before size", json!({}), vec![shared(), fits()], "fits"),
        ("all modes are there", json!({ "accessModes": ["ReadOnlyMany"] }), vec![fits(), shared()], "shared"),
        ("a mode is missing", json!({ "accessModes": ["ReadWriteMany"] }), vec![fits(), shared()], ""),
        ("of the same class", json!({ "storageClassName": "fast" }), vec![fits(), fast()], "fast"),
        ("no class is one as well", json!({ "storageClassName": "" }), vec![fast(), big()], "big"),
        ("the selector", json!({ "selector": { "matchLabels": { "disk": "big" } } }), vec![fits(), big()], "big"),
        ("the volume mode", json!({ "volumeMode": "Block" }), vec![fits(), block()], "block"),
        ("not one that is not ready", json!({}), vec![pv("new", "Pending", json!({})), big()], "big"),
        ("not one that was another's", json!({}), vec![pv("old", "Released", to("x", json!("u"))), big()], "big"),
        (
            "the one that waits for it",
            json!({}),
            vec![
                fits(),
                pv(
                    "mine",
                    "Available",
                    merged(
                        to("c", Value::Null),
                        json!({ "capacity": { "storage": "90Gi" }, "storageClassName": "other" }),
                    ),
                ),
            ],
            "mine",
        ),
        (
            "not one that waits and is too small",
            json!({}),
            vec![pv("mine", "Available", merged(to("c", Value::Null), json!({ "capacity": { "storage": "1Gi" } })))],
            "",
        ),
        ("not its namesake's", json!({}), vec![pv("mine", "Bound", to("c", json!("c0")))], ""),
    ] {
        let best = claim::best(&pvc(claim, Value::Null, "Pending"), &volumes, false);
        assert_eq!(best.map_or("", |volume| volume.metadata.name.as_deref().unwrap()), expected, "{why}");
    }
    assert!(claim::best(&pvc(json!({}), Value::Null, "Pending"), &[fits()], true).is_none(), "the scheduler chooses");
    let mine = [pv("mine", "Available", to("c", Value::Null))];
    assert!(claim::best(&pvc(json!({}), Value::Null, "Pending"), &mine, true).is_some(), "it has chosen");
}

fn plan(claim: &PersistentVolumeClaim, volumes: &[Arc<PersistentVolume>], classes: &[Arc<StorageClass>]) -> Plan {
    claim::plan(claim, volumes, classes, at(0))
}

/// The writes to one object, in order.
fn bodies(plan: &Plan, resource: &str) -> Vec<Value> {
    let writes = plan.writes().filter(|write| write.request.resource == resource);
    writes.map(|write| write.request.body.clone().unwrap_or_default()).collect()
}

#[test]
fn binding_begins_with_the_volume() {
    let plan = plan(&pvc(json!({}), Value::Null, "Pending"), &[pv("v", "Available", json!({}))], &[]);
    assert_eq!(
        lines(&plan),
        [
            "patch persistentvolumes/v",
            "patch persistentvolumes/v/status",
            "patch persistentvolumeclaims/c",
            "patch persistentvolumeclaims/c/status"
        ]
    );
    for (n, refused) in lines(&plan).iter().enumerate() {
        assert_eq!(starved(&plan, refused), lines(&plan)[n + 1..], "one after the other");
    }
    let of_volume = bodies(&plan, "persistentvolumes");
    assert_eq!(of_volume[0]["metadata"]["resourceVersion"], "5", "of two claims one gets it");
    assert_eq!(of_volume[0]["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"], "yes");
    let to = &of_volume[0]["spec"]["claimRef"];
    assert_eq!(
        (&to["kind"], &to["namespace"], &to["name"], &to["uid"]),
        (&json!("PersistentVolumeClaim"), &json!("a"), &json!("c"), &json!("c1"))
    );
    assert_eq!(of_volume[1]["status"]["phase"], "Bound");
    let of_claim = bodies(&plan, "persistentvolumeclaims");
    assert_eq!(of_claim[0]["spec"]["volumeName"], "v");
    assert_eq!(
        of_claim[0]["metadata"]["annotations"],
        json!({ "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes" })
    );
    assert_eq!(
        of_claim[1]["status"],
        json!({ "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "10Gi" } })
    );
}

#[test]
fn what_was_begun_is_completed_and_what_is_complete_is_left() {
    // Half done: the volume refers to the claim, but not yet the claim to the volume.
    let taken = pv("v", "Bound", to("c", json!("c1")));
    let half = plan(&pvc(json!({}), Value::Null, "Pending"), std::slice::from_ref(&taken), &[]);
    assert_eq!(lines(&half), ["patch persistentvolumeclaims/c", "patch persistentvolumeclaims/c/status"]);
    let mut done = pvc(json!({ "volumeName": "v" }), json!({ "pv.kubernetes.io/bind-completed": "yes" }), "Bound");
    done.status = serde_json::from_value(
        json!({ "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "7Gi" } }),
    )
    .unwrap();
    assert!(plan(&done, &[taken], &[]).is_empty());
    // A user's reservation is kept as such.
    let reserved = plan(&pvc(json!({}), Value::Null, "Pending"), &[pv("v", "Available", to("c", Value::Null))], &[]);
    let first = &bodies(&reserved, "persistentvolumes")[0];
    assert_eq!((&first["spec"]["claimRef"]["uid"], &first["metadata"]["annotations"]), (&json!("c1"), &Value::Null));
}

#[test]
fn a_claim_says_why_it_waits() {
    let named = json!({ "volumeName": "v" });
    let slow = |mode: &str| class("slow", "kubernetes.io/no-provisioner", mode, false);
    let of = |name: &str| json!({ "storageClassName": name });
    for (spec, volumes, classes, told) in [
        (
            json!({ "storageClassName": "" }),
            vec![],
            vec![class("d", "x.io/p", "Immediate", true)],
            "FailedBinding: no persistent volumes available for this claim and no storage class is set",
        ),
        (of("none"), vec![], vec![], "ProvisioningFailed: storageclass.storage.k8s.io \"none\" not found"),
        (
            of("slow"),
            vec![],
            vec![slow("Immediate")],
            "ProvisioningFailed: no volume plugin matched name: kubernetes.io/no-provisioner",
        ),
        (
            of("slow"),
            vec![pv("v", "Available", of("slow"))],
            vec![slow("WaitForFirstConsumer")],
            "WaitForFirstConsumer: waiting for first consumer to be created before binding",
        ),
        (
            named.clone(),
            vec![pv("v", "Available", json!({ "capacity": { "storage": "1Gi" } }))],
            vec![],
            "VolumeMismatch: Cannot bind to requested volume \"v\": requested PV is too small",
        ),
        (
            named.clone(),
            vec![pv("v", "Available", of("x"))],
            vec![],
            "VolumeMismatch: Cannot bind to requested volume \"v\": storageClassName does not match",
        ),
        (
            named.clone(),
            vec![pv("v", "Bound", to("other", json!("o")))],
            vec![],
            "FailedBinding: volume \"v\" already bound to a different claim.",
        ),
    ] {
        let plan = plan(&pvc(spec, Value::Null, "Pending"), &volumes, &classes);
        assert_eq!(lines(&plan), [""; 0], "{told}");
        let notes: Vec<String> = plan.notes.iter().map(|note| format!("{}: {}", note.reason, note.message)).collect();
        assert_eq!(notes, [told]);
    }
    let nothing = plan(&pvc(named, Value::Null, "Pending"), &[], &[]);
    assert!(nothing.is_empty(), "the volume may come yet");
    // A node is selected: a new volume may be provisioned, but choosing among the existing ones is up to the scheduler.
    let placed = pvc(of("slow"), json!({ "volume.kubernetes.io/selected-node": "n1" }), "Pending");
    assert_eq!(plan(&placed, &[pv("v", "Available", of("slow"))], &[slow("WaitForFirstConsumer")]).writes().count(), 0);
    let external = [class("fast", "csi.example.com", "Immediate", false)];
    let asked = plan(&pvc(of("fast"), Value::Null, "Pending"), &[], &external);
    let annotations = &bodies(&asked, "persistentvolumeclaims")[0]["metadata"]["annotations"];
    assert_eq!(annotations["volume.kubernetes.io/storage-provisioner"], "csi.example.com");
    assert!(
        asked.notes[0]
            .message
            .starts_with("Waiting for a volume to be created either by the external provisioner 'csi.example.com'")
    );
    // Without a class it gets the default one, as soon as there is one.
    let adopted = plan(&pvc(json!({}), Value::Null, "Pending"), &[], &[class("d", "x.io/p", "Immediate", true)]);
    assert_eq!(bodies(&adopted, "persistentvolumeclaims")[0]["spec"]["storageClassName"], "d");
}

#[test]
fn a_claim_may_lose_its_volume() {
    let done = json!({ "pv.kubernetes.io/bind-completed": "yes" });
    for (spec, volumes, reason) in [
        (json!({}), vec![], "ClaimLost"),
        (json!({ "volumeName": "v" }), vec![], "ClaimLost"),
        (json!({ "volumeName": "v" }), vec![pv("v", "Bound", to("other", json!("o")))], "ClaimMisbound"),
    ] {
        let plan = plan(&pvc(spec.clone(), done.clone(), "Bound"), &volumes, &[]);
        assert_eq!(bodies(&plan, "persistentvolumeclaims")[0]["status"]["phase"], "Lost");
        assert_eq!(plan.writes().next().unwrap().done[0].reason, reason);
        assert!(self::plan(&pvc(spec, done.clone(), "Lost"), &volumes, &[]).is_empty());
    }
}

#[test]
fn a_volume_follows_its_claim() {
    let bound = pvc(json!({ "volumeName": "v" }), Value::Null, "Bound");
    let elsewhere = pvc(json!({ "volumeName": "w" }), Value::Null, "Bound");
    let coming = pvc(json!({}), Value::Null, "Pending");
    let mine = || to("c", json!("c1"));
    let with = |policy: &str| merged(mine(), json!({ "persistentVolumeReclaimPolicy": policy }));
    for (why, phase, spec, claim, expected) in [
        ("new", "Pending", json!({}), None, "Available"),
        ("reserved", "Pending", to("c", Value::Null), Some(&coming), "Available"),
        ("bound", "Available", mine(), Some(&bound), "Bound"),
        ("about to be", "Bound", mine(), Some(&coming), ""),
        ("the claim is gone", "Bound", mine(), None, "Released"),
        ("the claim is another one", "Bound", to("c", json!("c0")), Some(&bound), "Released"),
        ("kept", "Released", with("Retain"), None, ""),
        ("first released, then deleted", "Bound", with("Delete"), None, "Released"),
        ("nobody can delete it", "Released", with("Delete"), None, "Failed"),
        ("nobody can clean it", "Released", with("Recycle"), None, "Failed"),
        ("nothing more is tried", "Failed", with("Delete"), None, ""),
        ("nobody knows what to do", "Released", with("Shred"), None, "Failed"),
    ] {
        let plan = volume::plan(&pv("v", phase, spec), claim, at(0));
        let written = plan.writes().next().map(|write| write.request.body.clone().unwrap()["status"]["phase"].clone());
        assert_eq!(written.unwrap_or_default().as_str().unwrap_or(""), expected, "{why}");
        let guarded =
            plan.writes().all(|write| write.guards.len() == usize::from(matches!(expected, "Released" | "Failed")));
        assert!(guarded, "{why}: the cache may not know the claim yet");
    }
    // The provisioner of a volume deletes it.
    let mut made = PersistentVolume::clone(&pv("v", "Released", with("Delete")));
    made.metadata.annotations =
        Some([("pv.kubernetes.io/provisioned-by".to_owned(), "csi.example.com".to_owned())].into());
    assert!(volume::plan(&made, None, at(0)).is_empty());
    // The claim is bound to another volume: a reference set by the binder is removed, of a user's only the uid.
    let freed = volume::plan(&pv("v", "Bound", mine()), Some(&elsewhere), at(0));
    assert_eq!(bodies(&freed, "persistentvolumes")[0]["spec"], json!({ "claimRef": { "uid": null } }));
    let mut ours = PersistentVolume::clone(&pv("v", "Bound", mine()));
    ours.metadata.annotations = Some([("pv.kubernetes.io/bound-by-controller".to_owned(), "yes".to_owned())].into());
    assert_eq!(
        bodies(&volume::plan(&ours, Some(&elsewhere), at(0)), "persistentvolumes")[0]["spec"],
        json!({ "claimRef": null })
    );
}

#[test]
fn what_is_in_use_stays() {
    let claim = |going: bool, finalizers: Value| {
        let mut claim = serde_json::to_value(pvc(json!({}), Value::Null, "Bound")).unwrap();
        claim["metadata"]["finalizers"] = finalizers;
        if going {
            claim["metadata"]["deletionTimestamp"] = at(0).to_string().into();
        }
        PersistentVolumeClaim::clone(&object(claim))
    };
    let user = |name: &str, node: &str, volume: Value| -> Arc<Pod> {
        let mut pod = pod(name, node, Some(0));
        pod["spec"]["volumes"] = json!([volume]);
        object(pod)
    };
    let by_name = json!({ "name": "v", "persistentVolumeClaim": { "claimName": "c" } });
    let mine = json!(["kubernetes.io/pvc-protection"]);
    // The node is done with it, though finalizers keep it.
    let shut_down = |owner: &str, volume: Value| -> Arc<Pod> {
        let mut pod = serde_json::to_value(&*user("c", "n", volume)).unwrap();
        pod["metadata"]["uid"] = owner.into();
        pod["metadata"]["deletionTimestamp"] = at(0).to_string().into();
        pod["metadata"]["deletionGracePeriodSeconds"] = 0.into();
        object(pod)
    };
    let ephemeral = || json!({ "name": "x", "ephemeral": {} });
    let owned = |owner: &str| {
        let mut claim = claim(true, mine.clone());
        claim.metadata.name = Some("c-x".into());
        claim.metadata.owner_references = Some(vec![
            serde_json::from_value(
                json!({ "apiVersion": "v1", "kind": "Pod", "name": "c", "uid": owner, "controller": true }),
            )
            .unwrap(),
        ]);
        claim
    };
    let alive = || {
        let mut pod = Pod::clone(&user("c", "n", ephemeral()));
        pod.metadata.uid = Some("u".into());
        Arc::new(pod)
    };
    for (why, claim, pods, expected) in [
        ("its own, by its Pod", owned("u"), vec![alive()], Value::Bool(false)),
        ("a namesake of what would be a Pod's own", owned("other"), vec![alive()], Value::Null),
        ("its own, by a Pod that waits for it alone", owned("u"), vec![shut_down("u", ephemeral())], Value::Null),
        (
            "by name, by a Pod that waits for finalizers",
            claim(true, mine.clone()),
            vec![shut_down("u", by_name.clone())],
            Value::Bool(false),
        ),
        ("from before", claim(false, json!(["x"])), vec![], json!(["x", "kubernetes.io/pvc-protection"])),
        ("in use", claim(true, mine.clone()), vec![user("p", "n", by_name.clone())], Value::Bool(false)),
        ("not used", claim(true, mine.clone()), vec![user("p", "n", json!({ "name": "c" }))], Value::Null),
        ("nor by one without a node", claim(true, mine.clone()), vec![user("p", "", by_name)], Value::Null),
        (
            "for an ephemeral volume",
            claim(true, mine.clone()),
            vec![user("c", "n", json!({ "name": "x", "ephemeral": {} }))],
            Value::Null,
        ),
        ("alive", claim(false, mine), vec![], Value::Bool(false)),
    ] {
        let plan = protection::claim_plan(&claim, &pods);
        let written =
            plan.writes().next().map(|write| write.request.body.as_ref().unwrap()["metadata"]["finalizers"].clone());
        assert_eq!(written.unwrap_or(Value::Bool(false)), expected, "{why}");
        let asked = |write: &podwright::controllers::write::Write| matches!(&write.guards[..], [podwright::controllers::write::Guard::Unused { claim: known }] if **known == claim);
        if claim.metadata.deletion_timestamp.is_some() {
            assert!(plan.writes().all(asked), "{why}: the informers may lag behind");
        }
    }
    let volume = |phase: &str| {
        let mut volume = PersistentVolume::clone(&pv("v", phase, json!({})));
        volume.metadata.finalizers = Some(vec!["kubernetes.io/pv-protection".into()]);
        volume.metadata.deletion_timestamp = Some(at(0).into());
        protection::volume_plan(&volume).writes().count()
    };
    assert_eq!([volume("Bound"), volume("Released"), volume("Available")], [0, 1, 1]);
}

#[test]
fn a_volume_that_nobody_can_delete_says_so() {
    let note = |policy: &str, source: Value| {
        let spec = merged(merged(to("c", json!("c1")), json!({ "persistentVolumeReclaimPolicy": policy })), source);
        let plan = volume::plan(&pv("v", "Released", spec), None, at(0));
        let write = plan.writes().next().unwrap();
        let note = write.done[0].clone();
        assert!(note.warning);
        assert_eq!(write.request.body.as_ref().unwrap()["status"]["message"], *note.message);
        (note.reason, note.message)
    };
    let told = |source: Value| {
        let (reason, message) = note("Delete", source);
        assert_eq!(reason, "VolumeFailedDelete");
        message
    };
    let host = |path: &str| told(json!({ "hostPath": { "path": path } }));
    assert_eq!(host("/srv/x"), "host_path deleter only supports /tmp/.+ but received provided /srv/x");
    assert_eq!(host("/tmp/"), "host_path deleter only supports /tmp/.+ but received provided /tmp/");
    assert_eq!(
        host("/tmp/x"),
        "host_path deleter cannot delete /tmp/x on the nodes: remove it there, then delete the volume"
    );
    assert_eq!(
        told(json!({ "local": { "path": "/mnt/x" } })),
        "error getting deleter volume plugin for volume \"v\": no deletable volume plugin matched"
    );
    let local = || json!({ "local": { "path": "/mnt/x" } });
    let recycled = note("Recycle", local());
    assert_eq!((recycled.0, recycled.1.as_str()), ("VolumeFailedRecycle", "No recycler plugin found for the volume!"));
    let unknown = note("Shred", local());
    let words = "Volume has unrecognized PersistentVolumeReclaimPolicy";
    assert_eq!((unknown.0, unknown.1.as_str()), ("VolumeUnknownReclaimPolicy", words));
}

#[test]
fn an_ephemeral_volume_gets_a_claim_of_its_pod() {
    let mut user = pod("p", "", Some(0));
    user["spec"]["volumes"] = json!([
        { "name": "scratch", "ephemeral": { "volumeClaimTemplate": {
            "metadata": { "labels": { "a": "b" }, "annotations": { "c": "d" } },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } } } },
        { "name": "other", "emptyDir": {} },
    ]);
    let user: Arc<Pod> = object(user);
    let plan = ephemeral::plan(&user, |_| None);
    assert_eq!(lines(&plan), ["create persistentvolumeclaims/p-scratch"]);
    let body = bodies(&plan, "persistentvolumeclaims").remove(0);
    let owner = &body["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["uid"], &owner["controller"], &owner["blockOwnerDeletion"]),
        (&json!("Pod"), &json!(user.metadata.uid), &json!(true), &json!(true))
    );
    assert_eq!((&body["metadata"]["labels"]["a"], &body["metadata"]["annotations"]["c"]), (&json!("b"), &json!("d")));
    assert_eq!(body["spec"]["resources"]["requests"]["storage"], "1Gi");
    // One of that name with another owner is not adopted.
    let other = Arc::new(pvc(json!({}), Value::Null, "Bound"));
    let plan = ephemeral::plan(&user, |_| Some(other.clone()));
    assert_eq!(plan.writes().count(), 0);
    let namespace = user.metadata.namespace.as_deref().unwrap();
    assert_eq!(
        (plan.notes[0].reason, plan.notes[0].message.as_str()),
        (
            "FailedBinding",
            &*format!("ephemeral volume scratch: PVC a/c was not created for pod {namespace}/p (pod is not owner)")
        )
    );
    let mut ending = Pod::clone(&user);
    ending.metadata.deletion_timestamp = Some(at(0).into());
    assert!(ephemeral::plan(&ending, |_| None).is_empty());
}
