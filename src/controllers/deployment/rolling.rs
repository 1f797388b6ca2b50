//! The arithmetic of rollouts: scaling up, scaling down, and proportional scaling.
//!
//! Upstream: `pkg/controller/deployment/{rolling,sync}.go` and `util/deployment_util.go`.

use k8s_openapi::{
    api::apps::v1::{Deployment, ReplicaSet},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{Rollout, Set, is_recreate, meta, replicas};

/// The Deployment's replicas, and the most Pods, when a ReplicaSet was last sized.
pub const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub const MOST: &str = "deployment.kubernetes.io/max-replicas";

/// Numbers or percentages of `of`: maxSurge rounded up, maxUnavailable rounded down; not both 0, or there would be no progress.
pub fn fenceposts(surge: Option<&IntOrString>, unavailable: Option<&IntOrString>, of: i32) -> (i32, i32) {
    let surge = resolve(surge, of, true);
    let unavailable = resolve(unavailable, of, false);
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
}

fn resolve(value: Option<&IntOrString>, of: i32, up: bool) -> i32 {
    match value {
        None => meta::share(25, of, up),
        // Validation refuses invalid percentages.
        Some(value) => meta::resolve(value, of, up).unwrap_or(0),
    }
}

fn limits(deployment: &Deployment) -> (i32, i32) {
    if is_recreate(deployment) {
        return (0, 0);
    }
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let (surge, unavailable) = rolling.map_or((None, None), |r| (r.max_surge.as_ref(), r.max_unavailable.as_ref()));
    fenceposts(surge, unavailable, replicas(deployment))
}

/// How many Pods are allowed beyond the replicas.
pub fn max_surge(deployment: &Deployment) -> i32 {
    limits(deployment).0
}

/// How many of the replicas may be unavailable.
pub fn max_unavailable(deployment: &Deployment) -> i32 {
    limits(deployment).1.min(replicas(deployment))
}

fn most(deployment: &Deployment) -> i32 {
    replicas(deployment).saturating_add(max_surge(deployment))
}

/// Annotates a ReplicaSet with what it is sized for.
pub fn annotate(set: &mut ReplicaSet, deployment: &Deployment) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(DESIRED.into(), replicas(deployment).to_string());
    annotations.insert(MOST.into(), most(deployment).to_string());
}

fn noted(set: &ReplicaSet, annotation: &str) -> Option<i32> {
    meta::annotation(&set.metadata, annotation)?.parse().ok()
}

/// The desired size of the current ReplicaSet, given the Pods of all and of itself now.
fn new_size(deployment: &Deployment, total: i32, has: i32) -> i32 {
    if is_recreate(deployment) {
        return replicas(deployment);
    }
    let room = most(deployment) - total;
    if room <= 0 { has } else { has + room.min(replicas(deployment) - has) }
}

/// How many Pods all old ReplicaSets have now. Those being deleted occupy room until they are gone (upstream ignores them, and may
/// exceed maxSurge for a moment). `None`: not known yet.
fn occupied_by_old(rollout: &Rollout<'_>) -> Option<i32> {
    rollout.old.iter().map(Set::occupied).try_fold(0, |all: i32, one| Some(all.saturating_add(one?)))
}

/// The initial size of the ReplicaSet for a new template.
pub fn first_size(rollout: &Rollout<'_>) -> i32 {
    match occupied_by_old(rollout) {
        Some(old) => new_size(rollout.deployment, old, 0),
        None if is_recreate(rollout.deployment) => replicas(rollout.deployment),
        None => 0,
    }
}

/// Scales the current ReplicaSet up as far as maxSurge allows, or down to the replicas.
pub fn grow_new(rollout: &mut Rollout<'_>) {
    let deployment = rollout.deployment;
    let old = occupied_by_old(rollout);
    let Some(new) = &mut rollout.new else { return };
    let (has, wants) = (new.size(), replicas(deployment));
    let to = match old {
        _ if has > wants => wants,
        Some(old) => new_size(deployment, old.saturating_add(has), has),
        None => has,
    };
    if to != has {
        new.resize(to, deployment);
    }
}

/// Scales the old ReplicaSets down as far as maxUnavailable allows: first Pods that are unavailable anyway, then others.
pub fn shrink_old(rollout: &mut Rollout<'_>) {
    let deployment = rollout.deployment;
    let fewest = replicas(deployment) - max_unavailable(deployment);
    // After a rollback, the new set may have been told to shrink and then to grow again, and its status may still count Pods
    // deleted in between. An old set only shrinks: an outdated status errs on the safe side.
    let new_available = rollout.new.as_ref().filter(|new| new.occupied().is_some()).map_or(0, Set::available);
    let unavailable = rollout.new.as_ref().map_or(0, Set::size) - new_available;
    let room = rollout.total() - fewest - unavailable;
    if room <= 0 || rollout.old.iter().all(|set| set.size() == 0) {
        return;
    }
    shrink(rollout, room, |set| set.size() - set.available());
    let available = rollout.old.iter().map(Set::available).fold(new_available, i32::saturating_add);
    shrink(rollout, available - fewest, Set::size);
}

/// Removes up to `room` Pods from the old ReplicaSets, oldest first, from each at most what `part` returns.
fn shrink(rollout: &mut Rollout<'_>, mut room: i32, part: impl Fn(&Set) -> i32) {
    let deployment = rollout.deployment;
    for set in rollout.old.iter_mut() {
        let cut = room.min(part(set)).min(set.size());
        if cut > 0 {
            set.resize(set.size() - cut, deployment);
            room -= cut;
        }
    }
}

/// Whether the Deployment's replicas have changed since its ReplicaSets were sized, so that scaling comes first. Recreate has no
/// proportions to keep: it waits until the old Pods are gone, and then creates the desired number. (Upstream scales first here too;
/// if the strategy was changed during a rollout it waits forever, or not at all.)
pub fn is_scaling(rollout: &Rollout<'_>) -> bool {
    if is_recreate(rollout.deployment) {
        return false;
    }
    let wanted = replicas(rollout.deployment);
    let sized = rollout.sets().filter(|set| set.size() > 0).filter_map(|set| noted(&set.old, DESIRED));
    { sized }.any(|desired| desired != wanted)
}

/// Scales all ReplicaSets proportionally to a new number of replicas, without advancing the rollout.
pub fn scale(rollout: &mut Rollout<'_>) {
    let deployment = rollout.deployment;
    let wanted = replicas(deployment);
    if let Some(only) = active_or_latest(rollout) {
        if only.size() != wanted || noted(&only.old, DESIRED) != Some(wanted) {
            only.resize(wanted, deployment);
        }
        return;
    }
    if is_saturated(rollout) {
        rollout.old.iter_mut().filter(|set| set.size() > 0).for_each(|set| set.resize(0, deployment));
        return;
    }
    if is_recreate(deployment) {
        return;
    }
    let allowed = if wanted > 0 { most(deployment) } else { 0 };
    let to_add = allowed - rollout.total();
    let mut active: Vec<&mut Set> =
        rollout.old.iter_mut().chain(&mut rollout.new).filter(|set| set.size() > 0).collect();
    // The largest first; among equals the newest when growing, the oldest when shrinking.
    active.sort_by(|a, b| {
        let age = meta::created(&a.old.metadata).cmp(&meta::created(&b.old.metadata));
        b.size().cmp(&a.size()).then(if to_add > 0 { age.reverse() } else { age })
    });
    let sizes: Vec<i32> = active.iter().map(|set| set.size()).collect();
    let before: Vec<Option<i32>> = active.iter().map(|set| noted(&set.old, MOST)).collect();
    for (set, size) in active.iter_mut().zip(proportions(deployment, &sizes, &before, to_add)) {
        set.resize(size, deployment);
    }
}

/// The sizes after spreading `to_add` Pods proportionally; the rounding remainder goes to the first.
fn proportions(deployment: &Deployment, sizes: &[i32], before: &[Option<i32>], to_add: i32) -> Vec<i32> {
    let mut added = 0;
    let mut new: Vec<i32> = Vec::new();
    for (size, before) in sizes.iter().zip(before) {
        let share = share(deployment, *size, *before);
        let allowed = to_add - added;
        let share = if to_add > 0 { share.min(allowed) } else { share.max(allowed) };
        let share = if to_add == 0 || allowed == 0 { 0 } else { share };
        added += share;
        new.push(size + share);
    }
    if let Some(first) = new.first_mut() {
        *first = (*first + to_add - added).max(0);
    }
    new
}

/// The change of one ReplicaSet of `size` when the maximum number of Pods changes from `before`.
fn share(deployment: &Deployment, size: i32, before: Option<i32>) -> i32 {
    if replicas(deployment) == 0 {
        return -size;
    }
    let observed = deployment.status.as_ref().and_then(|status| status.replicas);
    match before.filter(|n| *n > 0).or(observed.filter(|n| *n > 0)) {
        Some(before) => (f64::from(size) * f64::from(most(deployment)) / f64::from(before)).round() as i32 - size,
        None => 0,
    }
}

/// The only ReplicaSet with Pods or, if none has any, the newest.
fn active_or_latest<'a>(rollout: &'a mut Rollout<'_>) -> Option<&'a mut Set> {
    match rollout.sets().filter(|set| set.size() > 0).count() {
        0 if rollout.new.is_some() => rollout.new.as_mut(),
        0 => rollout.old.last_mut(),
        1 => rollout.old.iter_mut().chain(&mut rollout.new).find(|set| set.size() > 0),
        _ => None,
    }
}

/// Whether the current ReplicaSet is complete, so that old ones are leftovers.
fn is_saturated(rollout: &Rollout<'_>) -> bool {
    let wanted = replicas(rollout.deployment);
    rollout.new.as_ref().is_some_and(|new| {
        noted(&new.old, DESIRED) == Some(wanted) && new.size() == wanted && new.available() == wanted
    })
}
