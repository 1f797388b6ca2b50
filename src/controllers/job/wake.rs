//! What wakes a Job: itself and its Pods; at once if there may be something to do, otherwise after a delay.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;

use super::{
    super::{meta, watches::Watches},
    restarts,
};
use podwright_client::{Delta, Key};

/// How long changes that only affect the counts in a status are batched: as long as upstream delays all. Otherwise a Job with
/// thousands of Pods would write its status, and all watchers of Jobs would read it, for each Pod that starts.
pub const GATHER: Duration = Duration::from_secs(1);

pub fn watch(watches: &mut Watches<'_>) {
    let informers = &watches.world.informers.clone();
    watches.own(&informers.jobs);
    let env = watches.env.clone();
    watches.on(&informers.pods, move |world, queue, change| {
        world.short_lives.observe(change, "Job", env.now());
        let later = if is_urgent(change) { Duration::ZERO } else { GATHER };
        for pod in change.old.iter().chain(&change.new) {
            if let Some(owner) =
                meta::controller(&pod.metadata).filter(|owner| owner.kind == "Job" && owner.api_version == "batch/v1")
            {
                queue.add_after(Key::new(&change.key.namespace, &owner.name), later);
            }
        }
    });
    watches.on(&informers.pods, |world, queue, change| {
        // An orphan may be adopted by any Job that selects it.
        let Some(pod) = meta::orphan(change) else { return };
        for job in world.informers.jobs.list_namespace(&change.key.namespace) {
            let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            if selector.is_some_and(|selector| meta::selects(selector, &pod.metadata)) {
                queue.add(Key::of(&*job));
            }
        }
    });
}

/// Whether a change of a Pod may require more than new counts: anything but a step in the start of an active Pod.
pub fn is_urgent(change: &Delta<Pod>) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return true };
    let belongs = |pod: &Arc<Pod>| {
        let meta = pod.metadata.clone();
        (meta.uid, meta.labels, meta.annotations, meta.finalizers, meta.owner_references)
    };
    let tries = |pod: &Arc<Pod>| restarts(std::slice::from_ref(pod));
    !meta::is_active(old) || !meta::is_active(new) || belongs(old) != belongs(new) || tries(old) != tries(new)
}
