//! What must hold, as one table: at every step of a history, or whenever everything has come to rest.
//!
//! Each row is a pure function of the [`World`] after a step. `proofs.rs` breaks each of them once.

mod autoscalers;
pub mod bounds;
mod deployments;
mod jobs;
mod objects;
mod places;
mod priorities;
mod proofs;
pub mod room;
mod sets;
mod told;

use super::world::{Step, World};

/// One row.
pub struct Invariant {
    pub name: &'static str,
    pub check: Check,
}

/// When a row is looked at. It tells what is wrong.
pub enum Check {
    /// After every step.
    Always(fn(&World, &Step) -> Option<String>),
    /// When nothing moves any more. Until then it says what there still is to wait for.
    AtRest(fn(&World) -> Vec<String>),
}

use Check::{Always, AtRest};

const fn row(name: &'static str, check: Check) -> Invariant {
    Invariant { name, check }
}

/// The table.
pub static INVARIANTS: &[Invariant] = &[
    row("a Deployment never has more than maxSurge Pods too many", Always(deployments::surge)),
    row("a Deployment never has more than maxUnavailable Pods too few", Always(deployments::available)),
    row("Recreate has no Pods of two kinds at once", Always(deployments::recreate)),
    row("a Deployment is as wished", AtRest(deployments::settled)),
    row("a Deployment tells how it is", AtRest(deployments::told)),
    row("old ReplicaSets are forgotten", AtRest(deployments::history)),
    row("a ReplicationController is as wished", AtRest(deployments::replication)),
    row("a StatefulSet keeps its order", Always(sets::order)),
    row("a Pod's containers run once", Always(sets::runs_once)),
    row("a StatefulSet's Pod has its claims", Always(sets::claims)),
    row("a claim stays if it shall be kept", Always(sets::keeps_claims)),
    row("a StatefulSet is as wished", AtRest(sets::settled)),
    row("claims that shall go are gone", AtRest(sets::claims_go)),
    row("a DaemonSet has one Pod a node", Always(sets::one_a_node)),
    row("a DaemonSet is on every node", AtRest(sets::everywhere)),
    row("a Job never runs more Pods than its parallelism", Always(jobs::parallelism)),
    row("an index is worked on once at a time", Always(jobs::index)),
    row("a Job counts what has happened, and never less", Always(jobs::counts)),
    row("a finished Job's Pods are let go", AtRest(jobs::let_go)),
    row("a CronJob starts one Job for one time", Always(jobs::one_for_a_time)),
    row("a CronJob starts when it is due", Always(jobs::due)),
    row("Forbid never has two Jobs", Always(jobs::forbid)),
    row("Replace lets the old one go first", Always(jobs::replace)),
    row("a suspended CronJob starts nothing", Always(jobs::suspended)),
    row("a CronJob keeps no more history than it shall", AtRest(jobs::history)),
    row("an autoscaler keeps to its bounds", Always(autoscalers::within)),
    row("an autoscaler goes no faster than it may", Always(autoscalers::pace)),
    row("an autoscaler lets rest what is as it shall be", Always(autoscalers::leaves_alone)),
    row("a load has the Pods that it needs", AtRest(autoscalers::settled)),
    row("an eviction never violates a budget", Always(places::budget)),
    row("a Pod stays on its node", Always(places::placed_once)),
    row("a node has room for what it is given", Always(room::room)),
    row("who waits for a node lacks room", AtRest(room::waits)),
    row("a Pod has to go only where a more important one waits", Always(priorities::for_somebody)),
    row("a Pod has to go only for a more important one", Always(priorities::lesser)),
    row("no room is kept free", AtRest(priorities::nominated)),
    row("who does not lead does not write", Always(places::leads)),
    row("of each part one runs", Always(places::one_leads)),
    row("a node has what is its own", AtRest(places::nodes)),
    row("nobody outlives its owners", AtRest(objects::orphans)),
    row("who is deleted goes", AtRest(objects::going)),
    row("a namespace goes with all that is in it", AtRest(objects::namespaces)),
    row("addresses are Services'", AtRest(objects::addresses)),
    row("ready Pods are endpoints", AtRest(objects::endpoints)),
];

/// What a step violates.
pub fn after(world: &World, step: &Step) -> Vec<String> {
    let check = |row: &Invariant| match row.check {
        Always(check) => check(world, step).map(|why| format!("{}: {why}", row.name)),
        AtRest(_) => None,
    };
    INVARIANTS.iter().filter_map(check).collect()
}

/// What is not as it must be at rest.
pub fn at_rest(world: &World) -> Vec<String> {
    let check = |row: &Invariant| match row.check {
        AtRest(check) => check(world).into_iter().map(|why| format!("{}: {why}", row.name)).collect(),
        Always(_) => Vec::new(),
    };
    INVARIANTS.iter().flat_map(check).collect()
}
