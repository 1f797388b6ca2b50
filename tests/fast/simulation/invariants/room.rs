//! Room: what Pods ask nodes for, and whether there is any.

use k8s_openapi::api::core::v1::{Node, Pod};
use podwright::{
    api::Quantity,
    client::Key,
    controllers::{daemon_set::nodes, meta},
};

use super::super::world::{Step, World};

/// What nodes have of which Pods take.
const RESOURCES: [&str; 3] = ["cpu", "memory", "pods"];

fn millis(text: &str) -> i64 {
    text.parse::<Quantity>().map_or(0, |quantity| quantity.millis())
}

/// Thousandths of a resource that a Pod takes.
fn asked(pod: &Pod, resource: &str) -> i64 {
    if resource == "pods" {
        return 1000;
    }
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let asked = containers.filter_map(|c| Some(c.resources.as_ref()?.requests.as_ref()?.get(resource)?.0.clone()));
    asked.map(|text| millis(&text)).sum()
}

/// Of what these Pods take more than the node has.
fn exceeded(node: &Node, pods: &[&Pod]) -> Option<String> {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref())?;
    let mut all = RESOURCES.iter().filter_map(|resource| {
        let has = millis(&allocatable.get(*resource)?.0);
        Some((resource, has, pods.iter().map(|pod| asked(pod, resource)).sum::<i64>()))
    });
    let (resource, has, taken) = all.find(|(_, has, taken)| taken > has)?;
    Some(format!("{} have {taken} of {has} thousandths of {resource}", pods.len()))
}

/// Those that have a place on a node.
fn on<'w>(world: &'w World, node: &str) -> impl Iterator<Item = &'w Pod> {
    let pods = world.pods.all().map(|(_, pod)| &**pod);
    pods.filter(move |pod| meta::node_name(pod) == Some(node) && !meta::is_finished(pod))
}

pub fn room(world: &World, step: &Step) -> Option<String> {
    let Step::Pod(change) = step else { return None };
    let name = meta::node_name(change.new.as_deref()?)?;
    if change.old.as_deref().is_some_and(|old| meta::node_name(old).is_some()) {
        return None;
    }
    let here: Vec<&Pod> = on(world, name).collect();
    let why = exceeded(world.nodes.get(&Key::new("", name))?, &here)?;
    Some(format!("{} comes to {name}: {why}", change.key))
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
}

/// Whether there is no place for a Pod that waits for one, not even if all had to go that may have to go for it.
pub fn is_stuck(world: &World, pod: &Pod) -> bool {
    if meta::node_name(pod).is_some() || !meta::is_active(pod) {
        return false;
    }
    let preempts = pod.spec.as_ref().and_then(|spec| spec.preemption_policy.as_deref()) != Some("Never");
    let stays = |other: &&Pod| !preempts || priority(other) >= priority(pod);
    let target = nodes::target(pod);
    let mut places = world.nodes.all().filter(|(node, _)| target.is_none_or(|target| node.name == target));
    places.all(|(key, node)| {
        let all: Vec<&Pod> = on(world, &key.name).filter(stays).chain([pod]).collect();
        exceeded(node, &all).is_some()
    })
}

/// Whether a workload waits for room.
pub fn lacks(world: &World, workload: &Option<String>) -> bool {
    world.pods_of(workload).any(|pod| is_stuck(world, pod))
}

/// Who waits for a node though there is one for it, or there would be one if lesser ones went; and who does not tell.
pub fn waits(world: &World) -> Vec<String> {
    let mut wrong = Vec::new();
    let waiting = world.pods.all().filter(|(_, pod)| meta::is_active(pod) && meta::node_name(pod).is_none());
    for (key, pod) in waiting {
        if !is_stuck(world, pod) {
            wrong.push(format!("{key} waits, though there is room for it"));
        }
        let told = meta::pod_condition(pod, "PodScheduled");
        if told.is_none_or(|told| told.status != "False" || told.reason.as_deref() != Some("Unschedulable")) {
            wrong.push(format!("{key} does not tell that it waits: {told:?}"));
        }
    }
    wrong
}
