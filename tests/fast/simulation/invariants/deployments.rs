//! Deployments, their ReplicaSets, and ReplicationControllers.

use std::sync::Arc;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use podwright::controllers::meta;

use super::{
    super::world::{Step, World},
    bounds::Bounds,
    room,
};

/// The Deployment of a step's Pod.
fn concerned<'w>(world: &'w World, step: &Step) -> Option<&'w Arc<Deployment>> {
    let Step::Pod(change) = step else { return None };
    let workload = world.workload(change.new.as_ref().or(change.old.as_ref())?);
    world.deployments.all().map(|(_, d)| d).find(|d| d.metadata.uid == workload)
}

fn is_well(pod: &Pod) -> bool {
    meta::is_active(pod) && meta::is_ready(pod)
}

pub fn surge(world: &World, step: &Step) -> Option<String> {
    let deployment = concerned(world, step)?;
    let Step::Pod(change) = step else { return None };
    let bounds = world.past.bounds.get(&deployment.metadata.uid)?;
    let active = world.pods_of(&deployment.metadata.uid).filter(|pod| meta::is_active(pod)).count() as i32;
    let is_new = change.old.is_none() && active > bounds.most;
    is_new.then(|| format!("{} is the {active}th of {bounds:?}", change.key))
}

/// Where Pods cease to be ready by themselves, what is taken away is judged: with the others that its controllers think
/// ready there are enough.
pub fn available(world: &World, step: &Step) -> Option<String> {
    let deployment = concerned(world, step).filter(|d| !meta::is_terminating(&d.metadata))?;
    let Step::Pod(change) = step else { return None };
    let bounds = world.past.bounds.get(&deployment.metadata.uid)?;
    let is_unsteady = world.past.unsteady.contains(deployment.metadata.uid.as_deref()?);
    if is_unsteady && !change.deleted().is_some_and(is_well) {
        return None;
    }
    let is_there = |pod: &&Arc<Pod>| if is_unsteady { world.lately(pod) } else { is_well(pod) };
    let ready = world.pods_of(&deployment.metadata.uid).filter(is_there).count() as i32;
    (ready < bounds.ready).then(|| format!("{} has {ready} ready of {bounds:?}", meta::name(&deployment.metadata)))
}

pub fn recreate(world: &World, step: &Step) -> Option<String> {
    let deployment = concerned(world, step)?;
    let Step::Pod(change) = step else { return None };
    let made =
        change.made().filter(|_| world.past.bounds.get(&deployment.metadata.uid).is_some_and(|b| b.recreates))?;
    let hash = |pod: &Pod| pod.metadata.labels.as_ref().and_then(|labels| labels.get("pod-template-hash")).cloned();
    let other =
        world.pods_of(&deployment.metadata.uid).find(|pod| !meta::is_finished(pod) && hash(pod) != hash(made))?;
    Some(format!("{} is made beside {}", change.key, meta::name(&other.metadata)))
}

pub fn settled(world: &World) -> Vec<String> {
    let check = |deployment: &Arc<Deployment>| {
        let spec = deployment.spec.clone().unwrap_or_default();
        let status = deployment.status.clone().unwrap_or_default();
        let replicas = spec.replicas.unwrap_or(1);
        let counts = [status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas];
        let image = |pod: &Pod| pod.spec.as_ref().map(|spec| spec.containers[0].image.clone());
        let wanted = spec.template.spec.as_ref().map(|spec| spec.containers[0].image.clone());
        let active: Vec<_> = world.pods_of(&deployment.metadata.uid).filter(|pod| meta::is_active(pod)).collect();
        let right = active.iter().filter(|pod| is_well(pod) && image(pod) == wanted).count() as i32;
        let is_seen = status.observed_generation == deployment.metadata.generation;
        let is_counted = counts.iter().all(|count| count.unwrap_or(0) == replicas) && is_seen;
        // Where there is no room for one of its Pods it can get no further.
        let is_short = is_seen && room::lacks(world, &deployment.metadata.uid);
        let is_it = is_short || is_counted && (active.len() as i32, right) == (replicas, replicas);
        (!is_it).then(|| {
            let name = meta::name(&deployment.metadata);
            format!("{name}: {replicas} of {wanted:?}, but {} are active, {right} right: {status:?}", active.len())
        })
    };
    world.deployments.all().filter_map(|(_, deployment)| check(deployment)).collect()
}

/// What its status says of the Pods that there are.
pub fn told(world: &World) -> Vec<String> {
    let check = |(key, deployment): (_, &Arc<Deployment>)| {
        let (spec, status) = (deployment.spec.as_ref()?, deployment.status.clone().unwrap_or_default());
        let active: Vec<_> = world.pods_of(&deployment.metadata.uid).filter(|pod| meta::is_active(pod)).collect();
        let count = |is_it: &dyn Fn(&Pod) -> bool| active.iter().filter(|pod| is_it(pod)).count() as i32;
        let wait = spec.min_ready_seconds.unwrap_or(0);
        let available = count(&|pod| meta::available_at(pod, wait).is_some_and(|at| at <= world.now));
        let counts =
            (active.len() as i32, count(&|pod| meta::is_ready(pod)), available, active.len() as i32 - available);
        let told = (status.replicas, status.ready_replicas, status.available_replicas, status.unavailable_replicas);
        let told = (told.0.unwrap_or(0), told.1.unwrap_or(0), told.2.unwrap_or(0), told.3.unwrap_or(0));
        // Recreate promises nothing on its way, and is available when it is there.
        let bounds = Bounds::of_deployment(deployment);
        let least = if bounds.recreates { bounds.fewest } else { bounds.ready };
        let is_enough = if available >= least { "True" } else { "False" };
        let mut conditions = status.conditions.iter().flatten();
        let condition = conditions.find(|condition| condition.type_ == "Available").map(|c| c.status.as_str());
        (counts != told || condition != Some(is_enough))
            .then(|| format!("{key}: {counts:?} are there, ready, available, and not: {status:?}"))
    };
    world.deployments.all().filter_map(check).collect()
}

pub fn history(world: &World) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, deployment) in world.deployments.all() {
        let spec = deployment.spec.clone().unwrap_or_default();
        let empty = |set: &&Arc<k8s_openapi::api::apps::v1::ReplicaSet>| {
            set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1) == 0
        };
        let kept = world.replica_sets.owned(&deployment.metadata.uid).filter(empty).count() as i32;
        // The newest one is no history, and may be empty too.
        let most = spec.revision_history_limit.unwrap_or(10) + i32::from(spec.replicas == Some(0));
        let is_done = spec.paused != Some(true) && !room::lacks(world, &deployment.metadata.uid);
        if kept > most && is_done {
            wrong.push(format!("{key} has {kept} old ReplicaSets, {most} are to be kept"));
        }
    }
    wrong
}

pub fn replication(world: &World) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, controller) in world.replication_controllers.all() {
        let replicas = controller.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let status = controller.status.clone().unwrap_or_default();
        let well = world.pods.owned(&controller.metadata.uid).filter(|pod| is_well(pod)).count() as i32;
        let is_seen = status.observed_generation == controller.metadata.generation;
        let is_short = is_seen && room::lacks(world, &controller.metadata.uid);
        if !is_short && (well, status.replicas, status.ready_replicas.unwrap_or(0)) != (replicas, replicas, replicas) {
            wrong.push(format!("{key}: {replicas} are wished, {well} well: {status:?}"));
        }
    }
    wrong
}
