//! What is written to a Pod's cgroups when its resources change, and in which order.

use k8s_openapi::api::core::v1::ResourceRequirements;
use podwright_runtime::Resources;

/// Settings that are written together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Memory,
    CpuLimit,
    CpuRequest,
    /// Both CPU settings.
    Cpu,
}

/// A write to the Pod's own cgroup (`None`), or to that of the named container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub container: Option<String>,
    pub of: Of,
    pub resources: Resources,
}

/// The current and target settings of a cgroup.
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
    /// The values to compare: no limit is the highest.
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
        // Sorted by the limit if it changes, else by the request.
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

/// Why memory limits cannot be lowered now: usage is higher. (Only a check, no guarantee: usage keeps changing.) Usage is in bytes;
/// `None`: unknown, because this host does not limit memory.
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

/// `had` with the written part of `given`.
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
