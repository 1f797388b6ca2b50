//! Nodes, what is put on them and taken off, and who may decide on it.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::util::intstr::IntOrString};
use podwright::{api::Quantity, client::Key, controllers::meta};

use super::super::world::{Step, World, is_evicted};

/// Whether nobody but evictions has taken a Pod of these away since the last rest.
fn is_calm(world: &World, pods: &[&Pod]) -> bool {
    let calm = |uid: &String| world.past.bounds.get(&Some(uid.clone())).is_none_or(|bounds| !bounds.changed);
    let owners = pods.iter().filter_map(|pod| meta::controller(&pod.metadata));
    let above = |owner: &str| {
        let (_, set) = world.replica_sets.all().find(|(_, set)| set.metadata.uid.as_deref() == Some(owner))?;
        meta::controller(&set.metadata).map(|above| above.uid.clone())
    };
    let mut owners = owners.map(|owner| above(&owner.uid).unwrap_or_else(|| owner.uid.clone()));
    !world.past.disturbed && owners.all(|uid| calm(&uid))
}

pub fn budget(world: &World, step: &Step) -> Option<String> {
    let Step::Pod(change) = step else { return None };
    let gone = change.deleted().filter(|_| change.new.as_deref().is_some_and(is_evicted))?;
    // It may have been down already.
    let was_well = meta::is_active(gone) && meta::is_ready(gone);
    for (key, budget) in world.budgets.all().filter(|(key, _)| key.namespace == change.key.namespace) {
        let spec = budget.spec.clone().unwrap_or_default();
        let Some(selector) = spec.selector.as_ref().and_then(meta::selector) else { continue };
        let pods = world.pods.all().map(|(_, pod)| &**pod);
        let pods: Vec<&Pod> = pods
            .filter(|pod| pod.metadata.namespace == gone.metadata.namespace && meta::matches(&selector, &pod.metadata))
            .collect();
        if !was_well || !meta::matches(&selector, &gone.metadata) || !is_calm(world, &pods) {
            continue;
        }
        let healthy = pods.iter().filter(|pod| meta::is_active(pod) && meta::is_ready(pod)).count() as i32;
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

/// Thousandths of a CPU that a Pod asks for.
fn cpu(pod: &Pod) -> i64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let asked = containers.filter_map(|c| Some(c.resources.as_ref()?.requests.as_ref()?.get("cpu")?.0.clone()));
    asked.map(|text| millis(&text)).sum()
}

fn millis(text: &str) -> i64 {
    text.parse::<Quantity>().map_or(0, |quantity| quantity.millis())
}

pub fn room(world: &World, step: &Step) -> Option<String> {
    let Step::Pod(change) = step else { return None };
    let name = meta::node_name(change.new.as_deref()?)?;
    if change.old.as_deref().is_some_and(|old| meta::node_name(old).is_some()) {
        return None;
    }
    let node = world.nodes.get(&Key::new("", name))?;
    let allocatable = node.status.as_ref()?.allocatable.as_ref()?;
    let (cpus, pods) = (millis(&allocatable.get("cpu")?.0), millis(&allocatable.get("pods")?.0) / 1000);
    let here = || world.pods.all().map(|(_, pod)| pod).filter(|p| meta::node_name(p) == Some(name));
    let here = || here().filter(|pod| !meta::is_finished(pod));
    let (asked, count) = (here().map(|pod| cpu(pod)).sum::<i64>(), here().count() as i64);
    (asked > cpus || count > pods).then(|| {
        format!("{} is the {count}th on {name}, {asked} of {cpus} thousandths of a CPU are asked for", change.key)
    })
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
