//! Claims compete for volumes while controllers lag behind and restart: none gets two, and none shares one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use podwright::{
    api::{Verb, persistent_volume::local},
    client::Key,
    node::volumes::local::{Deed, deed},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;

use super::{
    cluster::{Cluster, request},
    first_seed, run,
};

fn claim(name: &str, gigabytes: u32) -> serde_json::Value {
    json!({ "metadata": { "name": name }, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "resources": { "requests": { "storage": format!("{gigabytes}Gi") } },
    } })
}

/// Which claim each volume is bound to, both saying so; and that no two claims name one volume.
fn bound(cluster: &Cluster) -> BTreeMap<String, String> {
    let mut bound = BTreeMap::new();
    for claim in cluster.seen.persistent_volume_claims.list() {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        let Some(volume) = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()) else { continue };
        let other = bound.insert(volume.clone(), claim.metadata.name.clone().unwrap_or_default());
        assert_eq!(other, None, "two claims have {volume}");
        let known = cluster.seen.persistent_volumes.get(&Key::new("", &volume)).expect("a volume that is bound stays");
        let to = known.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
        if phase == Some("Bound") {
            assert_eq!(to.and_then(|to| to.uid), claim.metadata.uid, "{volume} is not its claim's");
        }
    }
    bound
}

#[test]
fn every_volume_has_one_claim() {
    let seed = first_seed();
    run(async {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut cluster = Cluster::rough(seed).await;
        cluster.add_namespace("a").await;
        for n in 0..24 {
            let volume = json!({ "metadata": { "name": format!("v{n:02}") }, "spec": {
                "capacity": { "storage": format!("{}Gi", rng.random_range(1..10)) }, "accessModes": ["ReadWriteOnce"],
                "hostPath": { "path": format!("/tmp/{n}") }, "persistentVolumeReclaimPolicy": "Retain",
            } });
            let size = rng.random_range(1..10);
            let (first, second) = tokio::join!(
                cluster.create("persistentvolumes", "", volume),
                cluster.create("persistentvolumeclaims", "a", claim(&format!("c{n:02}"), size)),
            );
            let ((), ()) = (first, second);
            if rng.random_bool(0.2) {
                cluster.stop_controllers().await;
                cluster.start_controllers();
            }
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..300))).await;
            bound(&cluster);
        }
        // At rest every claim has a volume, or there is none for it.
        let gigabytes = |text: &str| text.trim_end_matches("Gi").parse::<u32>().expect("a size");
        let at_rest = |cluster: &Cluster| {
            let taken = bound(cluster);
            let claims = cluster.seen.persistent_volume_claims.list();
            let waiting =
                claims.iter().filter(|claim| claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_none()));
            let smallest = waiting.filter_map(|claim| {
                let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
                Some(gigabytes(&requests.get("storage")?.0))
            });
            let smallest = smallest.min().unwrap_or(u32::MAX);
            let volumes = cluster.seen.persistent_volumes.list();
            let phases_fit = volumes.iter().all(|volume| {
                let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
                let is_taken = taken.contains_key(volume.metadata.name.as_deref().unwrap_or_default());
                phase == Some(if is_taken { "Bound" } else { "Available" })
            });
            let free = volumes
                .iter()
                .filter(|volume| !taken.contains_key(volume.metadata.name.as_deref().unwrap_or_default()));
            let largest =
                free.filter_map(|volume| Some(gigabytes(&volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?.0)));
            phases_fit && largest.max().unwrap_or(0) < smallest
        };
        cluster.until("who can be bound is", at_rest).await;
        let taken = bound(&cluster);
        assert!(taken.len() > 8, "{taken:?}");
        // A claim that goes releases its volume, which keeps its data and is nobody else's.
        let (volume, name) = taken.first_key_value().expect("some are bound");
        cluster.delete("persistentvolumeclaims", &Key::new("a", name)).await;
        let phase = |cluster: &Cluster| {
            let known = cluster.seen.persistent_volumes.get(&Key::new("", volume));
            known.and_then(|known| known.status.as_ref()?.phase.clone())
        };
        cluster.until("it is released", |cluster| phase(cluster).as_deref() == Some("Released")).await;
        assert!(cluster.seen.persistent_volume_claims.get(&Key::new("a", name)).is_none());
        cluster.delete("persistentvolumes", &Key::new("", volume)).await;
        cluster.until("it is gone", |cluster| phase(cluster).is_none()).await;
    });
}

/// A claim that stands where that of a Pod's own volume belongs is left alone, and told of; when it goes, the Pod's own comes.
#[test]
fn a_claim_in_the_way_of_an_ephemeral_volume_is_not_taken() {
    run(async {
        let mut cluster = Cluster::new(5).await;
        cluster.add_namespace("a").await;
        cluster.create("persistentvolumeclaims", "a", claim("web-scratch", 1)).await;
        let template = json!({ "spec": claim("", 1)["spec"] });
        cluster
            .create(
                "pods",
                "a",
                json!({ "metadata": { "name": "web" }, "spec": {
                    "containers": [{ "name": "c", "image": "i:1" }],
                    "volumes": [{ "name": "scratch", "ephemeral": { "volumeClaimTemplate": template } }],
                } }),
            )
            .await;
        let why = "FailedBinding: ephemeral volume scratch: PVC a/web-scratch was not created for pod a/web (pod is not owner)";
        while !cluster.events("a").await.iter().any(|event| event == why) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let key = Key::new("a", "web-scratch");
        let owner = |cluster: &Cluster| {
            let claim = cluster.seen.persistent_volume_claims.get(&key)?;
            Some(claim.metadata.owner_references.as_ref()?[0].name.clone())
        };
        assert_eq!(owner(&cluster), None);
        cluster.delete("persistentvolumeclaims", &key).await;
        cluster.until("it has its own", |cluster| owner(cluster).as_deref() == Some("web")).await;
    });
}

/// The built-in provisioner, whose controllers lag, restart and crash while claims come, grow and go, and whose node is killed
/// between the data and the object: each claim has one volume, of its own, and none goes before its data or stays behind it.
#[test]
fn every_claim_has_a_folder_of_its_own_and_none_is_left() {
    let seed = first_seed();
    run(async {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut cluster = Cluster::rough(seed).await;
        cluster.add_namespace("a").await;
        cluster.add_node("n1").await;
        let says = json!({ "metadata": { "annotations": { local::FOLDER: "/x" } } });
        cluster.patch("nodes", &Key::new("", "n1"), says).await;
        let class = json!({ "metadata": { "name": "local" }, "provisioner": local::PROVISIONER,
            "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true });
        cluster.create("storageclasses", "", class).await;
        let mut disk: BTreeSet<String> = BTreeSet::new();
        let (mut made, mut wished) = (0, BTreeMap::new());
        for round in 0..400 {
            match rng.random_range(0..12) {
                0..3 if round < 300 => {
                    let name = format!("c{made:02}");
                    let mut object = claim(&name, 1);
                    object["spec"]["storageClassName"] = json!("local");
                    // As the scheduler does for the first Pod.
                    object["metadata"]["annotations"] = json!({ "volume.kubernetes.io/selected-node": "n1" });
                    cluster.create("persistentvolumeclaims", "a", object).await;
                    (made, _) = (made + 1, wished.insert(name, 1));
                }
                3 if !wished.is_empty() && round < 300 => {
                    let at = rng.random_range(0..wished.len());
                    let name = wished.keys().nth(at).expect("there are so many").clone();
                    wished.remove(&name);
                    cluster.delete("persistentvolumeclaims", &Key::new("a", name)).await;
                }
                4 => {
                    for (name, size) in &mut wished {
                        let key = Key::new("a", name);
                        let bound = cluster.seen.persistent_volume_claims.get(&key);
                        if bound.is_some_and(|claim| {
                            claim.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Bound"))
                        }) {
                            *size += 1;
                            let size =
                                json!({ "spec": { "resources": { "requests": { "storage": format!("{size}Gi") } } } });
                            cluster.patch("persistentvolumeclaims", &key, size).await;
                        }
                    }
                }
                5 => {
                    cluster.stop_controllers().await;
                    cluster.start_controllers();
                }
                6 => {
                    cluster.crash_controllers();
                    cluster.start_controllers();
                }
                _ => {}
            }
            // The node, as `node::volumes::local` has it.
            for volume in cluster.seen.persistent_volumes.list() {
                let name = volume.metadata.name.clone().unwrap_or_default();
                let phase = volume.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
                match deed(&volume, "n1") {
                    Some(Deed::Limit(..)) if phase == "Bound" => drop(disk.insert(name)),
                    Some(Deed::Remove(_)) => {
                        assert_ne!(phase, "Bound", "{name} is removed while it is bound");
                        disk.remove(&name);
                        if rng.random_bool(0.5) {
                            // It is killed before it says so.
                            continue;
                        }
                        let free = json!({ "metadata": { "uid": volume.metadata.uid, "finalizers": null } });
                        let key = Key::new("", &name);
                        let gone =
                            cluster.client.call(request(Verb::Patch, "persistentvolumes", &key, Some(free))).await;
                        if let Err(status) = gone {
                            assert!(status.is_not_found(), "{status}");
                        }
                    }
                    _ => {}
                }
            }
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..300))).await;
            bound(&cluster);
            for name in &disk {
                let key = Key::new("", name);
                let lost = cluster.client.get::<PersistentVolume>(None, name).await.err();
                assert!(lost.is_none(), "{key} is gone, and its data is not");
            }
        }
        assert!(made > 20 && wished.len() > 5, "{made} {wished:?}");
        let sizes = |cluster: &Cluster| -> BTreeMap<String, u32> {
            let claims = cluster.seen.persistent_volume_claims.list();
            let size = |claim: &PersistentVolumeClaim| {
                let has = claim.status.as_ref()?.capacity.as_ref()?.get("storage")?.0.clone();
                let volume =
                    cluster.seen.persistent_volumes.get(&Key::new("", claim.spec.as_ref()?.volume_name.clone()?))?;
                assert_eq!(volume.metadata.name, local::name(claim.metadata.uid.as_deref()?));
                let own = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?.0.clone();
                (own == has).then(|| has.trim_end_matches("Gi").parse().ok())?
            };
            claims.iter().filter_map(|claim| Some((claim.metadata.name.clone()?, size(claim)?))).collect()
        };
        cluster.until("each has what it asks for", |cluster| sizes(cluster) == wished).await;
        for _ in 0..100 {
            for volume in cluster.seen.persistent_volumes.list() {
                if let Some(Deed::Remove(identity)) = deed(&volume, "n1") {
                    disk.remove(&identity.name);
                    let free = json!({ "metadata": { "finalizers": null } });
                    let key = Key::new("", &identity.name);
                    drop(cluster.client.call(request(Verb::Patch, "persistentvolumes", &key, Some(free))).await);
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(cluster.seen.persistent_volumes.list().len(), wished.len(), "none is left");
    });
}
