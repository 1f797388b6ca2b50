//! Ephemeral volumes: each gets a claim owned by its Pod, which is deleted with the Pod.
//!
//! Upstream: `pkg/controller/volume/ephemeral`.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod, Volume},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::super::{
    Context, Plan, Row, Writes, meta,
    write::{Note, Write},
};
use podwright_api::persistent_volume as pv;
use podwright_client::{Informers, Key, reference};

const FAILED: &str = "FailedBinding";

pub const ROW: Row = Row {
    name: "ephemeral-volume-controller",
    workers: 2,
    writes: Writes::Of(&["persistentvolumeclaims"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.on(&informers.pods, |_, queue, change| {
            if change.new.as_ref().is_some_and(|pod| has_ephemeral(pod)) {
                queue.add(change.key.clone());
            }
        });
        watches.on(&informers.persistent_volume_claims, |world, queue, change| {
            // Only the deletion of a claim matters: also of an unrelated one with the name.
            if change.new.is_none() {
                let users = world.informers.pods.indexed(Informers::BY_CLAIM, &change.key.to_string());
                users.iter().filter(|pod| has_ephemeral(pod)).for_each(|pod| queue.add(Key::of(&**pod)));
            }
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| {
        let informers = &context.world.informers;
        let Some(pod) = informers.pods.get(key) else { return Plan::default() };
        plan(&pod, |name| informers.persistent_volume_claims.get(&Key::new(&key.namespace, name)))
    },
};

fn has_ephemeral(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).any(|volume| volume.ephemeral.is_some())
}

/// Plans a Pod; `claim` looks up claims of its namespace by name.
pub fn plan(pod: &Pod, claim: impl Fn(&str) -> Option<Arc<PersistentVolumeClaim>>) -> Plan {
    let mut plan = Plan::default();
    if meta::is_terminating(&pod.metadata) {
        return plan;
    }
    let mut missing = Vec::new();
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        let Some(used) = pv::used(pod, volume).filter(|used| used.ephemeral) else { continue };
        let failed =
            |why: &str| Note::warning(reference(pod), FAILED, format!("ephemeral volume {}: {why}", volume.name));
        match claim(&used.name) {
            Some(claim) => plan.notes.extend(pv::is_own(pod, &claim).err().map(|why| failed(&why.to_string()))),
            None => {
                let why = failed(&format!("create PVC {}: {{}}", used.name));
                missing.push(Write::create(&made(pod, volume, used.name)).failed(why));
            }
        }
    }
    plan.then(missing);
    plan
}

fn made(pod: &Pod, volume: &Volume, name: String) -> PersistentVolumeClaim {
    let template =
        volume.ephemeral.as_ref().and_then(|source| source.volume_claim_template.clone()).unwrap_or_default();
    let given = template.metadata.unwrap_or_default();
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: pod.metadata.namespace.clone(),
            labels: given.labels,
            annotations: given.annotations,
            owner_references: Some(vec![meta::owner_reference(pod)]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec),
        status: None,
    }
}
