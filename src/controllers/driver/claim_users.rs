//! Which claims are unused by Pods according to the server: it is asked before a claim is deleted, as informers may not show all
//! Pods yet.
//!
//! The Pods of a namespace are listed once for all its terminating claims (like upstream's `LazyLivePodList`). The result stays
//! valid: no node starts a Pod, and no Pod is bound, with a claim that is being deleted.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodSpec, Volume},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde::{Deserialize, de::IgnoredAny};
use tokio::time::Instant;

use super::Driver;
use crate::{meta, persistent_volume::protection};
use podwright_api::{Request, Status, persistent_volume::all_used};
use podwright_client::{Key, Typed};

/// How long unused claims are cached. The result becomes invalid if one of these is kept after all.
const REMEMBERED: Duration = Duration::from_secs(10);

/// By namespace, the uids of claims that were unused when its Pods were last listed.
#[derive(Default)]
pub(crate) struct UnusedClaims(Mutex<HashMap<String, (Instant, HashSet<String>)>>);

impl UnusedClaims {
    /// Whether a claim is known to be unused. Each result is used once: asking again means that releasing the claim failed.
    fn take(&self, namespace: &str, uid: &str) -> bool {
        let mut known = self.lock();
        let Some((at, uids)) = known.get_mut(namespace) else { return false };
        at.elapsed() < REMEMBERED && uids.remove(uid)
    }

    fn remember(&self, namespace: &str, uids: HashSet<String>) {
        let mut known = self.lock();
        known.retain(|_, (at, uids)| at.elapsed() < REMEMBERED && !uids.is_empty());
        known.insert(namespace.to_owned(), (Instant::now(), uids));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (Instant, HashSet<String>)>> {
        // Each change is atomic: the state stays consistent after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver {
    /// Fails with a conflict if a Pod uses the claim, or if listing Pods fails.
    pub(super) async fn must_be_unused(&self, claim: &PersistentVolumeClaim) -> Result<(), Status> {
        let key = Key::of(claim);
        if self.unused.take(&key.namespace, uid(claim)) {
            return Ok(());
        }
        let mut unused = self.about_to_go(claim);
        let used_by = |pod: ClaimUser| {
            let pod = Pod::from(pod);
            for used in all_used(&pod) {
                if unused.get(&used.name).is_some_and(|claim| protection::uses(&pod, claim)) {
                    unused.remove(&used.name);
                }
            }
            (!unused.contains_key(&key.name)).then(|| Key::of(&pod))
        };
        let request =
            Request { resource: Pod::resource(), namespace: claim.metadata.namespace.clone(), ..Request::default() };
        if let Some(Key { name, .. }) = self.client.find(request, used_by).await? {
            let why = format!("the Pod {}/{name} uses it, and is not seen yet", key.namespace);
            return Err(Status::conflict(&PersistentVolumeClaim::resource(), "", &key.name, why));
        }
        unused.remove(&key.name);
        self.unused.remember(&key.namespace, unused.values().map(|claim| uid(claim).to_owned()).collect());
        Ok(())
    }

    /// The terminating claims of its namespace by name, including this one.
    fn about_to_go(&self, claim: &PersistentVolumeClaim) -> HashMap<String, Arc<PersistentVolumeClaim>> {
        let named = |claim: Arc<PersistentVolumeClaim>| (meta::name(&claim.metadata).to_owned(), claim);
        let all = self.world.informers.persistent_volume_claims.list_namespace(&Key::of(claim).namespace);
        let going = all.into_iter().filter(|claim| meta::is_terminating(&claim.metadata));
        going.chain([Arc::new(claim.clone())]).map(named).collect()
    }
}

fn uid(claim: &PersistentVolumeClaim) -> &str {
    claim.metadata.uid.as_deref().unwrap_or_default()
}

/// The part of a Pod that shows which claims it uses; the rest is skipped.
#[derive(Deserialize)]
struct ClaimUser {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    uid: Option<String>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    volumes: Option<Vec<VolumeSource>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeSource {
    name: String,
    persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
    ephemeral: Option<IgnoredAny>,
}

impl From<ClaimUser> for Pod {
    fn from(ClaimUser { metadata, spec }: ClaimUser) -> Pod {
        let Metadata { name, uid, deletion_timestamp, deletion_grace_period_seconds } = metadata;
        let volume = |VolumeSource { name, persistent_volume_claim, ephemeral }| Volume {
            name,
            persistent_volume_claim,
            ephemeral: ephemeral.map(|_| Default::default()),
            ..Volume::default()
        };
        let volumes = spec.volumes.map(|volumes| volumes.into_iter().map(volume).collect());
        Pod {
            metadata: ObjectMeta {
                name,
                uid,
                deletion_timestamp,
                deletion_grace_period_seconds,
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec { node_name: spec.node_name, volumes, ..PodSpec::default() }),
            status: None,
        }
    }
}

#[cfg(test)]
mod tests;
