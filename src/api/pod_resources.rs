//! Sums of what a Pod requests and a node has: init containers, sidecars and overhead count as upstream.
//! <https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers>

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, Node, Pod},
    apimachinery::pkg::api::resource,
};

use super::quantity::Quantity;

type Quantities = BTreeMap<String, resource::Quantity>;

/// Amounts of every resource: CPU in thousandths, the rest in units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    /// Extended resources and huge pages, without zero amounts.
    pub others: BTreeMap<String, i64>,
}

impl Amounts {
    fn from_map(map: Option<&Quantities>) -> Amounts {
        let mut amounts = Amounts::default();
        for (name, quantity) in map.into_iter().flatten() {
            let Ok(quantity) = quantity.0.parse::<Quantity>() else { continue };
            amounts.set(name, &quantity);
        }
        amounts
    }

    /// Negative amounts count as 0.
    fn set(&mut self, name: &str, quantity: &Quantity) {
        match name {
            "cpu" => self.cpu = quantity.millis().max(0),
            "memory" => self.memory = quantity.value().max(0),
            "ephemeral-storage" => self.ephemeral_storage = quantity.value().max(0),
            "pods" => {}
            _ => self.put(name, quantity.value().max(0)),
        }
    }

    /// Zero entries are removed: users choose the names, and Pods come and go.
    fn put(&mut self, name: &str, amount: i64) {
        match (amount, self.others.get_mut(name)) {
            (0, _) => drop(self.others.remove(name)),
            (_, Some(mine)) => *mine = amount,
            (_, None) => drop(self.others.insert(name.to_owned(), amount)),
        }
    }

    fn combine(&mut self, other: &Amounts, with: fn(i64, i64) -> i64) {
        self.cpu = with(self.cpu, other.cpu);
        self.memory = with(self.memory, other.memory);
        self.ephemeral_storage = with(self.ephemeral_storage, other.ephemeral_storage);
        for (name, amount) in &other.others {
            self.put(name, with(self.get(name), *amount));
        }
    }

    pub fn add(&mut self, other: &Amounts) {
        self.combine(other, i64::saturating_add);
    }
    pub fn subtract(&mut self, other: &Amounts) {
        self.combine(other, i64::saturating_sub);
    }
    /// `other`, plus the amounts here of the resources that it contains.
    fn beside(&self, mut other: Amounts) -> Amounts {
        other.cpu = other.cpu.saturating_add(self.cpu);
        other.memory = other.memory.saturating_add(self.memory);
        other.ephemeral_storage = other.ephemeral_storage.saturating_add(self.ephemeral_storage);
        for (name, amount) in &mut other.others {
            *amount = amount.saturating_add(self.others.get(name).copied().unwrap_or(0));
        }
        other
    }
    fn raise_to(&mut self, other: &Amounts) {
        self.combine(other, i64::max);
    }

    /// Whether a sum overflowed: then nothing can be subtracted from it again.
    pub fn is_saturated(&self) -> bool {
        [self.cpu, self.memory, self.ephemeral_storage].iter().chain(self.others.values()).any(|n| *n == i64::MAX)
    }
    pub fn is_zero(&self) -> bool {
        [self.cpu, self.memory, self.ephemeral_storage].iter().chain(self.others.values()).all(|n| *n == 0)
    }
    /// Whether no amount of `other` is larger.
    pub fn covers(&self, other: &Amounts) -> bool {
        self.cpu >= other.cpu
            && self.memory >= other.memory
            && self.ephemeral_storage >= other.ephemeral_storage
            && other.others.iter().all(|(name, amount)| self.get(name) >= *amount)
    }

    /// The amount of a resource by its name.
    pub fn get(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            _ => self.others.get(name).copied().unwrap_or(0),
        }
    }
}

/// What a node can allocate to Pods, and how many Pods it accepts.
pub fn allocatable(node: &Node) -> (Amounts, i64) {
    let map = node.status.as_ref().and_then(|s| s.allocatable.as_ref().or(s.capacity.as_ref()));
    let pods = map.and_then(|m| m.get("pods")).and_then(|q| q.0.parse::<Quantity>().ok());
    (Amounts::from_map(map), pods.map_or(0, |q| q.value()))
}

/// The requests of a Pod: the larger of what its containers and sidecars need together and what its init containers need one after
/// the other (beside the sidecars started before them); or its Pod-level requests; plus overhead.
pub fn requests(pod: &Pod) -> Amounts {
    sum(pod, request, whole_requests(pod))
}

/// What a Pod occupies on its node: its requests, or more while its containers still have, or are allocated, more than they now
/// request. Requests that its node can never fulfil do not count.
pub fn held(pod: &Pod) -> Amounts {
    let statuses = statuses(pod);
    sum(pod, |container| held_by(pod, &statuses, container, request), whole_requests(pod))
}

/// Whether the Pod's node has reported that it can never fulfil the current requests: a report for an older generation does not
/// apply to newer ones. (Deletion increments the generation too, without changing the requests.)
pub fn is_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| {
        let refused = c.type_ == "PodResizePending" && c.reason.as_deref() == Some("Infeasible");
        let judged = c.observed_generation >= pod.metadata.generation || pod.metadata.deletion_timestamp.is_some();
        refused && judged
    })
}

/// What a container occupies; `requested` is what it requests.
fn held_by(
    pod: &Pod,
    statuses: &HashMap<&str, &ContainerStatus>,
    container: &Container,
    requested: impl Fn(&Container) -> Amounts,
) -> Amounts {
    let Some(status) = statuses.get(&*container.name) else { return requested(container) };
    let promised = status.allocated_resources.as_ref();
    let has = status.resources.as_ref().and_then(|r| r.requests.as_ref());
    let own = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    // Usually all three are equal.
    if [promised, has].into_iter().flatten().all(|told| own == Some(told)) {
        return requested(container);
    }
    let mut amounts = if is_infeasible(pod) { Amounts::default() } else { requested(container) };
    for told in [promised, has] {
        amounts.raise_to(&Amounts::from_map(told));
    }
    amounts
}

/// The statuses of a Pod's containers by name, the first of each.
fn statuses(pod: &Pod) -> HashMap<&str, &ContainerStatus> {
    let lists = pod.status.iter().flat_map(|s| s.container_statuses.iter().chain(&s.init_container_statuses));
    let mut known = HashMap::new();
    for status in lists.flatten() {
        known.entry(&*status.name).or_insert(status);
    }
    known
}

/// The sum of a Pod's limits. A container without a limit counts as 0.
pub fn limits(pod: &Pod) -> Amounts {
    let of = |container: &Container| Amounts::from_map(container.resources.as_ref().and_then(|r| r.limits.as_ref()));
    sum(pod, of, pod.spec.as_ref().and_then(|s| s.resources.as_ref()?.limits.as_ref()))
}

fn whole_requests(pod: &Pod) -> Option<&Quantities> {
    pod.spec.as_ref()?.resources.as_ref()?.requests.as_ref()
}

/// [`held`], with upstream's assumptions for containers without requests: 100m CPU and 200 MiB. For scores only.
pub fn assumed_requests(pod: &Pod) -> Amounts {
    let of = |container: &Container| {
        let resources = container.resources.as_ref();
        let named = |name: &str| {
            let maps = resources.map(|r| [r.requests.as_ref(), r.limits.as_ref()]);
            maps.into_iter().flatten().flatten().any(|map| map.contains_key(name))
        };
        let mut amounts = request(container);
        if !named("cpu") {
            amounts.cpu = 100;
        }
        if !named("memory") {
            amounts.memory = 200 << 20;
        }
        amounts
    };
    let statuses = statuses(pod);
    sum(pod, |container| held_by(pod, &statuses, container, of), whole_requests(pod))
}

/// A limit without a request is also the request. (Defaults ensure that, but do not apply to static Pods.)
fn request(container: &Container) -> Amounts {
    let Some(resources) = &container.resources else { return Amounts::default() };
    let mut amounts = Amounts::from_map(resources.requests.as_ref());
    for (name, limit) in resources.limits.iter().flatten() {
        if !resources.requests.as_ref().is_some_and(|r| r.contains_key(name))
            && let Ok(limit) = limit.0.parse()
        {
            amounts.set(name, &limit);
        }
    }
    amounts
}

/// `whole`: the Pod-level resources, which take precedence over the sum.
fn sum(pod: &Pod, of: impl Fn(&Container) -> Amounts, whole: Option<&Quantities>) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::default() };
    let mut running = Amounts::default();
    spec.containers.iter().for_each(|c| running.add(&of(c)));
    let (mut sidecars, mut peak) = (Amounts::default(), Amounts::default());
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            running.add(&own);
            sidecars.add(&own);
        } else {
            // For resources that it does not contain, the maximum is at the end, when all sidecars run.
            peak.raise_to(&sidecars.beside(own));
        }
    }
    running.raise_to(&peak);
    for (name, whole) in whole.into_iter().flatten() {
        if let Ok(whole) = whole.0.parse() {
            running.set(name, &whole);
        }
    }
    if spec.overhead.is_some() {
        running.add(&Amounts::from_map(spec.overhead.as_ref()));
    }
    running
}
