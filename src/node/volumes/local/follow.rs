//! Watches the PersistentVolumes kept on this node: removes the data of deleted ones and then their finalizer; applies the current
//! size limit to the others.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::json;
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Identity, LocalError, capacity, error::Result};
use crate::{disk, volumes::Volumes};
use podwright_api::persistent_volume::local::{self, FINALIZER, NODE};
use podwright_client::{Client, Informer, Key, Recorder, reference};

/// The claim's protection finalizer is removed by another controller.
const PROTECTION: &str = "kubernetes.io/pv-protection";
/// The initial delay before a failed removal is retried; increases each time.
const SOON: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(60);

/// The action that a volume requires of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Limit its size.
    Limit(Identity, Option<u64>),
    /// Remove it with all its data.
    Remove(Identity),
}

/// The action that a volume requires of the node. Pure.
pub fn deed(volume: &PersistentVolume, node: &str) -> Option<Deed> {
    let identity = Identity::of(volume).filter(|_| local::node(volume) == Some(node))?;
    if volume.metadata.deletion_timestamp.is_none() {
        return Some(Deed::Limit(identity, capacity(volume)));
    }
    let has = |name: &str| volume.metadata.finalizers.iter().flatten().any(|known| known == name);
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    // While a claim is bound to it, it is in use, even if deleted. Retained volumes are not removed by the node.
    (has(FINALIZER) && !has(PROTECTION) && policy == Some("Delete")).then_some(Deed::Remove(identity))
}

/// A pending removal.
struct Due {
    at: Instant,
    pause: Duration,
    busy: bool,
}

/// Performs the required actions until the agent ends.
pub async fn follow(volumes: Arc<Volumes>, client: Client, recorder: Recorder, node: String, stop: CancellationToken) {
    // There may be millions of files: removal runs in the background.
    let folders = volumes.clone();
    tokio::spawn(async move {
        let own = folders.clone();
        let tidied = folders.delete("", move || own.local().tidy()).await;
        if let Err(error) = tidied.flatten() {
            tracing::warn!(%error, "failed to remove all of a removed volume");
        }
    });
    let known = Informer::<PersistentVolume>::builder(client.clone()).labels(format!("{NODE}={node}")).start();
    let mut changes = known.subscribe();
    let mut due: BTreeMap<Key, Due> = BTreeMap::new();
    let mut tasks: JoinSet<(Key, Result<()>)> = JoinSet::new();
    loop {
        let now = Instant::now();
        for (key, due) in due.iter_mut().filter(|(_, due)| !due.busy && due.at <= now) {
            due.busy = true;
            let volume = known.get(key).filter(|volume| matches!(deed(volume, &node), Some(Deed::Remove(_))));
            let (key, volumes, client) = (key.clone(), volumes.clone(), client.clone());
            tasks.spawn(async move {
                let done = match volume {
                    Some(volume) => remove(&volumes, &client, &volume).await,
                    None => Ok(()),
                };
                (key, done)
            });
        }
        let next = due.values().filter(|due| !due.busy).map(|due| due.at).min();
        tokio::select! {
            () = stop.cancelled() => return,
            Some(change) = changes.recv() => {
                let asked = change.new.as_deref().and_then(|volume| deed(volume, &node));
                match asked {
                    Some(Deed::Remove(_)) => {
                        due.entry(change.key).or_insert(Due { at: now, pause: SOON, busy: false });
                    }
                    Some(Deed::Limit(identity, capacity)) => {
                        // If that fails, its claim got an event when the folder was created.
                        let held = volumes.clone();
                        let limited = disk::work(move || held.local().limit(&identity, capacity)).await;
                        if let Err(why) = limited.map_err(LocalError::Panicked).flatten() {
                            tracing::debug!(volume = %change.key, %why, "a volume is not held to its size");
                        }
                    }
                    None => {}
                }
            }
            Some(Ok((key, done))) = tasks.join_next() => match done {
                Ok(()) => drop(due.remove(&key)),
                Err(why) => {
                    if let Some(volume) = known.get(&key) {
                        recorder.warning(reference(&*volume), "VolumeFailedDelete", why.to_string());
                    }
                    if let Some(due) = due.get_mut(&key) {
                        (due.at, due.busy) = (Instant::now() + due.pause, false);
                        due.pause = SELDOM.min(due.pause * 2);
                    }
                }
            },
            () = async { match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            } } => {}
        }
    }
}

/// Removes a volume's data in a turn of its claim's namespace, then its finalizer, so that the object can go.
async fn remove(volumes: &Arc<Volumes>, client: &Client, volume: &PersistentVolume) -> Result<()> {
    let Some(identity) = Identity::of(volume) else { return Ok(()) };
    let (folders, name) = (volumes.clone(), identity.name.clone());
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let namespace = claim.and_then(|claim| claim.namespace.as_deref()).unwrap_or_default();
    let removed =
        volumes.delete(namespace, move || folders.local().remove(&identity, || folders.user_of(&identity.name)));
    removed.await??;
    let rest: Vec<&String> = volume.metadata.finalizers.iter().flatten().filter(|name| *name != FINALIZER).collect();
    let (uid, version) = (&volume.metadata.uid, &volume.metadata.resource_version);
    let patch = json!({ "metadata": { "uid": uid, "resourceVersion": version, "finalizers": rest } });
    match client.merge::<PersistentVolume>(None, &name, None, patch).await {
        Err(status) if !status.is_not_found() => Err(LocalError::ObjectStays(status.message)),
        _ => {
            tracing::info!(volume = name, "removing a volume with its data");
            Ok(())
        }
    }
}
