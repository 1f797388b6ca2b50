//! In-place resize (KEP-1287): what is allocated to a Pod, whether its wish fits, and how its cgroups come to it. Pure.
//!
//! A wish (`spec`) that fits beside what is allocated to the node's other Pods is allocated to the Pod as a whole; what is
//! allocated is what the worker takes for the Pod's spec, and brings to the cgroups of containers that run already.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition, ResourceRequirements};
use podwright_runtime::Resources;
use serde_json::json;

use super::{
    admission::{self, Allocatable},
    pod::{Container as Seen, Observed, Step},
    qos,
    spec::{ContainerRef, PodExt, Role},
};

pub const PENDING: &str = "PodResizePending";
pub const IN_PROGRESS: &str = "PodResizeInProgress";

/// What cgroups and schedulers are told of a container. A limit of 0 is none, as upstream has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Needs {
    cpu_request: i64,
    cpu_limit: i64,
    memory_request: i64,
    memory_limit: i64,
}

fn needs(resources: Option<&ResourceRequirements>) -> Needs {
    let of = |limits: bool, name: &str, measure: fn(&_) -> i64| {
        let map = resources.and_then(|r| if limits { r.limits.as_ref() } else { r.requests.as_ref() });
        map.and_then(|map| map.get(name)).map_or(0, measure)
    };
    Needs {
        cpu_request: of(false, "cpu", qos::millis),
        cpu_limit: of(true, "cpu", qos::millis),
        memory_request: of(false, "memory", qos::units),
        memory_limit: of(true, "memory", qos::units),
    }
}

/// Whether two say the same of CPU and memory, in whatever units.
pub fn alike(a: Option<&ResourceRequirements>, b: Option<&ResourceRequirements>) -> bool {
    a == b || needs(a) == needs(b)
}

fn is_resizable(role: Role) -> bool {
    matches!(role, Role::Main | Role::Sidecar)
}

/// What a node has given to the containers of a Pod that can be resized, by their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocation(Arc<BTreeMap<String, Option<ResourceRequirements>>>);

impl Allocation {
    /// All that the Pod wishes.
    pub fn of(pod: &Pod) -> Allocation {
        let parts = pod.parts();
        let resizable = parts.iter().filter(|p| is_resizable(p.role));
        Allocation(Arc::new(resizable.map(|p| (p.name().to_owned(), p.container.resources.clone())).collect()))
    }

    /// What an earlier agent has told the server of a Pod that nothing else is known of any more; where it has told nothing, all
    /// that the Pod wishes.
    ///
    /// Of what is allocated the server knows the requests alone. Where those are what the Pod wishes, its whole wish was granted.
    /// Where not, what its containers had last stands for all of it: limits belong to the requests that they came with.
    pub fn recalled(pod: &Pod) -> Allocation {
        let mut all = Allocation::of(pod);
        let status = pod.status.iter();
        let told = status.flat_map(|s| s.container_statuses.iter().chain(&s.init_container_statuses)).flatten();
        // One that was given nothing has resources all the same.
        let is_told = |c: &&ContainerStatus| c.allocated_resources.is_some() || c.resources.is_some();
        let told: Vec<_> = told.filter(|c| is_told(c) && all.0.contains_key(&c.name)).collect();
        let granted = |c: &&ContainerStatus| {
            let requests = |requests: Option<_>| ResourceRequirements { requests, ..ResourceRequirements::default() };
            let wish = all.0.get(&c.name).and_then(Option::as_ref).and_then(|wish| wish.requests.clone());
            alike(Some(&requests(wish)), Some(&requests(c.allocated_resources.clone())))
        };
        if told.iter().all(granted) {
            return all;
        }
        for ContainerStatus { name, allocated_resources, resources, .. } in told {
            // What does not run has what is allocated to it, and one that tells nothing else has that too.
            let had = resources.clone().unwrap_or_default();
            let requests = had.requests.or(allocated_resources.clone());
            if let Some(known) = Arc::make_mut(&mut all.0).get_mut(name) {
                let wish = known.take().unwrap_or_default();
                *known = Some(ResourceRequirements { requests, limits: had.limits, ..wish });
            }
        }
        all
    }

    /// Whether it is all that the Pod wishes.
    pub fn satisfies(&self, pod: &Pod) -> bool {
        let alike = |c: &Container| self.0.get(&c.name).is_none_or(|given| alike(given.as_ref(), c.resources.as_ref()));
        let spec = pod.spec();
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).all(alike)
    }

    /// The Pod with what is allocated to it instead of what it wishes.
    pub fn overlay(&self, mut pod: Arc<Pod>) -> Arc<Pod> {
        let differs = |c: &Container| self.0.get(&c.name).is_some_and(|given| *given != c.resources);
        let spec = pod.spec();
        if spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(differs)
            && let Some(spec) = &mut Arc::make_mut(&mut pod).spec
        {
            for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
                if let Some(given) = self.0.get(&container.name) {
                    container.resources.clone_from(given);
                }
            }
        }
        pod
    }
}

/// Why a wish is not fulfilled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// `Deferred` or `Infeasible`.
    pub reason: String,
    pub message: String,
    /// `metadata.generation` of the Pod that was judged.
    pub generation: Option<i64>,
}

/// What a node has decided about a Pod's resources.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allotment {
    pub allocated: Allocation,
    pub pending: Option<Pending>,
    /// `metadata.generation` of the Pod that was judged.
    pub generation: Option<i64>,
}

impl Allotment {
    pub fn new(pod: &Pod, allocated: Allocation) -> Allotment {
        Allotment { allocated, pending: pending(pod), generation: pod.metadata.generation }
    }
}

/// Whether a Pod may have what it wishes beside `others`, as they are allocated. Upstream's `canResizePod`.
///
/// # Errors
///
/// `Infeasible` for what it will never have here, `Deferred` for what others have now.
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

/// Whose wish is judged first: what does not grow, then by priority and class, then who waits longest.
pub fn precedence(pod: &Pod, allocated: &Pod) -> impl Ord + use<> {
    let grows = ["cpu", "memory"].iter().any(|r| qos::pod_request(pod, r) > qos::pod_request(allocated, r));
    let priority = pod.spec().priority.unwrap_or(0);
    let since = condition(pod, PENDING).and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0);
    (grows, Reverse(priority), qos::class(pod) != qos::Class::Guaranteed, since.unwrap_or(Timestamp::MAX))
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|c| c.type_ == kind)
}

/// What the server has been told of a wish that waits.
fn pending(pod: &Pod) -> Option<Pending> {
    condition(pod, PENDING).map(|c| Pending {
        reason: c.reason.clone().unwrap_or_default(),
        message: c.message.clone().unwrap_or_default(),
        generation: c.observed_generation,
    })
}

/// How a Pod comes to what is allocated to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resize {
    pub pending: Option<Pending>,
    /// `None`: it has all that is allocated.
    pub progress: Option<Progress>,
    /// Something is being written to its cgroups just now.
    pub busy: bool,
}

/// A resize under way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// `metadata.generation` of the Pod whose wish was granted.
    pub generation: Option<i64>,
    /// Bringing it to the cgroups.
    pub step: Step,
    /// Why that failed last.
    pub error: Option<String>,
}

/// How far a Pod was that an earlier agent ran: what was begun goes on.
pub fn carried_over(pod: &Pod, allotment: &Allotment, seen: &Observed) -> Resize {
    let told = condition(pod, IN_PROGRESS);
    let behind = pod.parts().iter().any(|p| is_behind(p, seen.container(p.name())));
    let unfinished = seen.resize.progress.is_some() || told.is_some() || behind;
    let generation = told.and_then(|c| c.observed_generation).or(allotment.generation);
    let error = told.and_then(|c| c.message.clone()).filter(|message| !message.is_empty());
    let progress = unfinished.then(|| Progress { generation, error, ..Progress::default() });
    Resize { pending: allotment.pending.clone(), progress, busy: false }
}

/// Whether a container runs with other resources than are allocated to it.
pub fn is_behind(part: &ContainerRef<'_>, container: &Seen) -> bool {
    let has = container.attempt.as_ref().and_then(|a| a.resources.as_ref());
    is_resizable(part.role)
        && container.is_running()
        && has.is_some_and(|has| !alike(Some(has), part.container.resources.as_ref()))
}

/// Whether a container that [is behind](is_behind) must be started anew, by its resize policies.
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

/// The settings that are written together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Memory,
    CpuLimit,
    CpuRequest,
    /// Both of the CPU.
    Cpu,
}

/// Something to write: to the Pod's own cgroup (`None`), or to that of the container of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub container: Option<String>,
    pub of: Of,
    pub resources: Resources,
}

/// The settings of a cgroup: those it has, and those it shall have.
#[derive(Clone, Debug, Default)]
pub struct Change {
    pub now: Resources,
    pub new: Resources,
}

fn only(resources: &Resources, of: Of) -> Resources {
    let Resources { cpu_weight, cpu_quota_us, cpu_period_us, memory_max, memory_swap_max, oom_group, .. } = *resources;
    let nothing = Resources::default();
    match of {
        Of::Memory => Resources { memory_max, memory_swap_max, oom_group, ..nothing },
        Of::CpuLimit => Resources { cpu_quota_us, cpu_period_us, ..nothing },
        Of::CpuRequest => Resources { cpu_weight, ..nothing },
        Of::Cpu => Resources { cpu_weight, cpu_quota_us, cpu_period_us, ..nothing },
    }
}

impl Change {
    /// What is to be compared of it: no limit is the highest.
    fn amounts(&self, of: Of) -> (u64, u64) {
        let amount = |r: &Resources| match of {
            Of::Memory => r.memory_max.unwrap_or(u64::MAX),
            Of::CpuLimit => r.cpu_quota_us.unwrap_or(u64::MAX),
            Of::CpuRequest | Of::Cpu => r.cpu_weight.unwrap_or(0),
        };
        (amount(&self.now), amount(&self.new))
    }
    fn grows(&self, of: Of) -> bool {
        let (now, new) = self.amounts(of);
        new > now
    }
    fn shrinks(&self, of: Of) -> bool {
        let (now, new) = self.amounts(of);
        new < now
    }
}

/// What to write, in order: memory before CPU; the Pod's own cgroup grows before its containers' and shrinks after them;
/// containers that shrink come before those that grow. Upstream's `doPodResizeAction`.
pub fn writes(pod: &Change, containers: &[(String, Change)]) -> Vec<Write> {
    let mut all = Vec::new();
    for (limits, of) in [(&[Of::Memory][..], Of::Memory), (&[Of::CpuLimit, Of::CpuRequest], Of::Cpu)] {
        let own = |of: Of| Write { container: None, of, resources: only(&pod.new, of) };
        all.extend(limits.iter().filter(|of| pod.grows(**of)).map(|of| own(*of)));
        let mut changed: Vec<&(String, Change)> =
            containers.iter().filter(|(_, c)| only(&c.now, of) != only(&c.new, of)).collect();
        // By the limit where that changes, else by the request.
        changed.sort_by_key(|(_, c)| {
            !limits.iter().find(|of| c.grows(**of) || c.shrinks(**of)).is_some_and(|of| c.shrinks(*of))
        });
        let of_container =
            |(name, c): &(String, Change)| Write { container: Some(name.clone()), of, resources: only(&c.new, of) };
        all.extend(changed.into_iter().map(of_container));
        all.extend(limits.iter().rev().filter(|of| pod.shrinks(**of)).map(|of| own(*of)));
    }
    all
}

/// Why memory limits may not be lowered just now: more is used. (It is a check and no promise: usage goes on changing.) What is
/// used is in bytes; `None`: nobody knows, because nothing limits memory on this host.
pub fn overdrawn(pod: (&Change, Option<u64>), containers: &[(&str, &Change, Option<u64>)]) -> Option<String> {
    let exceeded = |change: &Change, used: Option<u64>| {
        let limit = change.new.memory_max.filter(|_| change.shrinks(Of::Memory))?;
        used.filter(|used| *used >= limit).map(|used| (limit, used))
    };
    let of_pod = exceeded(pod.0, pod.1)
        .map(|(limit, used)| format!("attempting to set pod memory limit ({limit}) below current usage ({used})"));
    let of_containers = containers.iter().filter_map(|(name, change, used)| {
        let (limit, used) = exceeded(change, *used)?;
        Some(format!("attempting to set container {name:?} memory limit ({limit}) below current usage ({used})"))
    });
    let all: Vec<String> = of_pod.into_iter().chain(of_containers).collect();
    let list = match all.as_slice() {
        [] => return None,
        [one] => one.clone(),
        more => format!("[{}]", more.join(", ")),
    };
    Some(format!("cannot decrease memory limits: {list}"))
}

/// `had` with the part of `given` that has been written.
pub fn written(had: &ResourceRequirements, given: &ResourceRequirements, of: Of) -> ResourceRequirements {
    let resource = if of == Of::Memory { "memory" } else { "cpu" };
    let mut now = had.clone();
    for (into, from) in [(&mut now.requests, &given.requests), (&mut now.limits, &given.limits)] {
        if let Some(amount) = from.as_ref().and_then(|map| map.get(resource)) {
            into.get_or_insert_default().insert(resource.to_owned(), amount.clone());
        }
    }
    now
}

/// The message of an event: what of the Pod's resources it is about, as upstream tells it.
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
