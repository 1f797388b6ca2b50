//! The resources allocated to a Pod's containers, and why they are less than requested.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition, ResourceRequirements};

use crate::{
    qos,
    spec::{PodExt, Role},
};

/// The condition of a Pod with a pending resize.
pub const PENDING: &str = "PodResizePending";

/// The values that matter to cgroups and schedulers. A limit of 0 means none, as upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    pub cpu_request: i64,
    pub cpu_limit: i64,
    pub memory_request: i64,
    pub memory_limit: i64,
}

pub(super) fn needs(resources: Option<&ResourceRequirements>) -> Needs {
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

/// Whether two have equal CPU and memory, in whatever units.
pub fn alike(a: Option<&ResourceRequirements>, b: Option<&ResourceRequirements>) -> bool {
    a == b || needs(a) == needs(b)
}

pub(super) fn is_resizable(role: Role) -> bool {
    matches!(role, Role::Main | Role::Sidecar)
}

/// The resources allocated to a Pod's resizable containers, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocation(Arc<BTreeMap<String, Option<ResourceRequirements>>>);

impl Allocation {
    /// Everything the Pod requests.
    pub fn of(pod: &Pod) -> Allocation {
        let parts = pod.parts();
        let resizable = parts.iter().filter(|p| is_resizable(p.role));
        Allocation(Arc::new(resizable.map(|p| (p.name().to_owned(), p.container.resources.clone())).collect()))
    }

    /// The allocation that an earlier agent reported to the server, if nothing else is known of the Pod; without a report,
    /// everything it requests.
    ///
    /// The server only has allocated requests. If they equal the Pod's requests, the whole resize was granted. Otherwise the
    /// containers' last resources are used as a whole: limits belong to the requests they came with.
    pub fn recalled(pod: &Pod) -> Allocation {
        let mut all = Allocation::of(pod);
        let status = pod.status.iter();
        let told = status.flat_map(|s| s.container_statuses.iter().chain(&s.init_container_statuses)).flatten();
        // A container with an empty allocation still has resources.
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
            // A container that is not running has its allocation; so has one that reports nothing else.
            let had = resources.clone().unwrap_or_default();
            let requests = had.requests.or(allocated_resources.clone());
            if let Some(known) = Arc::make_mut(&mut all.0).get_mut(name) {
                let wish = known.take().unwrap_or_default();
                *known = Some(ResourceRequirements { requests, limits: had.limits, ..wish });
            }
        }
        all
    }

    /// Whether it equals everything the Pod requests.
    pub fn satisfies(&self, pod: &Pod) -> bool {
        let alike = |c: &Container| self.0.get(&c.name).is_none_or(|given| alike(given.as_ref(), c.resources.as_ref()));
        let spec = pod.spec();
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).all(alike)
    }

    /// The Pod with its allocated resources instead of the requested ones.
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

/// Why a request is not fulfilled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// `Deferred` or `Infeasible`.
    pub reason: String,
    pub message: String,
    /// `metadata.generation` of the Pod that was judged.
    pub generation: Option<i64>,
}

/// A node's decision about a Pod's resources.
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

pub(super) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|c| c.type_ == kind)
}

/// The reported state of a pending request.
fn pending(pod: &Pod) -> Option<Pending> {
    condition(pod, PENDING).map(|c| Pending {
        reason: c.reason.clone().unwrap_or_default(),
        message: c.message.clone().unwrap_or_default(),
        generation: c.observed_generation,
    })
}
