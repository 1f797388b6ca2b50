//! Applies a Pod's allocated resources to the cgroups of its running containers.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;
use podwright_runtime::{ContainerId, Error as RuntimeError, Labels, Resources};

use super::{
    Machine,
    error::{Error, Result},
};
use crate::{
    executor::{ExecutorError, Resized, Running},
    labels,
    resize::{
        self,
        writes::{Change, Write},
    },
    spec::PodExt,
    translate::{self, sandbox_id},
};

/// A container whose cgroup needs a change.
struct Target {
    id: ContainerId,
    running: Running,
    change: Change,
    used: Option<u64>,
}

/// 1. store the allocation, 2. check that no memory limit falls below current usage, 3. write, in order,
/// 4. store what the containers got.
pub async fn resize(machine: &Machine, pod: &Pod, attempt: u32, containers: Vec<Running>) -> Resized {
    let mut has = HashMap::new();
    let result = steps(machine, pod, attempt, containers, &mut has).await;
    machine.weigh(pod, true);
    Resized { has: has.into_iter().collect(), result: result.map_err(ExecutorError::from) }
}

async fn steps(
    machine: &Machine,
    pod: &Pod,
    attempt: u32,
    containers: Vec<Running>,
    has: &mut HashMap<String, k8s_openapi::api::core::v1::ResourceRequirements>,
) -> Result<()> {
    let id = sandbox_id(pod.uid(), attempt);
    let admitted = serde_json::to_value(pod)?.to_string();
    let journal = machine.journal(pod);
    machine.runtime.annotate_sandbox(&id, admitted).await?;
    let sandbox = machine.runtime.sandbox(&id).await.ok_or_else(|| Error::SandboxGone(id.clone()))?;
    let own = Change { now: sandbox.spec.resources, new: translate::pod_limits(pod, machine.pids_max) };
    let used = machine.runtime.sandbox_stats(&id).await?.memory_current;

    let mut targets = Vec::new();
    for running in containers {
        let container: ContainerId = running.id.parse()?;
        let Some(part) = pod.part(&running.container) else { continue };
        let new = translate::limits(part.container.resources.as_ref());
        let change = Change { now: translate::limits(Some(&running.has)), new };
        match machine.runtime.stats(&container).await {
            Ok(stats) => targets.push(Target { id: container, running, change, used: stats.memory_current }),
            Err(RuntimeError::NotFound(_)) => {}
            Err(other) => return Err(other.into()),
        }
    }
    let usage: Vec<_> = targets.iter().map(|t| (t.running.container.as_str(), &t.change, t.used)).collect();
    if let Some(why) = resize::overdrawn((&own, used), &usage) {
        return Err(Error::MemoryInUse(why));
    }

    let changes: Vec<_> = targets.iter().map(|t| (t.running.container.clone(), t.change.clone())).collect();
    for Write { container, of, resources } in resize::writes(&own, &changes) {
        let target = targets.iter_mut().find(|t| container.as_ref() == Some(&t.running.container));
        let Some(Target { id: container, running, .. }) = target else {
            let journal = journal.at("spec.containers[*].resources");
            machine.runtime.update_sandbox(&id, &resources, &journal).await?;
            continue;
        };
        let Some(part) = pod.part(&running.container) else { continue };
        running.has = resize::written(&running.has, &part.container.resources.clone().unwrap_or_default(), of);
        let journal = journal.at(&format!("{}.resources", part.path()));
        if update(machine, container, &resources, &running.has, &journal).await? {
            has.insert(running.id.clone(), running.has.clone());
        }
    }
    for Target { id: container, running, .. } in targets {
        let Some(given) = pod.part(&running.container).and_then(|part| part.container.resources.clone()) else {
            continue;
        };
        // Stored even without a cgroup setting: memory requests.
        let told = running.has == given || update(machine, &container, &Resources::default(), &given, &journal).await?;
        if told {
            has.insert(running.id, given);
        }
    }
    Ok(())
}

/// Updates the container. Returns whether it still exists.
async fn update(
    machine: &Machine,
    id: &ContainerId,
    resources: &Resources,
    has: &k8s_openapi::api::core::v1::ResourceRequirements,
    journal: &podwright_runtime::JournalWriter,
) -> Result<bool> {
    let note = Labels::from([(labels::RESOURCES.to_owned(), labels::of_resources(Some(has)))]);
    match machine.runtime.update_container(id, resources, note, journal).await {
        Ok(_) => Ok(true),
        // It exited meanwhile: its next start uses the new allocation.
        Err(RuntimeError::NotFound(_) | RuntimeError::Conflict(_)) => Ok(false),
        Err(other) => Err(other.into()),
    }
}
