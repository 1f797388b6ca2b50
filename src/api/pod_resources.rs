//! What a Pod asks of a node and what a node has, as sums: init containers, sidecars and overhead counted as upstream.
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
    /// Extended resources and huge pages; none of which there is nothing.
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

    /// Nobody requests or has less than nothing.
    fn set(&mut self, name: &str, quantity: &Quantity) {
        match name {
            "cpu" => self.cpu = quantity.millis().max(0),
            "memory" => self.memory = quantity.value().max(0),
            "ephemeral-storage" => self.ephemeral_storage = quantity.value().max(0),
            "pods" => {}
            _ => self.put(name, quantity.value().max(0)),
        }
    }

    /// A name goes with its amount: whoever writes Pods chooses the names, and Pods come and go.
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
    /// `other` with what there is here of the resources that it names.
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

    /// Whether a sum did not fit: what was added to it cannot be taken off again.
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

/// What a node can give to Pods, and how many Pods it takes.
pub fn allocatable(node: &Node) -> (Amounts, i64) {
    let map = node.status.as_ref().and_then(|s| s.allocatable.as_ref().or(s.capacity.as_ref()));
    let pods = map.and_then(|m| m.get("pods")).and_then(|q| q.0.parse::<Quantity>().ok());
    (Amounts::from_map(map), pods.map_or(0, |q| q.value()))
}

/// What a Pod requests: the larger of what its containers and sidecars need together and what its init containers need
/// one after the other (beside the sidecars started before them); or what it requests as a whole; plus overhead.
pub fn requests(pod: &Pod) -> Amounts {
    sum(pod, request, whole_requests(pod))
}

/// What a Pod takes of its node: what it requests, or more as long as its containers still have more, or were promised it,
/// than they request by now. A request that its node cannot ever fulfil does not count.
pub fn held(pod: &Pod) -> Amounts {
    let statuses = statuses(pod);
    sum(pod, |container| held_by(pod, &statuses, container, request), whole_requests(pod))
}

/// Whether the Pod's node has said that it cannot ever give it what it requests now: a verdict on an older generation says
/// nothing of a newer wish. (Deletion counts as a generation too, and leaves the wish as it was.)
pub fn is_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| {
        let refused = c.type_ == "PodResizePending" && c.reason.as_deref() == Some("Infeasible");
        let judged = c.observed_generation >= pod.metadata.generation || pod.metadata.deletion_timestamp.is_some();
        refused && judged
    })
}

/// What a container holds; `requested` is what it requests.
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
    // Mostly all three are the same.
    if [promised, has].into_iter().flatten().all(|told| own == Some(told)) {
        return requested(container);
    }
    let mut amounts = if is_infeasible(pod) { Amounts::default() } else { requested(container) };
    for told in [promised, has] {
        amounts.raise_to(&Amounts::from_map(told));
    }
    amounts
}

/// The statuses of a Pod's containers by their names, the first of each.
fn statuses(pod: &Pod) -> HashMap<&str, &ContainerStatus> {
    let lists = pod.status.iter().flat_map(|s| s.container_statuses.iter().chain(&s.init_container_statuses));
    let mut known = HashMap::new();
    for status in lists.flatten() {
        known.entry(&*status.name).or_insert(status);
    }
    known
}

/// What a Pod's limits allow, summed likewise. A resource that a container does not limit counts as none there.
pub fn limits(pod: &Pod) -> Amounts {
    let of = |container: &Container| Amounts::from_map(container.resources.as_ref().and_then(|r| r.limits.as_ref()));
    sum(pod, of, pod.spec.as_ref().and_then(|s| s.resources.as_ref()?.limits.as_ref()))
}

fn whole_requests(pod: &Pod) -> Option<&Quantities> {
    pod.spec.as_ref()?.resources.as_ref()?.requests.as_ref()
}

/// [`held`], with upstream's assumptions for containers that name nothing: 100m CPU and 200 MiB. For scores alone.
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

/// A limit without a request is a request too. (Defaulting says so already, but static Pods have not been through it.)
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

/// `whole`: what is said of the Pod as a whole, which stands above the sum.
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
            // What it does not name is no more than what runs in the end: all sidecars do.
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
