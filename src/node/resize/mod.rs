//! In-place resize (KEP-1287): what is allocated to a Pod (`allocation`), whether its wish fits, and how its cgroups come to it
//! (`writes`). How far that has come (`progress`) is a part of the Pod's state. Pure.
//!
//! A request (`spec`) that fits beside the allocations of the node's other Pods is allocated as a whole; the worker uses the
//! allocation as the Pod's spec, and applies it to the cgroups of running containers.

pub(crate) mod allocation;
pub(crate) mod progress;
pub(crate) mod writes;

use std::{cmp::Reverse, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::json;

use super::{
    admission::{self, Allocatable},
    pod::observed::{Container as Seen, Observed},
    qos,
    spec::{ContainerRef, PodExt},
};
pub use allocation::{Allocation, Allotment, PENDING, Pending};
use allocation::{alike, condition, is_resizable, needs};
pub use progress::{Resize, ResizeProgress};
pub use writes::{Change, Of, Write, overdrawn, writes, written};

/// The condition of a Pod whose cgroups are being changed.
pub const IN_PROGRESS: &str = "PodResizeInProgress";

/// Whether a Pod's request fits beside `others`, as they are allocated. Upstream's `canResizePod`.
///
/// # Errors
///
/// `Infeasible` if it can never fit here, `Deferred` if others use the resources now.
pub fn judge(pod: &Pod, others: &[Arc<Pod>], node: &Allocatable) -> Result<(), Pending> {
    let refuse = |reason: &str, message: String| {
        Err(Pending { reason: reason.to_owned(), message, generation: pod.metadata.generation })
    };
    if pod.is_static() {
        return refuse("Infeasible", "In-place resize of static-pods is not supported".to_owned());
    }
    for (resource, capacity) in [("memory", node.memory), ("cpu", node.cpu_millis)] {
        let requested = qos::pod_request(pod, resource);
        let requested = if resource == "memory" { requested / 1000 } else { requested };
        if requested > capacity {
            let numbers = format!("{resource}, requested: {requested}, capacity: {capacity}");
            return refuse("Infeasible", format!("Node didn't have enough capacity: {numbers}"));
        }
    }
    match admission::room(pod, others, node) {
        Err((_, why)) => refuse("Deferred", why),
        Ok(()) => Ok(()),
    }
}

/// The order of requests: those that do not grow first, then by priority and class, then the longest waiting.
pub fn precedence(pod: &Pod, allocated: &Pod) -> impl Ord + use<> {
    let grows = ["cpu", "memory"].iter().any(|r| qos::pod_request(pod, r) > qos::pod_request(allocated, r));
    let priority = pod.spec().priority.unwrap_or(0);
    let since = condition(pod, PENDING).and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0);
    (grows, Reverse(priority), qos::class(pod) != qos::Class::Guaranteed, since.unwrap_or(Timestamp::MAX))
}

/// The resize progress of a Pod run by an earlier agent: continues what was begun. `found`: a trace of it on the machine.
pub fn carried_over(pod: &Pod, allotment: &Allotment, seen: &Observed, found: &Resize) -> Resize {
    let told = condition(pod, IN_PROGRESS);
    let behind = pod.parts().iter().any(|p| is_behind(p, seen.container(p.name())));
    let unfinished = found.progress.is_some() || told.is_some() || behind;
    let generation = told.and_then(|c| c.observed_generation).or(allotment.generation);
    let error = told.and_then(|c| c.message.clone()).filter(|message| !message.is_empty());
    let progress = unfinished.then(|| ResizeProgress { generation, error, ..ResizeProgress::default() });
    Resize { pending: allotment.pending.clone(), progress, busy: false }
}

/// Whether a container runs with other resources than allocated.
pub fn is_behind(part: &ContainerRef<'_>, container: &Seen) -> bool {
    let has = container.attempt.as_ref().and_then(|a| a.resources.as_ref());
    is_resizable(part.role)
        && container.is_running()
        && has.is_some_and(|has| !alike(Some(has), part.container.resources.as_ref()))
}

/// Whether a container that [is behind](is_behind) must be restarted, by its resize policies.
pub fn must_restart(part: &ContainerRef<'_>, container: &Seen) -> bool {
    let has = needs(container.attempt.as_ref().and_then(|a| a.resources.as_ref()));
    let wants = needs(part.container.resources.as_ref());
    let changed = |resource: &str| match resource {
        "cpu" => (has.cpu_request, has.cpu_limit) != (wants.cpu_request, wants.cpu_limit),
        _ => (has.memory_request, has.memory_limit) != (wants.memory_request, wants.memory_limit),
    };
    let policies = part.container.resize_policy.iter().flatten();
    is_behind(part, container)
        && policies.into_iter().any(|p| p.restart_policy == "RestartContainer" && changed(&p.resource_name))
}

/// The message of an event about the Pod's resources, in upstream's format.
pub fn message(what: &str, pod: &Pod, generation: Option<i64>, error: Option<&str>) -> String {
    let list = |containers: &[Container]| -> Vec<_> {
        let one = |c: &Container| json!({"name": c.name, "resources": c.resources.clone().unwrap_or_default()});
        containers.iter().map(one).collect()
    };
    let mut told = serde_json::Map::new();
    if let Some(init) = pod.spec().init_containers.as_ref().filter(|init| !init.is_empty()) {
        told.insert("initContainers".to_owned(), list(init).into());
    }
    told.insert("containers".to_owned(), list(&pod.spec().containers).into());
    told.insert("generation".to_owned(), generation.unwrap_or(0).into());
    if let Some(error) = error {
        told.insert("error".to_owned(), error.into());
    }
    format!("Pod resize {what}: {}", serde_json::Value::Object(told))
}
