//! Nodes, what is put on them and taken off, and who may decide on it.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::util::intstr::IntOrString};
use podwright::{client::Key, controllers::meta};

use super::super::{
    past::is_evicted,
    world::{Step, World},
};

/// Whether nobody but evictions has taken a Pod of these away since the last rest.
fn is_calm(world: &World, pods: &[&Pod]) -> bool {
    let calm = |uid: String| {
        let changed = world.past.bounds.get(&Some(uid.clone())).is_some_and(|bounds| bounds.changed);
        !changed && !world.past.preempted.contains(&uid)
    };
    !world.past.disturbed && pods.iter().filter_map(|pod| world.workload(pod)).all(calm)
}

pub fn budget(world: &World, step: &Step) -> Option<String> {
    let Step::Pod(change) = step else { return None };
    let gone = change.deleted().filter(|_| change.new.as_deref().is_some_and(is_evicted))?;
    // One that has not begun may always go; one that is not ready, where there are enough others (IfHealthyBudget).
    let counts = meta::is_active(gone) && meta::phase(gone) == "Running";
    for (key, budget) in world.budgets.all().filter(|(key, _)| key.namespace == change.key.namespace) {
        let spec = budget.spec.clone().unwrap_or_default();
        let Some(selector) = spec.selector.as_ref().and_then(meta::selector) else { continue };
        let pods = world.pods.all().map(|(_, pod)| &**pod);
        let pods: Vec<&Pod> = pods
            .filter(|pod| pod.metadata.namespace == gone.metadata.namespace && meta::matches(&selector, &pod.metadata))
            .collect();
        if !counts || !meta::matches(&selector, &gone.metadata) || !is_calm(world, &pods) {
            continue;
        }
        let healthy = pods.iter().filter(|pod| world.lately(pod)).count() as i32;
        let wanted = match spec.min_available {
            Some(IntOrString::Int(least)) => least,
            _ => budget.status.as_ref().map_or(0, |status| status.desired_healthy),
        };
        if healthy < wanted {
            return Some(format!("{} is evicted, {healthy} are left of the {wanted} of {key}", change.key));
        }
    }
    None
}

pub fn placed_once(_: &World, step: &Step) -> Option<String> {
    let Step::Pod(change) = step else { return None };
    let (old, new) = (meta::node_name(change.old.as_deref()?)?, change.new.as_deref().map(meta::node_name)?);
    (new != Some(old)).then(|| format!("{} was on {old}, is on {new:?}", change.key))
}

pub fn leads(world: &World, step: &Step) -> Option<String> {
    let Step::Writes { part, plane } = step else { return None };
    let lease = world.leases.get(&Key::new("kube-system", *part));
    let holder = lease.and_then(|lease| lease.spec.as_ref()?.holder_identity.clone()).unwrap_or_default();
    (holder != *plane).then(|| format!("{part} of {plane} writes while {holder:?} leads"))
}

pub fn one_leads(world: &World, step: &Step) -> Option<String> {
    let Step::Leads { part, plane } = step else { return None };
    let other = world.past.leading.get(part).filter(|other| *other != plane)?;
    Some(format!("the loops of {part} begin in {plane}, and run in {other}"))
}

/// Every node has a range of its own, and its taints are those of its health.
pub fn nodes(world: &World) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut ranges: BTreeMap<&str, &str> = BTreeMap::new();
    for (key, node) in world.nodes.all() {
        let spec = node.spec.as_ref();
        match spec.and_then(|spec| spec.pod_cidr.as_deref()) {
            None => wrong.push(format!("{key} has no podCIDR")),
            Some(range) => {
                if let Some(other) = ranges.insert(range, &key.name) {
                    wrong.push(format!("{key} and {other} both have {range}"));
                }
            }
        }
        let taints: Vec<_> = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten().map(|t| &t.key).collect();
        if !world.past.lost.contains(&key.name) && !taints.is_empty() {
            wrong.push(format!("{key} is well, but has {taints:?}"));
        }
    }
    wrong
}
