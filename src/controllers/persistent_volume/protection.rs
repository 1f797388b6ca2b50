//! Protection: a claim stays as long as a Pod uses it, and a volume as long as it is bound, whoever has deleted them.
//!
//! Upstream: `pkg/controller/volume/{pvcprotection,pvprotection}`. The finalizers are given by admission; here those get
//! them that came before it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};

use super::{
    super::{Context, Plan, Row, meta, plan::Write},
    volume_phase,
};
use crate::client::{Key, Typed};

pub const CLAIM: &str = "kubernetes.io/pvc-protection";
pub const VOLUME: &str = "kubernetes.io/pv-protection";

pub const CLAIMS: Row = Row {
    name: "pvc-protection-controller",
    workers: 2,
    wire: |wires| {
        let informers = &wires.world.informers.clone();
        wires.own(&informers.persistent_volume_claims);
        wires.on(&informers.pods, |world, queue, change| {
            // Only who goes frees anything; one of the same name that comes instead is another one.
            let gone = change
                .old
                .as_ref()
                .filter(|old| change.new.as_ref().is_none_or(|new| new.metadata.uid != old.metadata.uid));
            for name in gone.iter().flat_map(|pod| claims(pod)) {
                let key = Key::new(&change.key.namespace, name);
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
        let pods = if going { informers.pods.list_namespace(&key.namespace) } else { Vec::new() };
        claim_plan(&claim, &pods)
    },
};

pub const VOLUMES: Row = Row {
    name: "pv-protection-controller",
    workers: 1,
    wire: |wires| {
        let volumes = &wires.world.informers.persistent_volumes.clone();
        wires.own(volumes);
    },
    reconcile: |context: &Context<'_>, key: &Key| match context.world.informers.persistent_volumes.get(key) {
        Some(volume) => volume_plan(&volume),
        None => Plan::default(),
    },
};

/// The claims that a Pod uses: by name, and those made for its ephemeral volumes.
fn claims(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let name = |volume: &k8s_openapi::api::core::v1::Volume| match (&volume.persistent_volume_claim, &volume.ephemeral)
    {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", meta::name(&pod.metadata), volume.name)),
        (None, None) => None,
    };
    volumes.filter_map(name).collect()
}

/// What a claim needs; `pods` are those of its namespace, if it is being deleted.
pub fn claim_plan(claim: &PersistentVolumeClaim, pods: &[Arc<Pod>]) -> Plan {
    // No node starts a Pod whose claim is being deleted: one that has no node yet uses nothing.
    let uses = |pod: &Arc<Pod>| {
        meta::node_name(pod).is_some() && claims(pod).iter().any(|name| *name == meta::name(&claim.metadata))
    };
    protect(claim, CLAIM, pods.iter().any(uses))
}

pub fn volume_plan(volume: &PersistentVolume) -> Plan {
    protect(volume, VOLUME, volume_phase(volume) == "Bound")
}

/// Gives the finalizer to what is not being deleted, and takes it from what is and is not used.
fn protect<K: Typed>(object: &K, finalizer: &str, used: bool) -> Plan {
    let mut plan = Plan::default();
    let mut new = object.clone();
    let going = meta::is_terminating(object.metadata());
    let all = new.metadata_mut().finalizers.get_or_insert_default();
    let has = all.iter().any(|known| known == finalizer);
    match (going, has) {
        (false, false) => all.push(finalizer.to_owned()),
        (true, true) if !used => all.retain(|known| known != finalizer),
        _ => return plan,
    }
    if all.is_empty() {
        new.metadata_mut().finalizers = None;
    }
    plan.then(Write::change(object, &new).into_iter().collect());
    plan
}
