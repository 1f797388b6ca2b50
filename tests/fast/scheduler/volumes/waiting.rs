//! What Pods wait for and what wakes them, also by the whole loop against an API server on a paused clock.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use podwright::{
    api::{Options, patch},
    client::Key,
    scheduler::{
        config,
        framework::{ClusterEvent, QueueingHint},
        profile::Profile,
    },
};
use serde_json::{Value, json};

use super::{
    super::run::{World, run},
    bound, class, object, pod, pv, pvc, user,
};
use crate::work::grows_with_its_lists;

#[test]
fn what_wakes_a_pod_that_waits_for_volumes() {
    let profile = Profile::default();
    let user = user("p", &["c"]);
    let volume = |value: Value| -> Arc<PersistentVolume> { object(value) };
    let free = volume(pv("v", "n1", json!({})));
    let taken = volume(pv("v", "n1", json!({ "status": { "phase": "Bound" } })));
    let zoned = volume(pv("v", "n1", json!({ "metadata": { "labels": { "topology.kubernetes.io/zone": "a" } } })));
    let made = |mode: &str| object(class("x", "p", mode));
    let holder = super::user("holder", &["c"]);
    let on_node = pod(
        "holder",
        json!({ "nodeName": "n1", "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }] }),
    );
    for (plugin, change, expected) in [
        ("VolumeBinding", ClusterEvent::Claim(Key::new("default", "c")), QueueingHint::Anywhere),
        ("VolumeBinding", ClusterEvent::Claim(Key::new("default", "d")), QueueingHint::No),
        ("VolumeBinding", ClusterEvent::Claim(Key::new("other", "c")), QueueingHint::No),
        ("VolumeBinding", ClusterEvent::Volume(None, taken.clone()), QueueingHint::Anywhere),
        ("VolumeBinding", ClusterEvent::Volume(Some(taken.clone()), free.clone()), QueueingHint::Anywhere),
        ("VolumeBinding", ClusterEvent::Volume(Some(free.clone()), taken.clone()), QueueingHint::No),
        ("VolumeBinding", ClusterEvent::Class(None, made("Immediate")), QueueingHint::Anywhere),
        ("VolumeBinding", ClusterEvent::Class(Some(made("Immediate")), made("Immediate")), QueueingHint::No),
        ("VolumeBinding", ClusterEvent::NodeLabels, QueueingHint::Here),
        ("VolumeBinding", ClusterEvent::NodeTaints, QueueingHint::No),
        ("VolumeBinding", ClusterEvent::PodRemoved(holder.clone()), QueueingHint::Anywhere),
        ("VolumeBinding", ClusterEvent::PodRemoved(on_node.clone()), QueueingHint::No),
        ("VolumeZone", ClusterEvent::Volume(Some(free.clone()), taken), QueueingHint::No),
        ("VolumeZone", ClusterEvent::Volume(Some(free), zoned), QueueingHint::Anywhere),
        ("VolumeZone", ClusterEvent::Class(None, made("Immediate")), QueueingHint::No),
        ("VolumeZone", ClusterEvent::Class(None, made("WaitForFirstConsumer")), QueueingHint::Anywhere),
        ("VolumeZone", ClusterEvent::Claim(Key::new("default", "c")), QueueingHint::Anywhere),
        ("VolumeZone", ClusterEvent::NodeAdded, QueueingHint::Here),
        ("VolumeRestrictions", ClusterEvent::PodRemoved(on_node), QueueingHint::Anywhere),
        ("VolumeRestrictions", ClusterEvent::PodRemoved(super::user("other", &["d"])), QueueingHint::No),
        ("VolumeRestrictions", ClusterEvent::Claim(Key::new("default", "c")), QueueingHint::Anywhere),
    ] {
        assert_eq!(profile.queueing_hint(plugin, &user, &change), expected, "{plugin} {change:?}");
    }
}

/// Whoever writes Pods chooses how many claims they name: one that goes is compared with each that waits.
#[test]
fn claims_of_pods_are_not_compared_each_with_each() {
    let profile = Profile::default();
    let with = |n: usize| {
        let claim = |name: &str, i: usize| json!({ "name": format!("v{i}"), "persistentVolumeClaim": { "claimName": format!("{name}-{i}") } });
        let of = |name: &str| pod(name, json!({ "volumes": (0..n).map(|i| claim(name, i)).collect::<Vec<_>>() }));
        (of("waits"), ClusterEvent::PodRemoved(of("gone")))
    };
    grows_with_its_lists("a hint", &with(1000), &with(16_000), |(waits, gone)| {
        assert_eq!(profile.queueing_hint("VolumeRestrictions", waits, gone), QueueingHint::No);
    });
}

fn with_timeout(seconds: i64) -> Result<config::Config, String> {
    let file = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [{ "pluginConfig": [{ "name": "VolumeBinding", "args": { "bindTimeoutSeconds": seconds } }] }],
    });
    config::parse(&file.to_string()).map_err(|why| why.to_string())
}

#[test]
fn the_configuration_knows_the_plugins() {
    assert!(with_timeout(0).is_ok());
    let wrong = with_timeout(-1).err().expect("refused");
    assert!(
        wrong.ends_with("bindTimeoutSeconds: invalid BindTimeoutSeconds, should not be a negative value"),
        "{wrong}"
    );
    let file = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [{ "plugins": {
            "filter": { "disabled": [{ "name": "VolumeZone" }] }, "reserve": { "disabled": [{ "name": "VolumeBinding" }] } } }],
    });
    assert!(config::parse(&file.to_string()).is_ok());
}

/// Creates an object as a user would, and tells how it is.
async fn create<K: podwright::client::Typed>(world: &World, mut value: Value) {
    let status = json!({ "status": value["status"].take() });
    value["metadata"]["resourceVersion"].take();
    value["metadata"]["uid"].take();
    let made = world.client.create(&*object::<K>(value)).await.expect("created");
    let (namespace, name) = (made.metadata().namespace.clone(), made.metadata().name.clone().expect("a name"));
    world.client.merge::<K>(namespace.as_deref(), &name, Some("status"), status).await.expect("status");
    world.settle().await;
}

fn claims(claim: &str) -> Value {
    json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }] })
}

/// A Pod that waits for its volumes keeps its node, and nobody else waiting; when they do not come, it tries again.
#[test]
fn a_pod_is_bound_once_its_claims_are() {
    run(|| async {
        let world = World::with(with_timeout(30).expect("valid")).await;
        world.node("n1", json!({})).await;
        world.node("n2", json!({})).await;
        let class: Arc<StorageClass> = object(class("local", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"));
        world.client.create(&*class).await.expect("created");
        create::<PersistentVolumeClaim>(&world, pvc("c", json!({}))).await;
        world.pod("p", claims("c")).await;
        world.pod("early", claims("none")).await;
        let waits = |pod: &str, why: &str| world.told(pod).is_some_and(|(_, message)| message.contains(why));
        world.until("nothing is free", || waits("p", "2 node(s) didn't find available persistent volumes")).await;
        world.until("no claim", || waits("early", "persistentvolumeclaim \"none\" not found")).await;
        create::<PersistentVolume>(&world, pv("v", "n2", json!({}))).await;
        let claim_of = || {
            let volume = world.seen.persistent_volumes.get(&Key::new("", "v"))?;
            volume.spec.as_ref()?.claim_ref.as_ref()?.name.clone()
        };
        world.until("the volume is the claim's", || claim_of().as_deref() == Some("c")).await;
        // Others are not kept waiting, and the node is kept for the Pod.
        world.pod("other", json!({})).await;
        world.until("another is bound", || world.place("other").is_some()).await;
        assert_eq!(world.place("p"), None);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(world.place("p"), None);
        tokio::time::sleep(Duration::from_secs(11)).await;
        let late =
            "FailedScheduling running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded";
        assert!(world.events("p").await.contains_key(late), "{:?}", world.events("p").await);
        // The binder is back.
        let done = json!({ "metadata": { "annotations": { "pv.kubernetes.io/bind-completed": "yes" } },
            "spec": { "volumeName": "v" } });
        world.client.merge::<PersistentVolumeClaim>(Some("default"), "c", None, done).await.expect("bound");
        world.until("bound where the volume is", || world.place("p").is_some()).await;
        assert_eq!(world.place("p").as_deref(), Some("n2"));
        // One that goes while it waits keeps nothing.
        create::<PersistentVolumeClaim>(&world, pvc("d", json!({}))).await;
        world.pod("q", claims("d")).await;
        create::<PersistentVolume>(
            &world,
            pv("w", "n1", json!({ "spec": { "claimRef": { "namespace": "default", "name": "d" } } })),
        )
        .await;
        let uid = || {
            let volume = world.seen.persistent_volumes.get(&Key::new("", "w"))?;
            volume.spec.as_ref()?.claim_ref.as_ref()?.uid.clone()
        };
        world.until("its reference is complete", || uid().is_some()).await;
        world.delete("q").await;
        world.until("gone", || world.get("q").is_none()).await;
        world.settle().await;
        world.stop().await;
    });
}

/// Who waits for a claim that is for one Pod alone comes as soon as that goes, wherever it was, or is over.
#[test]
fn a_pod_that_lets_go_of_its_own_claim_wakes_the_next() {
    run(|| async {
        let world = World::new().await;
        world.node("n1", json!({})).await;
        world.node("n2", json!({})).await;
        let only_one = json!({ "spec": { "accessModes": ["ReadWriteOncePod"] } });
        let claim = patch::merge(&bound("v"), &only_one);
        create::<PersistentVolumeClaim>(&world, pvc("c", claim)).await;
        let anywhere = json!({ "spec": { "local": null, "hostPath": { "path": "/mnt/disk" }, "nodeAffinity": null,
            "accessModes": ["ReadWriteOncePod"] } });
        create::<PersistentVolume>(&world, pv("v", "", anywhere)).await;
        for (next, before) in
            [("first", None), ("second", Some("first")), ("third", Some("second")), ("last", Some("third"))]
        {
            world.pod(next, claims("c")).await;
            let Some(before) = before else {
                world.until("it is bound", || world.place(next).is_some()).await;
                continue;
            };
            let why = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
            world.until("it waits", || world.told(next).is_some_and(|(_, message)| message.contains(why))).await;
            // Longer than any backoff, and shorter than it would wait for nothing.
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(world.place(next), None);
            match before {
                "first" => world.delete(before).await,
                "second" => world.status(before, json!({ "phase": "Succeeded" })).await,
                _ => {
                    let node = world.place(before).expect("it is bound");
                    world.client.delete::<Node>(None, &node, None, Options::default()).await.expect("deleted");
                    world.delete(before).await;
                }
            }
            world.settle().await;
            assert!(world.place(next).is_some(), "{next} comes at once: {:?}", world.told(next));
        }
        world.stop().await;
    });
}
