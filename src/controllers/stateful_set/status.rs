//! The status of a StatefulSet: the counts, and the progress of a rollout.

use k8s_openapi::api::{apps::v1::StatefulSetStatus, core::v1::Pod};

use super::{Roll, identity, meta, replicas, rolling};

/// The status according to these Pods.
pub fn of(roll: &Roll<'_>) -> StatefulSetStatus {
    let set = roll.scene.set;
    let before = set.status.clone().unwrap_or_default();
    let count =
        |of: &dyn Fn(&Pod) -> bool| i32::try_from(roll.pods().filter(|pod| of(pod)).count()).unwrap_or(i32::MAX);
    let is_created = |pod: &Pod| !meta::phase(pod).is_empty();
    let is_ready = |pod: &Pod| meta::phase(pod) == "Running" && meta::is_ready(pod);
    let is_of = |pod: &Pod, name: &str| {
        is_created(pod) && !meta::is_terminating(&pod.metadata) && identity::revision(pod) == Some(name)
    };
    let (all, ready) = (count(&is_created), count(&is_ready));
    let updated = count(&|pod| is_of(pod, &roll.update.name));
    let mut status = StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: all,
        ready_replicas: Some(ready),
        available_replicas: Some(count(&|pod| roll.is_available(pod))),
        current_replicas: Some(count(&|pod| is_of(pod, &roll.current.name))),
        updated_replicas: Some(updated),
        current_revision: Some(roll.current.name.clone()),
        update_revision: Some(roll.update.name.clone()),
        collision_count: Some(before.collision_count.unwrap_or(0)),
        conditions: before.conditions,
    };
    // A rolling update is complete when all Pods have its revision and are ready.
    let wanted = replicas(set);
    if rolling(set).is_some() && updated == wanted && ready == wanted && all == wanted {
        status.current_replicas = Some(updated);
        status.current_revision = status.update_revision.clone();
    }
    status
}
