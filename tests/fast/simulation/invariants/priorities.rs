//! Priorities: for whom a Pod may have to go.

use podwright::controllers::meta;

use super::super::{
    past::{Known, LAG},
    world::{Step, World},
};

/// The scheduler takes a Pod away only where a more important one waits, or did a moment ago, that others may go for.
pub fn for_somebody(world: &World, step: &Step) -> Option<String> {
    let Step::Preempts { pod, uid } = step else { return None };
    let victim = world.pods.get(pod).filter(|pod| uid.is_none() || pod.metadata.uid == *uid)?;
    let priority = world.past.known.get(victim.metadata.uid.as_deref()?)?.priority;
    let waits = |known: &Known| known.waited.is_none_or(|until| world.now.duration_since(until).abs() <= LAG);
    let is_it = |known: &Known| known.preempts && known.priority > priority && waits(known);
    let told = || format!("{pod} of priority {priority} has to go, and nobody more important waits");
    (!world.past.known.values().any(is_it)).then(told)
}

/// What it tells of it is so.
pub fn lesser(world: &World, step: &Step) -> Option<String> {
    let Step::Preempted { victim, by, node } = step else { return None };
    let known = |uid: &String| world.past.known.get(uid);
    let (Some(gone), Some(came)) = (known(victim), known(by)) else {
        return Some(format!("{victim} had to go for {by}, which never was"));
    };
    // One whose binding was on its way has never had the node.
    let was_there = gone.node.as_ref().is_none_or(|known| known == node);
    let is_right = gone.priority < came.priority && came.preempts && was_there;
    (!is_right).then(|| format!("{victim}, {gone:?}, had to leave {node} for {by}, {came:?}"))
}

/// No room is kept free for anybody.
pub fn nominated(world: &World) -> Vec<String> {
    let told = world.pods.all().filter_map(|(key, pod)| {
        let node = pod.status.as_ref()?.nominated_node_name.as_deref().filter(|node| !node.is_empty())?;
        (!meta::is_finished(pod)).then(|| format!("{key} is to come to {node}"))
    });
    told.collect()
}
