//! Claims compete for volumes while controllers lag behind and restart: none gets two, and none shares one.

use std::{collections::BTreeMap, time::Duration};

use podwright::client::Key;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;

use super::{cluster::Cluster, first_seed, run};

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
