//! QoS classes, requests and limits of Pods, and the resulting cgroup settings and OOM scores.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod},
    apimachinery::pkg::api::resource::Quantity,
};

use super::spec::{PodExt, Role, is_critical};
use podwright_api::{
    pod::COUNTED,
    pod_resources::{self, Amounts},
    quantity,
};

type Resources = BTreeMap<String, Quantity>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Class {
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Guaranteed => "Guaranteed",
            Class::Burstable => "Burstable",
            Class::BestEffort => "BestEffort",
        }
    }
}

/// A quantity in thousandths of its unit; an unparsable one counts as zero (the server has rejected it).
pub fn millis(q: &Quantity) -> i64 {
    q.0.parse::<quantity::Quantity>().map_or(0, |q| q.millis())
}

/// A quantity in whole units, rounded up.
pub fn units(q: &Quantity) -> i64 {
    q.0.parse::<quantity::Quantity>().map_or(0, |q| q.value())
}

pub fn limit<'a>(container: &'a Container, resource: &str) -> Option<&'a Quantity> {
    container.resources.as_ref()?.limits.as_ref()?.get(resource)
}

/// A container's request, or its limit without one.
pub fn request<'a>(container: &'a Container, resource: &str) -> Option<&'a Quantity> {
    let own = container.resources.as_ref().and_then(|r| r.requests.as_ref()).and_then(|r| r.get(resource));
    own.or_else(|| limit(container, resource))
}

/// Upstream's `ComputePodQOS`: considers only cpu and memory.
pub fn class(pod: &Pod) -> Class {
    let (mut any, mut guaranteed) = (false, true);
    let pod_level = pod.spec().resources.as_ref();
    let counts = |named: &Resources| COUNTED.iter().any(|name| named.contains_key(*name));
    let sets: Vec<(Option<&Resources>, Option<&Resources>)> = match pod_level {
        Some(r) if [&r.limits, &r.requests].into_iter().flatten().any(counts) => {
            vec![(r.requests.as_ref(), r.limits.as_ref())]
        }
        _ => {
            let spec = pod.spec();
            let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
            containers
                .map(|c| {
                    let r = c.resources.as_ref();
                    (r.and_then(|r| r.requests.as_ref()), r.and_then(|r| r.limits.as_ref()))
                })
                .collect()
        }
    };
    for (requests, limits) in sets {
        for resource in COUNTED {
            let get = |of: Option<&Resources>| of.and_then(|r| r.get(resource)).map(millis).filter(|v| *v != 0);
            let (request, limit) = (get(requests), get(limits));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && (request.is_none() || request == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => Class::BestEffort,
        (true, true) => Class::Guaranteed,
        (true, false) => Class::Burstable,
    }
}

/// A Pod's total request of a resource, in thousandths.
pub fn pod_request(pod: &Pod, resource: &str) -> i64 {
    thousandths(&pod_resources::requests(pod), resource)
}

/// A Pod's total limit of a resource, in thousandths; `None` if the Pod and any container have none.
pub fn pod_limit(pod: &Pod, resource: &str) -> Option<i64> {
    let whole = pod.spec().resources.as_ref().and_then(|r| r.limits.as_ref());
    let bounded = whole.is_some_and(|limits| limits.contains_key(resource))
        || pod.parts().iter().filter(|p| p.role != Role::Ephemeral).all(|p| limit(&p.container, resource).is_some());
    bounded.then(|| thousandths(&pod_resources::limits(pod), resource))
}

fn thousandths(amounts: &Amounts, resource: &str) -> i64 {
    let amount = amounts.get(resource);
    if resource == "cpu" { amount } else { amount.saturating_mul(1000) }
}

/// Upstream's `GetContainerOOMScoreAdjust`, without critical Pods; `capacity` is the node's memory in bytes.
pub fn oom_score_adj(pod: &Pod, container: &Container, capacity: i64) -> i64 {
    if is_critical(pod) {
        return -997;
    }
    match class(pod) {
        Class::Guaranteed => -997,
        Class::BestEffort => 1000,
        Class::Burstable => {
            let request = request(container, "memory").map_or(0, units);
            let adjust = 1000 - request.saturating_mul(1000) / capacity.max(1);
            adjust.clamp(3, 999)
        }
    }
}

/// cpu.weight of a number of milli-CPUs: converted to shares first, then by runc's formula to a weight.
pub fn cpu_weight(millis: i64) -> u64 {
    let shares = (millis.saturating_mul(1024) / 1000).clamp(2, 262_144) as u64;
    1 + ((shares - 2) * 9999) / 262_142
}

/// cpu.max quota in microseconds per 100 ms; at least 1 ms, as upstream.
pub fn cpu_quota(millis: i64) -> Option<u64> {
    /// The kernel rejects more (`MAX_BW` of kernel/sched/sched.h).
    const MOST: u64 = (1 << 44) - 1;
    (millis > 0).then(|| (millis as u64).saturating_mul(100).clamp(1000, MOST))
}
