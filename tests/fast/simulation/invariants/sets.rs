//! StatefulSets and DaemonSets: order, places and claims.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, StatefulSet},
    core::v1::Pod,
};
use podwright::{
    client::Key,
    controllers::{daemon_set::nodes, meta},
};

use super::{
    super::world::{Step, World},
    room,
};

fn is_well(pod: &Pod) -> bool {
    meta::is_active(pod) && meta::is_ready(pod)
}

/// A Pod's StatefulSet and its number there.
fn member<'w>(world: &'w World, pod: &Pod) -> Option<(&'w Arc<StatefulSet>, i32)> {
    let owner = meta::controller(&pod.metadata).filter(|owner| owner.kind == "StatefulSet")?;
    let set = world.stateful_sets.get(&Key::new(meta::namespace(&pod.metadata), &owner.name))?;
    let ordinal = meta::name(&pod.metadata).strip_prefix(&format!("{}-", owner.name))?.parse().ok()?;
    (set.metadata.uid.as_ref() == Some(&owner.uid)).then_some((set, ordinal))
}

/// None is made, or deleted, before all those below it that there shall be are well.
pub fn order(world: &World, step: &Step) -> Option<String> {
    let Step::Pod(change) = step else { return None };
    let (pod, what) = match (change.made(), change.deleted()) {
        (Some(made), _) => (made, "made"),
        (None, deleted) => (deleted?, "deleted"),
    };
    let (set, at) = member(world, pod)?;
    let spec = set.spec.as_ref()?;
    let bounds = world.past.bounds.get(&set.metadata.uid)?;
    let is_its = |taken: &BTreeSet<String>| set.metadata.uid.as_ref().is_some_and(|uid| taken.contains(uid));
    if world.past.disturbed
        || is_its(&world.past.evicted)
        || is_its(&world.past.preempted)
        || spec.pod_management_policy.as_deref() == Some("Parallel")
        || meta::is_terminating(&set.metadata)
    {
        return None;
    }
    let below = if what == "made" { at } else { at.min(bounds.fewest) };
    let name =
        |ordinal: i32| Key::new(change.key.namespace.clone(), format!("{}-{ordinal}", meta::name(&set.metadata)));
    let unwell: Vec<i32> =
        (0..below).filter(|n| !world.pods.get(&name(*n)).is_some_and(|pod| world.lately(pod))).collect();
    (!unwell.is_empty()).then(|| format!("{} is {what} before {unwell:?} are well", change.key))
}

/// The promise of a StatefulSet: of one name one runs, also where nodes are lost.
pub fn runs_once(world: &World, step: &Step) -> Option<String> {
    let Step::Runs { pod, uid, node } = step else { return None };
    let (_, (_, other)) = world.past.running.iter().find(|(known, (name, _))| *known != uid && name == pod)?;
    Some(format!("{pod} starts on {node}, and runs on {other}"))
}

fn claims_of(set: &StatefulSet) -> impl Iterator<Item = &str> {
    let templates = set.spec.iter().flat_map(|spec| spec.volume_claim_templates.iter().flatten());
    templates.map(|template| meta::name(&template.metadata))
}

pub fn claims(world: &World, step: &Step) -> Option<String> {
    let Step::Pod(change) = step else { return None };
    let (set, _) = member(world, change.made()?)?;
    let claim = |template: &str| Key::new(change.key.namespace.clone(), format!("{template}-{}", change.key.name));
    let missing = claims_of(set).map(claim).find(|key| world.claims.get(key).is_none())?;
    Some(format!("{} is made before {missing}", change.key))
}

/// The StatefulSet that a claim was made for, if there still is one, and the claim's ordinal there.
fn holder<'w>(world: &'w World, key: &Key) -> Option<(&'w Arc<StatefulSet>, i32)> {
    let within = world.stateful_sets.all().filter(|(set, _)| set.namespace == key.namespace);
    within.into_iter().find_map(|(of, set)| {
        let ordinal = claims_of(set).find_map(|t| key.name.strip_prefix(&format!("{t}-{}-", of.name))?.parse().ok())?;
        Some((set, ordinal))
    })
}

/// Whether claims are deleted when their set becomes smaller.
fn deletes(set: &StatefulSet) -> bool {
    let policy = set.spec.as_ref().and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
    policy.is_some_and(|policy| policy.when_scaled.as_deref() == Some("Delete"))
}

pub fn keeps_claims(world: &World, step: &Step) -> Option<String> {
    let Step::Claim(change) = step else { return None };
    let gone = change.deleted()?;
    let namespace = world.all.get(&("namespaces".to_owned(), Key::new("", &change.key.namespace)))?;
    holder(world, &change.key).filter(|_| !meta::is_terminating(&namespace.metadata))?;
    // Whom it shall go with is noted in it as its owner.
    let owners = gone.metadata.owner_references.iter().flatten();
    let mut stays = owners.filter_map(|owner| world.all.values().find(|o| o.metadata.uid.as_ref() == Some(&owner.uid)));
    let is_owned = gone.metadata.owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
    let may = is_owned && stays.all(|owner| meta::is_terminating(&owner.metadata));
    (!may).then(|| format!("{} is deleted, though its set is there", change.key))
}

pub fn settled(world: &World) -> Vec<String> {
    let check = |(key, set): (&Key, &Arc<StatefulSet>)| {
        let replicas = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let status = set.status.clone().unwrap_or_default();
        let right = |pod: &Arc<Pod>| {
            let revision = pod.metadata.labels.as_ref().and_then(|labels| labels.get("controller-revision-hash"));
            is_well(pod) && revision == status.update_revision.as_ref()
        };
        let pods: Vec<_> = world.pods.owned(&set.metadata.uid).collect();
        let names: BTreeSet<i32> = pods.iter().filter_map(|pod| Some(member(world, pod)?.1)).collect();
        let counts = [Some(status.replicas), status.updated_replicas, status.ready_replicas, status.available_replicas];
        let limit = set.spec.as_ref().and_then(|spec| spec.revision_history_limit).unwrap_or(10);
        let is_seen = status.observed_generation == set.metadata.generation;
        let is_it = names == (0..replicas).collect()
            && pods.len() == names.len()
            && pods.iter().all(|pod| right(pod))
            && counts.iter().all(|count| count.unwrap_or(0) == replicas)
            && is_seen
            && status.current_revision == status.update_revision
            && world.revisions.owned(&set.metadata.uid).count() as i32 <= limit + 1;
        let is_short = is_seen && room::lacks(world, &set.metadata.uid);
        (!is_it && !is_short).then(|| format!("{key}: {replicas} are wished, there are {names:?}: {status:?}"))
    };
    world.stateful_sets.all().filter_map(check).collect()
}

/// Which claims are too many: those that nobody but a deleted set or ordinal had, where these were to take them along.
pub fn claims_go(world: &World) -> Vec<String> {
    let surplus = |(key, _): &(&Key, _)| {
        holder(world, key).is_some_and(|(set, ordinal)| {
            let replicas = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
            // One that waits for its Pods makes, and takes, no others.
            deletes(set) && ordinal >= replicas && !room::lacks(world, &set.metadata.uid)
        })
    };
    world.claims.all().filter(surplus).map(|(key, _)| format!("{key} is left")).collect()
}

pub fn one_a_node(world: &World, step: &Step) -> Option<String> {
    let Step::Pod(change) = step else { return None };
    let made = change.made()?;
    let owner = meta::controller(&made.metadata).filter(|owner| owner.kind == "DaemonSet")?;
    let node = nodes::target(made)?;
    let uid = Some(owner.uid.clone());
    let (bounds, here) = (world.past.bounds.get(&uid)?, world.pods.owned(&uid));
    let here = here.filter(|pod| meta::is_active(pod) && nodes::target(pod) == Some(node)).count() as i32;
    (here > bounds.most).then(|| format!("{} is the {here}th on {node}", change.key))
}

pub fn everywhere(world: &World) -> Vec<String> {
    let check = |(key, set): (&Key, &Arc<DaemonSet>)| {
        let image = |pod: &Pod| pod.spec.as_ref().map(|spec| spec.containers[0].image.clone());
        let wanted = set.spec.as_ref()?.template.spec.as_ref().map(|spec| spec.containers[0].image.clone());
        let mut places: BTreeMap<&str, usize> = world.nodes.all().map(|(node, _)| (node.name.as_str(), 0)).collect();
        let number = places.len() as i32;
        for pod in world.pods.owned(&set.metadata.uid).filter(|pod| is_well(pod) && image(pod) == wanted) {
            *places.entry(meta::node_name(pod).unwrap_or("nowhere")).or_default() += 1;
        }
        let status = set.status.clone().unwrap_or_default();
        let is_seen = status.observed_generation == set.metadata.generation;
        let is_it = places.values().all(|count| *count == 1)
            && world.pods.owned(&set.metadata.uid).count() == places.len()
            && is_seen
            && (status.desired_number_scheduled, status.current_number_scheduled) == (number, number)
            && (status.updated_number_scheduled, status.number_available) == (Some(number), Some(number));
        let is_short = is_seen && room::lacks(world, &set.metadata.uid);
        (!is_it && !is_short).then(|| format!("{key}: there are {places:?}: {status:?}"))
    };
    let waits = !world.past.lost.is_empty();
    world.daemon_sets.all().filter(|_| !waits).filter_map(check).collect()
}
