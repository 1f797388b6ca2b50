//! Protection: deleted claims stay as long as a Pod uses them, and deleted volumes as long as they are bound.
//!
//! Upstream: `pkg/controller/volume/{pvcprotection,pvprotection}`. Admission adds the finalizers; objects from before that get them
//! here.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};

use super::super::{
    Context, Plan, Row, Writes, meta,
    write::{Guard, Write},
};
use podwright_api::persistent_volume::{all_used, is_own, volume_phase};
use podwright_client::{Informers, Key, Typed};

pub const CLAIM: &str = "kubernetes.io/pvc-protection";
pub const VOLUME: &str = "kubernetes.io/pv-protection";

pub const CLAIMS: Row = Row {
    name: "pvc-protection-controller",
    workers: 2,
    writes: Writes::Of(&["persistentvolumeclaims"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.persistent_volume_claims);
        watches.on(&informers.pods, |world, queue, change| {
            // Only a deletion frees anything; a new object of the same name is a different one.
            let gone = change.old.as_ref().filter(|old| {
                let now = change.new.as_ref().filter(|new| new.metadata.uid == old.metadata.uid);
                now.is_none_or(|now| is_shut_down(now) && !is_shut_down(old))
            });
            for used in gone.iter().flat_map(|pod| all_used(pod)) {
                let key = Key::new(&change.key.namespace, used.name);
                let claim = world.informers.persistent_volume_claims.get(&key);
                if claim.is_some_and(|claim| meta::is_terminating(&claim.metadata)) {
                    queue.add(key);
                }
            }
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| {
        let informers = &context.world.informers;
        let Some(claim) = informers.persistent_volume_claims.get(key) else { return Plan::default() };
        let going = meta::is_terminating(&claim.metadata);
        let users = || informers.pods.indexed(Informers::BY_CLAIM, &key.to_string());
        claim_plan(&claim, &if going { users() } else { Vec::new() })
    },
};

pub const VOLUMES: Row = Row {
    name: "pv-protection-controller",
    workers: 1,
    writes: Writes::Of(&["persistentvolumes"]),
    watch: |watches| {
        let volumes = &watches.world.informers.persistent_volumes.clone();
        watches.own(volumes);
    },
    reconcile: |context: &Context<'_>, key: &Key| match context.world.informers.persistent_volumes.get(key) {
        Some(volume) => volume_plan(&volume),
        None => Plan::default(),
    },
};

/// Whether its node is done with a Pod, or it was force-deleted: only finalizers keep it.
fn is_shut_down(pod: &Pod) -> bool {
    meta::is_terminating(&pod.metadata) && pod.metadata.deletion_grace_period_seconds == Some(0)
}

/// Whether a Pod needs a claim. No node starts a Pod whose claim is terminating, so an unscheduled one uses nothing. A Pod in
/// foreground deletion waits for the claims of its ephemeral volumes: once shut down, it no longer uses them.
pub fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let means = |name: &str| name == meta::name(&claim.metadata);
    meta::node_name(pod).is_some()
        && all_used(pod)
            .iter()
            .any(|used| means(&used.name) && (!used.ephemeral || (!is_shut_down(pod) && is_own(pod, claim).is_ok())))
}

/// Plans a claim; `pods` are those that name it, if it is terminating. It is released only if the server does not know of further
/// Pods that the informers do not show yet.
pub fn claim_plan(claim: &PersistentVolumeClaim, pods: &[Arc<Pod>]) -> Plan {
    let guard = || Guard::Unused { claim: Box::new(claim.clone()) };
    let write = protect(claim, CLAIM, pods.iter().any(|pod| uses(pod, claim)));
    let going = meta::is_terminating(&claim.metadata);
    let write = write.map(|write| if going { write.guarded(guard()) } else { write });
    Plan { work: write.into(), ..Plan::default() }
}

pub fn volume_plan(volume: &PersistentVolume) -> Plan {
    Plan { work: protect(volume, VOLUME, volume_phase(volume) == "Bound").into(), ..Plan::default() }
}

/// Adds the finalizer to an object that is not terminating, and removes it from a terminating one that is unused.
fn protect<K: Typed>(object: &K, finalizer: &str, used: bool) -> Option<Write> {
    let mut new = object.clone();
    let going = meta::is_terminating(object.metadata());
    let all = new.metadata_mut().finalizers.get_or_insert_default();
    let has = all.iter().any(|known| known == finalizer);
    match (going, has) {
        (false, false) => all.push(finalizer.to_owned()),
        (true, true) if !used => all.retain(|known| known != finalizer),
        _ => return None,
    }
    if all.is_empty() {
        new.metadata_mut().finalizers = None;
    }
    Write::change(object, &new)
}
