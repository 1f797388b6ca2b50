//! Pods whose Job is gone: nothing counts them any more, so their finalizers are removed.

use std::sync::Arc;

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};

use super::{
    super::{Context, Plan, Row, Writes, meta, write::Guard},
    is_finished, is_ours, pods,
};
use podwright_client::{Informers, Key, Typed};

/// The key is a Pod's.
pub const ORPHANS: Row = Row {
    name: super::ROW.name,
    workers: 2,
    writes: Writes::Of(&["pods"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.on(&informers.pods, |world, queue, change| {
            let Some(pod) = change.new.as_ref().filter(|pod| pods::is_tracked(pod)) else { return };
            if left(pod, owner(&world.informers, pod).as_deref()).is_some() {
                queue.add(change.key.clone());
            }
        });
        watches.on(&informers.jobs, |world, queue, change| {
            let gone = change.new.as_ref().is_none_or(|job| is_finished(job));
            let Some(job) = change.new.as_ref().or(change.old.as_ref()).filter(|_| gone) else { return };
            let uid = job.metadata.uid.as_deref().unwrap_or_default();
            for pod in world.informers.pods.indexed(Informers::BY_OWNER, uid) {
                if pods::is_tracked(&pod) {
                    queue.add(Key::of(&*pod));
                }
            }
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| {
        let informers = &context.world.informers;
        let mut plan = Plan::default();
        if let Some(pod) = informers.pods.get(key).filter(|pod| pods::is_tracked(pod))
            && let Some(guard) = left(&pod, owner(informers, &pod).as_deref())
        {
            let mut write = pods::dismiss(&pod);
            write.guards.extend(guard);
            plan.then(vec![write]);
        }
        plan
    },
};

/// The Job that controls the Pod, if it exists.
fn owner(informers: &Informers, pod: &Pod) -> Option<Arc<Job>> {
    let owner = meta::controller(&pod.metadata)?;
    let job = informers.jobs.get(&Key::new(meta::namespace(&pod.metadata), owner.name.clone()))?;
    (job.metadata.uid.as_ref() == Some(&owner.uid)).then_some(job)
}

/// Whether a tracked Pod was left behind, and what to ask the server to confirm it.
fn left(pod: &Pod, job: Option<&Job>) -> Option<Option<Guard>> {
    let Some(owner) = meta::controller(&pod.metadata) else { return Some(None) };
    if owner.kind != "Job" || owner.api_version != "batch/v1" {
        return None;
    }
    match job {
        Some(job) => (is_ours(job) && is_finished(job)).then_some(None),
        None => Some(Some(Guard::Absent {
            resource: Job::resource(),
            key: Key::new(meta::namespace(&pod.metadata), owner.name.clone()),
            uid: Some(owner.uid.clone()),
        })),
    }
}
