//! Objects of any kind: owners, deletion, namespaces; and what Services hold.

use std::collections::BTreeSet;

use podwright::{client::Key, controllers::meta};

use super::super::world::World;

type Uids = BTreeSet<Option<String>>;

/// Whether an object is where nothing can be done about it: on a node that is lost.
fn is_stuck(world: &World, key: &(String, Key)) -> bool {
    let pod = world.pods.get(&key.1).filter(|_| key.0 == "pods");
    pod.and_then(|pod| meta::node_name(pod)).is_some_and(|node| world.past.lost.contains(node))
}

pub fn orphans(world: &World) -> Vec<String> {
    let uids: Uids = world.all.values().map(|object| object.metadata.uid.clone()).collect();
    let mut wrong = Vec::new();
    for ((resource, key), object) in &world.all {
        let owners = object.metadata.owner_references.iter().flatten();
        let gone: Vec<_> = owners.filter(|owner| !uids.contains(&Some(owner.uid.clone()))).collect();
        if !gone.is_empty() && !is_stuck(world, &(resource.clone(), key.clone())) {
            wrong.push(format!("{resource} {key} has outlived {} {}", gone[0].kind, gone[0].name));
        }
    }
    wrong
}

pub fn going(world: &World) -> Vec<String> {
    let going = world.all.iter().filter(|(_, object)| meta::is_terminating(&object.metadata));
    let told = going.filter(|(key, _)| world.past.lost.is_empty() || !is_stuck(world, key));
    told.map(|((resource, key), object)| format!("{resource} {key}: {:?}", object.metadata.finalizers)).collect()
}

pub fn namespaces(world: &World) -> Vec<String> {
    let known = |namespace: &str| world.all.contains_key(&("namespaces".to_owned(), Key::new("", namespace)));
    let left = world.all.keys().filter(|(_, key)| !key.namespace.is_empty() && !known(&key.namespace));
    let mut wrong: Vec<String> = left.map(|(resource, key)| format!("{resource} {key} is left")).collect();
    for (resource, key) in world.all.keys().filter(|(resource, _)| resource == "namespaces") {
        if !world.all.contains_key(&("serviceaccounts".to_owned(), Key::new(&key.name, "default"))) {
            wrong.push(format!("{resource} {key} has no default ServiceAccount"));
        }
    }
    wrong
}

/// Addresses and ports are allocated to Services that are there.
pub fn addresses(world: &World) -> Vec<String> {
    let mut held = BTreeSet::new();
    for (_, service) in world.services.all() {
        let spec = service.spec.clone().unwrap_or_default();
        let ips = spec.cluster_ips.into_iter().flatten().filter(|ip| ip != "None");
        held.extend(ips.map(|ip| format!("serviceips/{ip}")));
        let ports = spec.ports.into_iter().flatten().filter_map(|port| port.node_port);
        held.extend(ports.map(|port| format!("servicenodeports/{port}")));
    }
    let known: BTreeSet<String> = world.ranges.keys().cloned().collect();
    let leaked = known.difference(&held).map(|range| format!("{range} is nobody's"));
    leaked.chain(held.difference(&known).map(|range| format!("{range} is not noted"))).collect()
}

pub fn endpoints(world: &World) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, service) in world.services.all() {
        let Some(selector) = service.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else { continue };
        let selects = |labels: &std::collections::BTreeMap<String, String>| {
            selector.iter().all(|(name, value)| labels.get(name) == Some(value))
        };
        let within = world.pods.all().filter(|(pod, _)| pod.namespace == key.namespace).map(|(_, pod)| pod);
        let ready = within.filter(|pod| {
            meta::is_active(pod) && meta::is_ready(pod) && pod.metadata.labels.as_ref().is_some_and(selects)
        });
        let ready: Uids = ready.map(|pod| pod.metadata.uid.clone()).collect();
        let is_its = |labels: &Option<std::collections::BTreeMap<String, String>>| {
            labels.as_ref().and_then(|labels| labels.get("kubernetes.io/service-name")) == Some(&key.name)
        };
        let slices = world.slices.all().filter(|(slice, _)| slice.namespace == key.namespace);
        let told = slices.filter(|(_, slice)| is_its(&slice.metadata.labels)).flat_map(|(_, slice)| &slice.endpoints);
        let told = told.filter(|e| e.conditions.as_ref().is_some_and(|c| c.ready == Some(true)));
        let told: Vec<_> = told.map(|e| e.target_ref.as_ref().and_then(|target| target.uid.clone())).collect();
        if told.iter().cloned().collect::<Uids>() != ready || told.len() != ready.len() {
            wrong.push(format!("{key}: {} Pods are ready, {} endpoints", ready.len(), told.len()));
        }
        let older = world.endpoints.get(key).into_iter().flat_map(|older| older.subsets.iter().flatten());
        let older = older.flat_map(|subset| subset.addresses.iter().flatten());
        let older: Uids = older.map(|a| a.target_ref.as_ref().and_then(|target| target.uid.clone())).collect();
        if older != ready {
            wrong.push(format!("{key}: {} Pods are ready, {} are in the Endpoints", ready.len(), older.len()));
        }
    }
    wrong
}
